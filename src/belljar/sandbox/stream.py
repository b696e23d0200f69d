"""A run as an iterator of events, that can be ended from any thread while another one waits for the next event."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Self

from belljar.backends.contract import Process
from belljar.sandbox.events import Finished, Output

Event = Output | Finished


class Stream(Iterator[Event]):
    """What `Sandbox.stream` returns. Leaving it, closing it or losing it ends the run."""

    def __init__(self, events: Callable[[Stream], Iterator[Event]]) -> None:
        self._events = events(self)
        self._turn = threading.Lock()
        self._process: Process | None = None
        self._killed = ""

    def __next__(self) -> Event:
        with self._turn:
            return next(self._events)

    def started(self, process: Process) -> None:
        """The run's process exists now; a kill that came earlier takes effect."""
        self._process = process
        if self._killed:
            process.kill(self._killed)

    def ended(self) -> None:
        """The run is over: there is nothing left to kill."""
        self._process = None

    def kill(self, reason: str = "killed") -> None:
        """End the run. The events that are still to come tell of it."""
        self._killed = reason
        if (process := self._process) is not None:
            process.kill(reason)

    def close(self) -> None:
        """End the run and let go of it; waits for a thread that is inside `next`."""
        self.kill("abandoned")
        with self._turn:
            close = getattr(self._events, "close", None)
            if close is not None:
                close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()
