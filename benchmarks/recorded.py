"""What it costs a run in a pool that it is written down: time spent on it, and what a caller waits longer for it.

The second is less: a jar makes itself ready for the code while the host writes down that it is to run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from environments import Place
from timing import fail, progress

from belljar import Pool
from belljar.sandbox.record import recording

PAIRS = 300
PAUSE_SECONDS = 0.015
"""Between two calls: a jar is made in the place of the one that was used."""
_PARTS = ("code_details", "begin", "finish")
"""What a run in a pool has done to be written down: its code, its beginning and its end."""


def spent_on_records(pool: Pool) -> float:
    """Seconds of one call that go into its records."""
    taken = 0.0

    def counting(work: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: object, **named: object) -> Any:
            nonlocal taken
            started = time.perf_counter()
            try:
                return work(*arguments, **named)
            finally:
                taken += time.perf_counter() - started

        return counted

    with _instead({name: counting(getattr(recording, name)) for name in _PARTS}):
        _call(pool)
    return taken


def recorded_cost(place: Place) -> list[float]:
    """Seconds that a call takes longer than one that leaves no record, in each of many pairs, in no order."""
    silent: dict[str, Callable[..., Any]] = {
        "code_details": lambda *_arguments, **_named: {},
        "begin": lambda *_arguments, **_named: None,
        "finish": lambda result, *_arguments, **_named: result,
    }
    order = random.Random(3)
    found = []
    with Pool({"python": {"venv": str(place.venv)}}) as pool:
        _call(pool)
        for number in range(PAIRS):
            progress(f"with and without an audit log, {number + 1} of {PAIRS}")
            taken = {}
            for recorded in order.sample([True, False], 2):
                time.sleep(PAUSE_SECONDS)
                with _instead({} if recorded else silent):
                    taken[recorded] = _call(pool)
            found.append(taken[True] - taken[False])
    progress("")
    return found


@contextmanager
def _instead(parts: dict[str, Callable[..., Any]]) -> Iterator[None]:
    kept = {name: getattr(recording, name) for name in parts}
    for name, part in parts.items():
        setattr(recording, name, part)
    try:
        yield
    finally:
        for name, part in kept.items():
            setattr(recording, name, part)


def _call(pool: Pool) -> float:
    started = time.perf_counter()
    result = pool.run("pass")
    taken = time.perf_counter() - started
    return taken if result.ok else fail(f"a run failed: {result.reason or result.stderr}")
