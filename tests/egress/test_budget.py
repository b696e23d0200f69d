"""Rates and byte budgets, with a clock of the test's own."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.egress.decide.budget import RunBudget, Window
from belljar.egress.decide.rules import Rules, compile_rules
from belljar.policy.load.resolve import resolve


def rules_of(*allowlist: Any, **net: Any) -> Rules:
    return compile_rules(
        resolve(layers=[{"net": {"enabled": True, "allowlist": list(allowlist), **net}}], managed=None)
    )


def passed(limits: RunBudget, host: str, rule: Any, times: list[float]) -> int:
    return sum(limits.request(host, rule, now) is None for now in times)


def test_rate() -> None:
    """So many in a second, and then again."""
    rules = rules_of({"host": "a.test", "rate": "3/s"})
    limits = RunBudget(rules)
    assert passed(limits, "a.test", rules.allow[0], [0.0] * 5) == 3
    verdict = limits.request("a.test", rules.allow[0], 0.5)
    assert verdict is not None
    assert (verdict.allowed, verdict.reason, verdict.detail, verdict.key) == (False, "rate", "3/s", "net.allowlist[0]")
    assert passed(limits, "a.test", rules.allow[0], [2.5] * 5) == 3


def test_rate_of_each_host() -> None:
    """Hosts that a star covers have it each; two rules for one host share it."""
    rules = rules_of({"host": "*", "rate": "2/s"}, {"host": "a.test", "ports": [8080], "rate": "2/s"})
    limits = RunBudget(rules)
    assert passed(limits, "a.test", rules.allow[0], [0.0] * 2) == 2
    assert passed(limits, "b.test", rules.allow[0], [0.0] * 3) == 2
    assert passed(limits, "a.test", rules.allow[1], [0.0] * 2) == 0


def test_rates_that_differ() -> None:
    """Together they are no more than the larger."""
    rules = rules_of({"host": "a.test", "rate": "5/s"}, {"host": "a.test", "ports": [1], "rate": "4/s"})
    limits = RunBudget(rules)
    assert sum(passed(limits, "a.test", rules.allow[at % 2], [0.0]) for at in range(30)) <= 5


def test_no_rate() -> None:
    """Then there is none."""
    rules = rules_of("a.test")
    assert passed(RunBudget(rules), "a.test", rules.allow[0], [0.0] * 1000) == 1000
    assert passed(RunBudget(rules), "a.test", None, [0.0] * 10) == 10


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(st.floats(0, 0.7), max_size=80))
def test_never_more_than_the_rate(most: int, gaps: list[float]) -> None:
    """In no second more than twice as many, and in the long run no more than the rate."""
    window = Window(most, 1.0, 0.0)
    now, taken = 0.0, []
    for gap in gaps:
        now += gap
        if not window.full(now):
            window.add(now)
            taken.append(now)
    for start in taken:
        assert sum(start <= at < start + 1 for at in taken) <= 2 * most
    assert len(taken) <= most * (now + 2)


def test_budget_of_a_host() -> None:
    """Bytes both ways, by whichever connection."""
    rules = rules_of({"host": "a.test", "budget_mb": "10b"}, "b.test")
    limits = RunBudget(rules)
    assert limits.left("a.test", rules.allow[0]) == 10
    assert limits.spend("a.test", rules.allow[0], 10) is None
    assert limits.left("a.test", rules.allow[0]) == 0
    verdict = limits.spend("a.test", rules.allow[0], 1)
    assert verdict is not None
    assert (verdict.reason, verdict.key) == ("budget", "net.allowlist[0]")
    assert limits.spend("b.test", rules.allow[1], 10**9) is None
    assert limits.left("b.test", rules.allow[1]) is None


def test_budget_of_a_run() -> None:
    """All hosts together."""
    rules = rules_of("a.test", {"host": "b.test", "budget_mb": 1}, budget_mb="100b")
    limits = RunBudget(rules)
    assert limits.spend("a.test", rules.allow[0], 60) is None
    assert limits.left("b.test", rules.allow[1]) == 40
    verdict = limits.spend("b.test", rules.allow[1], 41)
    assert verdict is not None
    assert (verdict.reason, verdict.key, verdict.rule) == ("budget", "net.budget_mb", None)
    assert limits.total == 101


@pytest.mark.parametrize("rate", ["1/s", "60/m", "3600/h"])
def test_units(rate: str) -> None:
    """The first of each is free, and the window is as long as the unit."""
    rules = rules_of({"host": "a.test", "rate": rate})
    count = int(rate.partition("/")[0])
    limits = RunBudget(rules)
    assert passed(limits, "a.test", rules.allow[0], [0.0] * (count + 5)) == count
