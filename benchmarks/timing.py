"""How something is timed: every case once a round, in another order each time, so that a busy moment hits all alike."""

from __future__ import annotations

import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

SETTLE_SECONDS = 0.05
"""Between any two cases: what one leaves to be done in the background must not be charged to the next."""
IN_USE_SECONDS = 0.012
"""Between two goes of what is in use: a pool makes another jar meanwhile."""
GOES = 3


@dataclass(frozen=True)
class Case:
    """Something that is measured: `do` does it once, and returns the seconds it took."""

    name: str
    do: Callable[[], float]
    every: int = 1
    """In each how manieth round: what takes long each time is measured less often."""
    pause: float = SETTLE_SECONDS
    """Before each go after the first."""
    goes: int = 1
    """How many in a turn, of what is measured less often."""


def measure(cases: Sequence[Case], rounds: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Every case in its turn, in each round, after a round that is not counted; and the same, of each first go.

    What has just run leaves a processor's caches cold for the next, and a processor that has had nothing to do sleeps.
    So the first go of each turn is kept apart, but for those that take a second.
    """
    times: dict[str, list[float]] = {case.name: [] for case in cases}
    cold: dict[str, list[float]] = {case.name: [] for case in cases if case.every == 1}
    order = random.Random(1)
    for number in range(rounds + 1):
        progress(f"round {number} of {rounds}")
        for case in order.sample(list(cases), len(cases)):
            if number % case.every:
                continue
            for go in range(1 + GOES if case.every == 1 else case.goes):
                time.sleep(case.pause if go else SETTLE_SECONDS)
                taken = case.do()
                if number:
                    (times if go or case.every > 1 else cold)[case.name].append(taken)
    progress("")
    return times, cold


def spawn(command: list[str], environment: dict[str, str]) -> float:
    """The time from the call to the end of a process, the same way for every command."""
    null = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    started = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment, file_actions=null)
    _pid, status = os.waitpid(pid, 0)
    taken = time.perf_counter() - started
    if status:
        fail(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    return taken


def percentile(taken: Sequence[float], share: int) -> float:
    """That many of a hundred took no longer."""
    return statistics.quantiles(taken, n=100, method="inclusive")[share - 1] if len(taken) > 1 else taken[0]


def fail(why: str) -> NoReturn:
    """End with the reason: a case that does not work has no time."""
    raise SystemExit(f"error: {why}")


def progress(words: str) -> None:
    """On a terminal, on the line where the last words stood."""
    if sys.stderr.isatty():
        print(f"\r\033[K{words}", end="", file=sys.stderr, flush=True)
