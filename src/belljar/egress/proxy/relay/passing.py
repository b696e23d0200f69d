"""What is done with every byte that passes: counted against budgets, and what leaves is searched for canary tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.egress.decide.canary_tokens import Scanner
from belljar.egress.decide.rules import Rule

if TYPE_CHECKING:
    from belljar.egress.proxy.run import ProxiedRun


class ByteMeter:
    """The bytes of one stream with one host. When a method says False, nothing more may pass."""

    __slots__ = ("_host", "_port", "_rule", "_run", "_scanner", "_stopped")

    def __init__(self, run: ProxiedRun, host: str, port: int, rule: Rule | None) -> None:
        self._run = run
        self._host = host
        self._port = port
        self._rule = rule
        self._scanner = Scanner(run.tokens) if run.tokens else None
        self._stopped = False

    def outgoing(self, data: bytes) -> bool:
        """Bytes of a tunnel that are about to leave."""
        return self.clean(data) and self.spend(len(data))

    def incoming(self, data: bytes) -> bool:
        """Bytes that have come."""
        return self.spend(len(data))

    def clean(self, data: bytes) -> bool:
        """Whether no token is in what leaves, after all that left before."""
        if self._scanner is None or not self._scanner.finds(data):
            return not self._stopped
        self._stopped = True
        self._run.canary_found(self._host, self._port)
        return False

    def spend(self, count: int) -> bool:
        """Whether so many more bytes are within the budgets."""
        verdict = self._run.limits.spend(self._host, self._rule, count)
        if verdict is None:
            return True
        if not self._stopped:
            self._stopped = True
            self._run.tell("connect", self._host, self._port, verdict)
        return False
