"""What one more waiting jar takes of memory, and one run of processor time. In a process of its own:

    python benchmarks/footprint.py VENV        prints JSON

Memory is the proportional share (PSS) of every process beneath this one, for pools of two sizes: what they share counts
once, and the difference is what more jars take. Processor time is that of the whole machine, less what it takes while
nothing of ours goes on: a jar's processes are nobody's children when they end, and the kernel clears up after them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rates import wait_for

from belljar import Pool

SMALL, LARGE = 4, 24
RUNS = 300
IDLE_SECONDS, SETTLE_SECONDS = 2.0, 0.5
HOST, JAR, KERNEL = "the caller's process", "the jar: its pid 1 and the code's process", "the kernel, for no process"
LASTING = {"belljar-stage": "the stage: groups, canaries, the clock", "belljar-zygote": "the zygote: clones"}
"""By the names of the processes."""


def main() -> int:
    """For whoever may read what processes of other users share: root."""
    policy = {"python": {"venv": sys.argv[1]}}
    found = {}
    for size in (SMALL, LARGE):
        with Pool(policy, size=size) as pool:
            wait_for(pool, size)
            found[size] = memory()
            if size == SMALL:
                used = processor_ms_of_a_run(pool)
    kilobytes = (found[LARGE] - found[SMALL]) / (LARGE - SMALL)
    print(json.dumps({"jar_megabytes": kilobytes / 1024, "run_processor_ms": sum(used.values()), "parts_ms": used}))
    return 0


def memory() -> int:
    """The kilobytes of every process beneath this one."""
    total = 0
    for pid in beneath(os.getpid()):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def processor_ms_of_a_run(pool: Pool) -> dict[str, float]:
    """By who used it. One after the other, so that they do not share a core; with the making of the next jar."""
    idle, started = busy_seconds(), time.monotonic()
    time.sleep(IDLE_SECONDS)
    otherwise = (busy_seconds() - idle) / (time.monotonic() - started)
    before, used, started, inside = of_ours(), busy_seconds(), time.monotonic(), 0.0
    for result in pool.map(["pass"] * RUNS, concurrency=1):
        inside += result.usage.cpu_seconds
    wait_for(pool, SMALL)
    time.sleep(SETTLE_SECONDS)
    used = busy_seconds() - used - otherwise * (time.monotonic() - started)
    parts = {name: seconds - before.get(name, 0.0) for name, seconds in of_ours().items()} | {JAR: inside}
    parts[KERNEL] = used - sum(parts.values())
    return {name: seconds / RUNS * 1000 for name, seconds in parts.items()}


def of_ours() -> dict[str, float]:
    """The seconds of the processes that last longer than a run."""
    found = {HOST: time.process_time()}
    for pid in beneath(os.getpid()):
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        if name in LASTING:
            ticks = sum(int(word) for word in fields(pid)[11:13])
            found[LASTING[name]] = found.get(LASTING[name], 0.0) + ticks / os.sysconf("SC_CLK_TCK")
    return found


def busy_seconds() -> float:
    """Of all processors, for whatever: users, the kernel, interrupts; not idle, not waiting, not stolen."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _waiting, hard, soft = map(int, words[:7])
    return (user + nice + system + hard + soft) / os.sysconf("SC_CLK_TCK")


def beneath(top: int) -> Iterator[int]:
    """Its children, their children, and so on."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            children.setdefault(int(fields(int(name))[1]), []).append(int(name))
        except OSError:  # it has ended since
            continue
    waiting = [top]
    while waiting:
        found = children.get(waiting.pop(), [])
        waiting += found
        yield from found


def fields(pid: int) -> list[str]:
    """Of its stat file, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


if __name__ == "__main__":
    raise SystemExit(main())
