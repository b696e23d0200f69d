"""What the proxy has told the host, and how much of that is in the audit log: what was decided is done only then.

Decisions of all runs are numbered in one row. They are sent together, as many as were made in the same moment, and the
host answers with the number up to which all are written. Whoever is to dial or to send something on waits for that.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

_LATER_SECONDS = 0.01
"""For what nobody waits for: many of them go together."""
_MAX_UNSENT = 20_000


class Ledger:
    """The decisions of every run, in order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[list[Any]]], None]) -> None:
        self._loop = loop
        self._send = send
        self._unsent: list[list[Any]] = []
        self._later: asyncio.TimerHandle | None = None
        self._now = False
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.told = 0
        """The number of the last decision."""
        self.written = 0
        """The number up to which the host has answered."""

    def tell(self, event: list[Any]) -> int:
        """Send an event, soon; returns its number."""
        self.told += 1
        self._unsent.append(event)
        if len(self._unsent) > _MAX_UNSENT:
            self.flush()  # no event is lost: the proxy waits for a host that does not listen
        elif self._later is None:
            self._later = self._loop.call_later(_LATER_SECONDS, self.flush)
        return self.told

    def when_written(self, number: int, then: Callable[[], None]) -> None:
        """Call this when the host has answered for that number: after this turn of the loop, with what else it has."""
        self._waiting.append((number, then))
        if not self._now:
            self._now = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was not sent yet."""
        self._now = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._send(unsent)

    def answered(self, count: int) -> None:
        """The host has dealt with so many more. Whether they are written, it has said of each run before."""
        self.written += count
        while self._waiting and self._waiting[0][0] <= self.written:
            self._waiting.popleft()[1]()
