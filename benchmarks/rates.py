"""Many at once: fresh sandboxes a second on all processors, and how evenly a pool answers two callers."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator

from cases import BASELINE, timed
from environments import Place
from peers import Peer
from timing import fail, progress, spawn

from belljar import Pool

POOL = "Pool.map"
CALLERS, CALLS = 2, 250
WINDOW_SECONDS = 2.5
SETTLE_SECONDS = 0.5
"""Between any two: engines and the kernel still clear away what the one before has made."""

Rate = Callable[[], float]
"""Makes sandboxes for a while; how many a second it made."""


def measure_rates(place: Place, peers: list[Peer], rounds: int) -> dict[str, list[float]]:
    """Each in turn, in another order each time; the pool has been used before."""
    processors = os.cpu_count() or 1
    with Pool({"python": {"venv": str(place.venv)}}, size=4 * processors) as pool:
        cases: dict[str, Rate] = {
            BASELINE: lambda: of_command([place.python, "-I", "-c", "pass"], place, processors),
            POOL: lambda: of_pool(pool, 4 * processors, processors),
        }
        for peer in peers:
            cases[peer.name] = lambda peer=peer: of_command(peer.command("pass"), place, processors)  # type: ignore[misc]
        found: dict[str, list[float]] = {name: [] for name in cases}
        order = random.Random(2)
        of_pool(pool, 4 * processors, processors)
        for number in range(rounds):
            for name in order.sample(list(cases), len(cases)):
                progress(f"sandboxes a second, round {number + 1} of {rounds}: {name}")
                time.sleep(SETTLE_SECONDS)
                found[name].append(cases[name]())
    progress("")
    return found


def of_pool(pool: Pool, size: int, processors: int) -> float:
    """Counted until as many jars wait as before: those that waited at the beginning are no gift."""
    wait_for(pool, size)
    started = time.perf_counter()
    count = 0
    for result in pool.map(passes(started + WINDOW_SECONDS), concurrency=processors):
        count += 1 if result.ok else fail(f"a run failed: {result.reason or result.stderr}")
    wait_for(pool, size)
    return count / (time.perf_counter() - started)


def wait_for(pool: Pool, size: int) -> None:
    """Until so many jars wait."""
    deadline = time.monotonic() + 60
    while pool.statistics().waiting < size:
        if time.monotonic() > deadline:
            fail(f"the pool has {pool.statistics().waiting} jars after a minute, and not {size}")
        time.sleep(0.002)


def passes(until: float) -> Iterator[str]:
    while time.perf_counter() < until:
        yield "pass"


def of_command(command: list[str], place: Place, processors: int) -> float:
    """As many at a time as there are processors, until the last of them has ended."""
    counts = [0] * processors
    started = time.perf_counter()

    def work(at: int) -> None:
        while time.perf_counter() - started < WINDOW_SECONDS:
            spawn(command, place.environment)
            counts[at] += 1

    together(work, processors)
    return sum(counts) / (time.perf_counter() - started)


def two_callers(place: Place) -> list[float]:
    """Seconds of each call, when two callers ask again as soon as they are answered."""
    found: list[list[float]] = [[] for _ in range(CALLERS)]
    with Pool({"python": {"venv": str(place.venv)}}) as pool:
        timed(lambda: pool.run("pass"))

        def work(at: int) -> None:
            found[at] = [timed(lambda: pool.run("pass")) for _ in range(CALLS)]

        together(work, CALLERS)
    times = [taken for each in found for taken in each]
    return times if len(times) == CALLERS * CALLS else fail("a caller of the pool failed")


def together(work: Callable[[int], None], count: int) -> None:
    """In so many threads, until all have ended."""
    threads = [threading.Thread(target=work, args=(at,)) for at in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
