"""What containers cost: a prepared one against `docker run`, and work inside against work outside.

    python benchmarks/containers.py              tables
    python benchmarks/containers.py --json       the same as JSON
    python benchmarks/containers.py --record     also writes benchmarks/containers.md and benchmarks/containers.svg
    python benchmarks/containers.py --check      exits with 1 if a limit is missed

Every case once a round, in another order each time. Work is timed by the code itself, so that starting it does not
count; outside it runs with the Python of the system, which is the one in belljar's image, and in memory, as in a jar.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from machine import machine
from plot import bars
from timing import fail

from belljar import Sandbox
from belljar.backends.container.images.engine_images import BASE_IMAGE
from belljar.sandbox.record.events import Finished, Output

HERE = Path(__file__).resolve().parent
PREPARE_SECONDS = 2.5
"""How long a Sandbox has, between two runs, to get its next container up."""
FIRST_LIMIT, WHOLE_LIMIT = 0.1, 0.3
RUNTIMES = {"docker": "runc", "gvisor": "runsc"}
SYSTEM_PYTHON = "/usr/bin/python3"
BARE = "bare"
BACKENDS = ("bubblewrap", "docker", "gvisor")

PREPARE = """
import os
line = b"2026-01-01T00:00:00 GET /items/%d status=%d bytes=%d\\n"
with open("access.log", "wb") as log:
    for part in range(100):
        rows = b"".join(line % (n % 997, 200 + n % 5, n * 31 % 9973) for n in range(part * 19_000, (part + 1) * 19_000))
        log.write(rows)
print(os.path.getsize("access.log"))
"""
TASKS = {
    "compute": """
import time
started = time.perf_counter()
total = 0
for number in range(3_000_000): total += number * number % 7
print(time.perf_counter() - started)""",
    "read and aggregate a 100 MB log": """
import collections, time
started = time.perf_counter()
count, total = collections.Counter(), 0
with open("access.log", "rb") as log:
    for row in log:
        words = row.split()
        count[words[3]] += 1
        total += int(words[4][6:])
print(time.perf_counter() - started)""",
    "make 10,000 small files": """
import os, shutil, time
started = time.perf_counter()
os.mkdir("many")
for number in range(10_000):
    with open(f"many/{number}", "w") as file: file.write("x" * 100)
print(time.perf_counter() - started)
shutil.rmtree("many")""",
}
POLICY = {
    "fs": {"size_mb": 400, "inodes": 50_000},
    "proc": {"mem_mb": 1024, "timeout_ms": "300s", "cpu_quota": 2, "file_size_mb": 256},
    "on_degraded": "allow",
}


@dataclass(frozen=True)
class Start:
    """One engine: seconds to the first output and to the end, cold and prepared."""

    backend: str
    cold_first: float
    cold_whole: float
    prepared_first: float
    prepared_whole: float

    @property
    def first(self) -> float:
        return self.prepared_first / self.cold_whole

    @property
    def whole(self) -> float:
        return self.prepared_whole / self.cold_whole


# --- starting --------------------------------------------------------------------------------------------------------


def cold(docker: str, runtime: str) -> tuple[float, float]:
    """`docker run`, as one would type it: (first output, end)."""
    options = ["--rm", "--network", "none", "--runtime", runtime, "--entrypoint", "python3"]
    command = [docker, "run", *options, BASE_IMAGE, "-I", "-u", "-c", "print(1)"]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"1\n":
            fail(f"{' '.join(command)} printed nothing")
        first = time.perf_counter() - started
        process.wait()
    return first, time.perf_counter() - started


def prepared(jar: Sandbox) -> tuple[float, float]:
    """A run in the container that waits: (first output, end)."""
    started, first = time.perf_counter(), 0.0
    for event in jar.stream("print(1)"):
        if isinstance(event, Output) and not first:
            first = time.perf_counter() - started
        if isinstance(event, Finished) and not event.result.ok:
            fail(event.result.reason or event.result.stderr)
    return first, time.perf_counter() - started


def starts(rounds: int) -> list[Start]:
    """Cold and prepared, side by side."""
    docker = shutil.which("docker") or fail("docker is not installed")
    times: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with ExitStack() as stack:
        jars = {name: stack.enter_context(Sandbox(backend=name)) for name in RUNTIMES}
        for jar in jars.values():
            for _ in range(2):  # from the second run on, the next container is made ready
                prepared(jar)
        cases: dict[tuple[str, str], Callable[[], tuple[float, float]]] = {}
        for name, runtime in RUNTIMES.items():
            cases[name, "cold"] = lambda runtime=runtime: cold(str(docker), runtime)  # type: ignore[misc]
            cases[name, "prepared"] = lambda name=name: prepared(jars[name])  # type: ignore[misc]
        order = random.Random(1)
        for _round in range(rounds):
            for case in order.sample(list(cases), len(cases)):
                time.sleep(PREPARE_SECONDS)
                times.setdefault(case, []).append(cases[case]())
    return [Start(name, *_medians(times[name, "cold"]), *_medians(times[name, "prepared"])) for name in RUNTIMES]


def _medians(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    return statistics.median(first for first, _ in pairs), statistics.median(whole for _, whole in pairs)


# --- working ---------------------------------------------------------------------------------------------------------


def work(rounds: int) -> dict[str, dict[str, float]]:
    """Seconds for each task, outside and on each backend."""
    times: dict[tuple[str, str], list[float]] = {}
    with ExitStack() as stack:
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="belljar-bench-", dir=memory)))
        jars = {BARE: None, **{name: stack.enter_context(_open(name)) for name in BACKENDS}}
        for jar in jars.values():
            _do(PREPARE, jar, place)
        order = random.Random(2)
        cases = [(task, name) for task in TASKS for name in jars]
        for number in range(rounds + 1):
            for task, name in order.sample(cases, len(cases)):
                taken = _do(TASKS[task], jars[name], place)
                if number:
                    times.setdefault((task, name), []).append(taken)
    return {task: {name: statistics.median(times[task, name]) for name in jars} for task in TASKS}


def _open(name: str) -> Sandbox:
    policy = {**POLICY, "python": {"interpreter": SYSTEM_PYTHON}} if name == "bubblewrap" else POLICY
    return Sandbox(policy, backend=name)


def _do(code: str, jar: Sandbox | None, place: Path) -> float:
    """What the code prints, in a jar or outside."""
    if jar is not None:
        result = jar.run(code)
        return float(result.stdout) if result.ok else fail(result.reason or result.stderr)
    done = subprocess.run([SYSTEM_PYTHON, "-I", "-c", code], cwd=place, capture_output=True, check=True)
    return float(done.stdout)


# --- telling ---------------------------------------------------------------------------------------------------------


def as_text(started: list[Start], worked: dict[str, dict[str, float]], rounds: int) -> str:
    """The tables, in a form that Markdown and a terminal both show."""
    lines = [f"{machine()}, {rounds} rounds.", ""]
    lines += ["| | `docker run`: first output | whole | prepared: first output | whole | first | whole |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in started:
        numbers = (row.cold_first, row.cold_whole, row.prepared_first, row.prepared_whole)
        cells = " | ".join(f"{number * 1000:.0f} ms" for number in numbers)
        lines.append(f"| {row.backend} | {cells} | {row.first:.3f} | {row.whole:.3f} |")
    lines += ["", f"Limits: first output at most {FIRST_LIMIT} and the whole at most {WHOLE_LIMIT} of `docker run`."]
    names = [BARE, *BACKENDS]
    lines += ["", f"| work | {' | '.join(names)} |", f"|---|{'---|' * len(names)}"]
    for task, times in worked.items():
        ratios = [f"{times[BARE] * 1000:.0f} ms", *(f"{times[name] / times[BARE]:.2f}" for name in BACKENDS)]
        lines.append(f"| {task} | {' | '.join(ratios)} |")
    lines += ["", "Ratios to bare; below 1.05 is within what two runs of the same thing differ by here."]
    return "\n".join(lines) + "\n"


def as_svg(worked: dict[str, dict[str, float]]) -> str:
    """A bar for each backend and task, as a ratio to bare."""
    found = [(task, name, times[name] / times[BARE]) for task, times in worked.items() for name in BACKENDS]
    colours = dict(zip(BACKENDS, ("#2a7f62", "#3066be", "#b4552d"), strict=True))
    return bars(found, colours, "bare = 1", most=1.5)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10, help="how often each case is measured (default: 10)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", action="store_true", help="write benchmarks/containers.md and .svg")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    options = parser.parse_args()
    started, worked = starts(options.rounds), work(max(3, options.rounds // 2))
    if options.json:
        print(json.dumps({"machine": machine(), "starts": [asdict(row) for row in started], "work": worked}, indent=2))
    else:
        print(as_text(started, worked, options.rounds), end="")
    if options.record:
        head = "# What containers cost\n\nWritten by `make bench-containers BENCH_ARGS=--record`: "
        picture = "\n![Work in a jar, as a ratio to bare](containers.svg)\n"
        (HERE / "containers.md").write_text(head + as_text(started, worked, options.rounds) + picture)
        (HERE / "containers.svg").write_text(as_svg(worked))
    ok = all(row.first <= FIRST_LIMIT and row.whole <= WHOLE_LIMIT for row in started)
    return 1 if options.check and not ok else 0


if __name__ == "__main__":
    raise SystemExit(main())
