"""What has to hold: each limit, what was found, and whether it does."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cases import (
    BASELINE,
    CODEX_PRINT,
    COMMAND_PRINT,
    EGRESS,
    FIRST_OUTPUT,
    HELP,
    INSIDE,
    OUTSIDE,
    PANDAS,
    PANDAS_BARE,
    POOLED,
    SRT_PRINT,
    WARM,
)
from peers import BWRAP, DOCKER, SRT
from rates import POOL
from timing import percentile


@dataclass
class Found:
    """All that one run measured."""

    machine: str
    """On what, and how busy that was before."""
    times: dict[str, list[float]] = field(default_factory=dict)
    """Seconds, by case."""
    cold: dict[str, list[float]] = field(default_factory=dict)
    """The same of the go before, right after another case."""
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Fresh sandboxes a second on all processors."""
    two_callers: list[float] = field(default_factory=list)
    """Seconds of each call of a pool that two ask at a time."""
    recorded: list[float] = field(default_factory=list)
    """Seconds that a call takes longer because it is written down, in each of many pairs of calls."""
    footprint: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """What could not be measured here, and why."""

    def median(self, case: str) -> float:
        return statistics.median(self.times[case])

    def ratio(self, case: str, against: str) -> float:
        return self.median(case) / self.median(against)

    def added(self, case: str, to: str) -> float:
        """Seconds that it takes longer, in the median of the rounds: both are in every round."""
        return statistics.median(one - other for one, other in zip(self.times[case], self.times[to], strict=True))

    def rate(self, name: str) -> float:
        return statistics.median(self.rates[name])


@dataclass(frozen=True)
class Limit:
    """Something that has to be at most, or at least, so much."""

    what: str
    wanted: float
    find: Callable[[Found], float]
    """Raises KeyError if one of the two was not measured."""
    unit: str = ""
    at_most: bool = True


@dataclass(frozen=True)
class Verdict:
    """One limit: what was found, or None."""

    what: str
    wanted: str
    found: float | None
    ok: bool | None

    @property
    def word(self) -> str:
        return {True: "ok", False: "MISSED", None: "not measured"}[self.ok]


def times(case: str, against: str, wanted: float) -> Limit:
    """It takes at most so many times as long."""
    return Limit(f"{case}, to {against}", wanted, lambda found: found.ratio(case, against))


def as_many(against: str, wanted: float) -> Limit:
    what = f"fresh sandboxes a second, {POOL} to {against}"
    return Limit(what, wanted, lambda found: found.rate(POOL) / found.rate(against), at_most=False)


LIMITS = (
    times(POOLED, BASELINE, 0.2),
    times(FIRST_OUTPUT, BASELINE, 0.05),
    Limit("Pool.run, two callers: p99 to p50", 5, lambda found: _tail(found.two_callers)),
    times(PANDAS, PANDAS_BARE, 0.02),
    Limit(f"{EGRESS}, beyond {POOLED}", 2, lambda found: found.added(EGRESS, POOLED) * 1000, unit=" ms"),
    Limit(f"{POOLED}, beyond the same without an audit log", 0.3, lambda found: _added(found.recorded), unit=" ms"),
    as_many(DOCKER, 40),
    as_many(SRT, 45),
    Limit("memory of one more waiting jar", 3, lambda found: found.footprint["jar_megabytes"], unit=" MB"),
    times(COMMAND_PRINT, SRT_PRINT, 0.3),
    times(COMMAND_PRINT, CODEX_PRINT, 1.5),
    times(WARM, BWRAP, 1.4),
    times(HELP, BASELINE, 4.0),
    times(INSIDE, OUTSIDE, 1.02),
)


def _added(pairs: list[float]) -> float:
    """Milliseconds, in the median. Raises KeyError if there are none."""
    if not pairs:
        raise KeyError
    return statistics.median(pairs) * 1000


def _tail(taken: list[float]) -> float:
    return percentile(taken, 99) / statistics.median(taken)


def judge(found: Found) -> list[Verdict]:
    """Every limit; one whose case is missing is not measured, and not missed."""
    return [_judged(limit, found) for limit in LIMITS]


def _judged(limit: Limit, found: Found) -> Verdict:
    wanted = f"{'at most' if limit.at_most else 'at least'} {limit.wanted:g}{limit.unit}"
    try:
        value = limit.find(found)
    except KeyError:
        return Verdict(limit.what, wanted, None, None)
    return Verdict(limit.what, wanted, value, value <= limit.wanted if limit.at_most else value >= limit.wanted)
