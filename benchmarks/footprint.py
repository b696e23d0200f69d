"""What one more waiting jar takes of memory, and one run of processor time. In a process of its own:

    python benchmarks/footprint.py VENV        prints JSON

Memory is the proportional share (PSS) of every process beneath this one, for pools of two sizes: what they share counts
once, and the difference is what more jars take. Processor time is that of this process and all beneath it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

SMALL, LARGE = 4, 24
RUNS = 100


def main() -> int:
    """For whoever may read what processes of other users share: root."""
    from rates import wait_for

    from belljar import Pool

    policy = {"python": {"venv": sys.argv[1]}}
    found = {}
    for size in (SMALL, LARGE):
        with Pool(policy, size=size) as pool:
            wait_for(pool, size)
            found[size] = memory()
            if size == SMALL:
                used = processor_seconds()
                for _ in pool.map(["pass"] * RUNS):
                    pass
                wait_for(pool, size)
                used = processor_seconds() - used
    kilobytes = (found[LARGE] - found[SMALL]) / (LARGE - SMALL)
    print(json.dumps({"jar_megabytes": kilobytes / 1024, "run_processor_ms": used / RUNS * 1000}))
    return 0


def memory() -> int:
    """The kilobytes of every process beneath this one."""
    total = 0
    for pid in beneath(os.getpid()):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def processor_seconds() -> float:
    """Of this process, all beneath it, and those of them that have ended."""
    ticks = 0
    for pid in (os.getpid(), *beneath(os.getpid())):
        ticks += sum(int(word) for word in fields(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


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
