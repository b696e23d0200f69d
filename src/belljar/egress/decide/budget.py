"""How often and how much: rates and byte budgets of one run. The clock is passed in.

Both are counted for each host by its name, not for each rule: two rules for one host share what it had.
"""

from __future__ import annotations

from belljar.egress.decide.names import host_matches
from belljar.egress.decide.rules import Rule, Rules
from belljar.egress.decide.steps import Verdict
from belljar.policy.keys.hosts import rate_of


class Window:
    """The most requests in any stretch of time, by two counts: of this window and of the last."""

    __slots__ = ("before", "count", "most", "seconds", "start")

    def __init__(self, most: int, seconds: float, now: float) -> None:
        self.most = most
        self.seconds = seconds
        self.start = now
        self.count = 0
        self.before = 0

    def full(self, now: float) -> bool:
        """Whether one more would be too many."""
        self._turn(now)
        overlap = 1 - (now - self.start) / self.seconds
        return self.before * overlap + self.count + 1 > self.most

    def add(self, now: float) -> None:
        """Count one."""
        self._turn(now)
        self.count += 1

    def _turn(self, now: float) -> None:
        passed = int((now - self.start) / self.seconds)
        if passed <= 0:
            return
        self.before = self.count if passed == 1 else 0
        self.count = 0
        self.start += passed * self.seconds


class RunBudget:
    """What a run has left. Calls say what is about to happen, and get the verdict that refuses it, or None."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._windows: dict[str, dict[str, Window]] = {}
        self._used: dict[str, int] = {}
        self.total = 0
        """Bytes of the run, both ways."""

    def request(self, host: str, rule: Rule | None, now: float) -> Verdict | None:
        """One more request to `host`, by `rule`."""
        windows = self._windows.get(host)
        if windows is None:
            windows = self._windows[host] = self._windows_for(host, now)
        if not windows:
            return None
        rate = rule.rate if rule else None
        if rate and windows[rate].full(now):
            return _refused("rate", rate, rule)
        for window in windows.values():
            window.add(now)
        return None

    def _windows_for(self, host: str, now: float) -> dict[str, Window]:
        rates = [rule.rate for rule in self._rules.allow if rule.rate and host_matches(rule.host, host)]
        return {rate: Window(*rate_of(rate), now) for rate in rates}

    def spend(self, host: str, rule: Rule | None, count: int) -> Verdict | None:
        """`count` more bytes with `host`, in either direction. They are counted even if they are refused."""
        self.total += count
        used = self._used[host] = self._used.get(host, 0) + count
        if rule and rule.budget_bytes is not None and used > rule.budget_bytes:
            return _refused("budget", host, rule)
        if self._rules.budget_bytes is not None and self.total > self._rules.budget_bytes:
            where = self._rules.places.get("net.budget_mb", "")
            return Verdict(allowed=False, reason="budget", key="net.budget_mb", where=where)
        return None

    def left(self, host: str, rule: Rule | None) -> int | None:
        """How many bytes may still be exchanged with `host`; None for any number."""
        limits = []
        if rule and rule.budget_bytes is not None:
            limits.append(rule.budget_bytes - self._used.get(host, 0))
        if self._rules.budget_bytes is not None:
            limits.append(self._rules.budget_bytes - self.total)
        return max(0, min(limits)) if limits else None


def _refused(reason: str, detail: str, rule: Rule | None) -> Verdict:
    key, where = (rule.key, rule.where) if rule else ("", "")
    return Verdict(allowed=False, reason=reason, detail=detail, rule=rule, key=key, where=where)
