"""What the proxy has told the host, and how much of that is in the audit log: what was decided is done only then.

The decisions of a run are numbered. They are sent together, as many as were made in the same moment, and the host
answers when they are written. Whoever is to dial or to send something on waits for that. Runs take turns, and only so
many decisions are on their way at once: a run that makes very many delays itself alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

_LATER_SECONDS = 0.01
"""For what nobody waits for: many of them go together."""
_MESSAGE = 250
_ON_THEIR_WAY = 500
_MAX_UNSENT = 1000


class Account:
    """The decisions of one run, in order."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.unsent: deque[list[Any]] = deque()
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()
        self.told = 0
        """The number of the last decision."""
        self.written = 0
        """The number up to which the host has answered."""

    @property
    def crowded(self) -> bool:
        """Return True if so many are not sent yet that the run has to wait."""
        return len(self.unsent) > _MAX_UNSENT

    def tell(self, event: list[Any]) -> int:
        """Send an event, soon; returns its number."""
        self.told += 1
        self.unsent.append(event)
        self._ledger.send_later(self)
        return self.told

    def when_written(self, number: int, then: Callable[[], None]) -> None:
        """Call this when the host has answered for that number: after this turn of the loop, with what else it has."""
        self._waiting.append((number, then))
        self._ledger.send_soon()

    def answered(self, count: int) -> None:
        """The host has dealt with so many more. Whether they are written, it has said before."""
        self.written += count
        while self._waiting and self._waiting[0][0] <= self.written:
            self._waiting.popleft()[1]()

    def flush(self) -> None:
        """Send all that was not sent yet."""
        self._ledger.send_all(self)


class Ledger:
    """The accounts of every run, and what is on its way to the host."""

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[list[list[Any]]], None]) -> None:
        """`send` sends some events in one message, for which the host gives one answer."""
        self._loop = loop
        self._send = send
        self._to_send: dict[Account, None] = {}
        """Who has something to send, in turn."""
        self._sent: deque[tuple[Account, int]] = deque()
        self._on_their_way = 0
        self._later: asyncio.TimerHandle | None = None
        self._soon = False

    def account(self) -> Account:
        """Return a new run's account."""
        return Account(self)

    def send_later(self, account: Account) -> None:
        """Send what an account has, with what others will have."""
        self._to_send.setdefault(account)
        if self._later is None:
            self._later = self._loop.call_later(_LATER_SECONDS, self._flush)

    def send_soon(self) -> None:
        """Send what there is after this turn of the loop."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._soon = False
        if self._later is not None:
            self._later.cancel()
            self._later = None
        while self._to_send and self._on_their_way < _ON_THEIR_WAY:
            account = next(iter(self._to_send))
            del self._to_send[account]
            self._send_some(account)
            if account.unsent:
                self._to_send[account] = None

    def send_all(self, account: Account) -> None:
        """Send all that an account has."""
        self._to_send.pop(account, None)
        while account.unsent:
            self._send_some(account)

    def _send_some(self, account: Account) -> None:
        unsent = account.unsent
        some = [unsent.popleft() for _event in range(min(_MESSAGE, len(unsent)))]
        if some:
            self._sent.append((account, len(some)))
            self._on_their_way += len(some)
            self._send(some)

    def answered(self) -> None:
        """The host has dealt with the oldest message that is on its way."""
        account, count = self._sent.popleft()
        self._on_their_way -= count
        account.answered(count)
        if self._to_send:
            self._flush()
