"""Turns in the proxy's only thread: the work of each run is done in slices, so that no run keeps another waiting.

All that happens for a run happens in its turns: what its sockets report, what it does later (`soon`), and the steps of
its errands, which are coroutines. A turn ends when its slice of time is used up. The loop then gives every other run
its turn. One step can take longer than a slice: its run rests for as long, while the others are served.

Sockets are watched by an epoll of the run's own beneath the loop's, which sees it as one descriptor. uvloop ends the
watch of a socket that was reset, even when there is still something to read from it; here a socket is reported until it
has been read to its end.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, ClassVar

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_AT_ONCE = 64
_SLICE_SECONDS = 0.0007
_LONGEST_REST_SECONDS = 0.1
_CROWDED_REST_SECONDS = 0.005


class TimeSlices:
    """The turns of one run."""

    running: ClassVar[TimeSlices | None] = None
    """Whose turn it is."""
    runs: ClassVar[int] = 0

    def __init__(self, loop: asyncio.AbstractEventLoop, crowded: Callable[[], bool] = lambda: False) -> None:
        """`crowded` says that the run has to wait until something else has caught up with it."""
        self.loop = loop
        self._crowded = crowded
        self._epoll = select.epoll()
        self._descriptor = self._epoll.fileno()
        self._watched: dict[int, Callable[[int], object]] = {}
        self._reported: dict[int, int] = {}
        """Events that the last turn had no time for."""
        self._later: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._only: Callable[[], bool] | None = None
        self._due = False
        self._resting: asyncio.TimerHandle | None = None
        self.searches = False
        """Whether what passes is searched for tokens or secrets, which takes long: then little is read at once."""
        self.closed = False
        TimeSlices.runs += 1
        loop.add_reader(self._descriptor, self._something_reported)

    @classmethod
    def alone(cls) -> bool:
        """Return True if there is no other run that could wait."""
        return cls.runs < 2

    def watch(self, descriptor: int, wanted: int, ready: Callable[[int], object]) -> None:
        """Call `ready` with the events of this descriptor: those wanted, errors and its end always."""
        if descriptor in self._watched:
            self._epoll.modify(descriptor, wanted)
        else:
            self._epoll.register(descriptor, wanted)
        self._watched[descriptor] = ready

    def forget(self, descriptor: int) -> None:
        """Watch it no more; before it is closed."""
        if self._watched.pop(descriptor, None) is not None:
            self._reported.pop(descriptor, None)
            self._epoll.unregister(descriptor)

    def soon(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call this in one of the next turns, in the order of these calls."""
        if self.closed:
            self.loop.call_soon(call, *arguments)
            return
        self._later.append((call, arguments))
        self._have_turn()

    def only(self, step: Callable[[], bool]) -> None:
        """Do nothing but this, again and again until it returns False: no socket is served, and what is due waits."""
        self._only = step
        self._have_turn()

    def _have_turn(self) -> None:
        if not self._due and self._resting is None and not self.closed:
            self._due = True
            self.loop.call_soon(self._next_turn)

    def _something_reported(self) -> None:
        if not self._due:  # or it has its turn already
            self._turn()

    def _next_turn(self) -> None:
        self._due = False
        self._turn()

    def _turn(self) -> None:
        if self._resting is not None or self.closed:
            return
        if self._crowded():
            self._rest(_CROWDED_REST_SECONDS)
            return
        TimeSlices.running = self
        others = not self.alone()
        began = time.thread_time() if others else 0.0  # of the processor: a busy machine is no fault of the run's
        try:
            self._work(time.monotonic() + _SLICE_SECONDS)
        finally:
            TimeSlices.running = None
        over = time.thread_time() - began - _SLICE_SECONDS if others else 0.0
        if over > _SLICE_SECONDS:
            self._rest(min(over, _LONGEST_REST_SECONDS))
        elif self._later or self._only is not None:
            self._have_turn()

    def _work(self, end: float) -> None:
        watched, reported, later = self._watched, self._reported, self._later
        while self._only is not None:
            self._step_alone(self._only)
            if time.monotonic() > end:
                return
        if not reported and not self.closed:
            reported.update(self._epoll.poll(0, _AT_ONCE))
        while reported:
            descriptor = next(iter(reported))
            events = reported.pop(descriptor)
            ready = watched.get(descriptor)
            if ready is not None:
                self._call(ready, (events,))
            if time.monotonic() > end:
                break
        for _call in range(len(later)):  # what is added meanwhile waits, or a step that repeats itself would stay alone
            if not later:
                return
            self._call(*later.popleft())
            if time.monotonic() > end:
                return

    def _step_alone(self, step: Callable[[], bool]) -> None:
        try:
            if not step():
                self._only = None
        except Exception as error:  # noqa: BLE001 as in `_call`
            self.loop.call_exception_handler({"message": "a connection", "exception": error})

    def _call(self, call: Callable[..., object], arguments: tuple[Any, ...]) -> None:
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001 the other work of this turn is done all the same
            self.loop.call_exception_handler({"message": "a connection", "exception": error})

    def _rest(self, seconds: float) -> None:
        self.loop.remove_reader(self._descriptor)
        self._resting = self.loop.call_later(seconds, self._rested)

    def _rested(self) -> None:
        self._resting = None
        if not self.closed:
            self.loop.add_reader(self._descriptor, self._something_reported)
            self._turn()

    def close(self) -> None:
        """End: no socket is watched any more. What waits for a turn is done all the same, outside of any.

        It is little: errands that were cancelled, which have sockets to close, and who is to hear of the run's end.
        """
        if not self.closed:
            self.closed = True
            TimeSlices.runs -= 1
            if self._resting is not None:
                self._resting.cancel()
            self.loop.remove_reader(self._descriptor)
            self._epoll.close()
            while self._later:
                self.loop.call_soon(self._call, *self._later.popleft())
            self._watched.clear()
            self._reported.clear()


class Signal:
    """Something that one errand waits for."""

    __slots__ = ("_errand", "_is_set", "_value")

    def __init__(self) -> None:
        self._errand: Errand | None = None
        self._is_set = False
        self._value: Any = None

    def set(self, value: Any = None) -> None:
        """Let the errand go on with this value. Only the first one counts."""
        if not self._is_set:
            self._is_set = True
            self._value = value
            if self._errand is not None and self._errand.awaited is self:
                self._errand.go_on()

    def bind(self, errand: Errand) -> None:
        """Tell whom to wake."""
        self._errand = errand

    def __await__(self) -> Generator[Signal, None, Any]:
        """Wait until it is set."""
        while not self._is_set:
            yield self
        return self._value


class Errand:
    """A coroutine whose steps are part of its run's turns. It may wait for signals, and for futures of the loop."""

    def __init__(
        self, turns: TimeSlices, work: Coroutine[Any, Any, None], done: Callable[[], None] = lambda: None
    ) -> None:
        """`done` is called when it has ended, also when it was cancelled before its first step."""
        self._turns = turns
        self._work = work
        self._done = done
        self.awaited: asyncio.Future[Any] | Signal | None = None
        self._scheduled = True
        self._cancelled = False
        self.over = False
        turns.soon(self._step)

    def cancel(self) -> None:
        """Raise CancelledError where it waits."""
        if not self.over:
            self._cancelled = True
            if isinstance(self.awaited, asyncio.Future):
                self.awaited.cancel()
            self.go_on()

    def go_on(self, _future: object = None) -> None:
        """Take the next step, in one of the next turns."""
        if not self._scheduled and not self.over:
            self._scheduled = True
            self._turns.soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        self.awaited = None
        try:
            if self._cancelled:
                self._cancelled = False
                awaited = self._work.throw(asyncio.CancelledError())
            else:
                awaited = self._work.send(None)
        except (StopIteration, asyncio.CancelledError):
            self._end()
        except BaseException:
            self._end()
            raise
        else:
            self.awaited = awaited
            if isinstance(awaited, Signal):
                awaited.bind(self)
            else:
                awaited._asyncio_future_blocking = False  # noqa: SLF001 the protocol between a future and who awaits it
                awaited.add_done_callback(self.go_on)

    def _end(self) -> None:
        self.over = True
        self._done()
