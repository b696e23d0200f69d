"""Ctrl-C, SIGTERM and SIGHUP for commands that have something to put away before they end."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

from belljar.sandbox.record.stream import Stream

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Stopped(KeyboardInterrupt):
    """A signal came that asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}")
        self.exit_code = 128 + number
        """What a shell would say."""


class Stopping:
    """Has them raise `Stopped` in the main thread; while a run is followed, they end that first.

    One that was ignored when this process started stays so: that is what `nohup` asks for.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._stream: Stream | None = None
        self._told: Stopped | None = None

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """From here on, until this is left."""
        wanted = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, self._hear) for number in wanted}
        try:
            yield
        finally:
            for number, handler in before.items():
                if signal.getsignal(number) != signal.SIG_IGN:
                    signal.signal(number, handler)

    def _hear(self, number: int, _frame: object) -> None:
        if os.getpid() != self._owner:  # in a process that was forked from this one: it has nothing to put away
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        stop = Stopped(number)
        if self._stream is not None and self._told is None:
            self._told = stop
            # Not here: this thread may be anywhere, with any lock.
            threading.Thread(target=self._stream.kill, args=(str(stop),), daemon=True).start()
            return
        ignore_further()
        raise stop

    @contextlib.contextmanager
    def following(self, stream: Stream) -> Iterator[Stream]:
        """The events of a run, which come to their end and are recorded, however this is left.

        Raises:
            Stopped: at the end, if a signal has ended it. A second signal does not wait for that.
        """
        self._stream = stream
        try:
            with stream:
                try:
                    yield stream
                except OSError:
                    stream.kill("nobody reads its output any more")
                    for _event in stream:
                        pass
                    raise
        finally:
            self._stream = None
        if self._told is not None:
            raise self._told


def ignore_further() -> None:
    """Another signal must not interrupt the putting away."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
