"""A pool's stage, from belljar's side."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Callable, Hashable, Sequence

from belljar.backends.bubblewrap.host.backend import BubblewrapJar
from belljar.backends.bubblewrap.host.pool_process import PooledProcess, packed
from belljar.backends.bubblewrap.host.ready_jars import Prepare, ReadyJars, Waiter, is_gone
from belljar.backends.bubblewrap.shared import wire
from belljar.backends.contract import End
from belljar.backends.pool_contract import PooledJar
from belljar.errors import BelljarError, UsageError
from belljar.guest.pool.pooled_code import MOST_INLINE

Wanted = Callable[[Waiter], None]
"""Told of what a run waits for, so that it can be called off."""


class BubblewrapPool(BubblewrapJar):
    """Gives out jars that have waited, each to one run."""

    def __init__(
        self, control: socket.socket, answer: wire.Message, *, helpers: int, prepare: Prepare | None = None
    ) -> None:
        super().__init__(control, answer)
        self._owner = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            wire.send(control, {"do": "lend"}, (theirs.fileno(),))
        self._ready_jars = ReadyJars(ours, weakref.proxy(self), prepare, helpers)

    def packed(self, code: bytes, name: str, arguments: Sequence[str]) -> bytes | None:
        """Return what to run as `PooledProcess.give_at_once` takes it. None if that is too long."""
        body = packed(code, name, arguments, {})
        return body if len(body) <= MOST_INLINE else None

    def take_ready(self) -> PooledProcess | None:
        """A jar for one run, if one waits. Any thread may call."""
        self._check_ours()
        return self._ready_jars.take_ready()

    def _check_ours(self) -> None:
        if self._control.fileno() < 0:
            raise UsageError("this Pool is closed")
        if os.getpid() != self._owner:  # both would give code to the same jars
            raise UsageError("this Pool is another process's, which forked this one", hint="open a Pool here")

    def take(self, waits: Wanted, caller: Hashable) -> PooledProcess | End:
        """A jar for one run, or how the run ended for which there is none. Any thread may call."""
        self._check_ours()
        try:
            found = self._ready_jars.take(caller)
        except BelljarError as error:
            raise self._told(error) from None
        if isinstance(found, PooledProcess):
            return found
        waits(found)
        found.wait()
        if found.jar is not None:
            return found.jar
        if found.fault is not None:
            raise self._told(found.fault)
        return found.end()

    def _told(self, error: BelljarError) -> BelljarError:
        return self.last_words() if is_gone(error) else error

    def bury(self, jar: PooledJar) -> None:
        """Close a jar whose run has ended, soon, off the caller's path."""
        assert isinstance(jar, PooledProcess)
        if os.getpid() == self._owner:  # in a forked process that thread is not there, nor whoever locked it
            self._ready_jars.bury(jar)

    def judged(self, jar: PooledJar, end: End) -> End:
        """Return the run's end. If its pid 1 was killed together with the zygote, the end says that the jar was lost.

        The stage may hear of the jar's end a moment before that of the zygote. So this looks once more.
        """
        assert isinstance(jar, PooledProcess)
        if end.ended_by != "pid1" or not self._ready_jars.lost_zygote(jar.generation):
            return end
        from dataclasses import replace

        return replace(end, ended_by="internal", problems=(wire.ZYGOTE_KILLED,))

    def statistics(self) -> dict[str, int]:
        """How many jars wait, how many runs wait for one, and how many zygotes there have been."""
        answer, _descriptors = self._ask({"do": "statistics"})
        return {"waiting": answer["waiting"], "zygotes": answer["zygotes"], "queued": self._ready_jars.queued}

    def close(self) -> None:
        """End the stage, and with it every run and mount."""
        self._ready_jars.close("the pool was closed before the run had begun")
        super().close()
