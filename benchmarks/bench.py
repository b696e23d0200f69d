"""What a jar costs, measured side by side: every case once a round, so that a busy moment hits all of them alike.

    python benchmarks/bench.py              a table
    python benchmarks/bench.py --json       the same as JSON
    python benchmarks/bench.py --record     also writes benchmarks/results.md
    python benchmarks/bench.py --check      exits with 1 if a limit is missed

The baseline is `python -I -c pass` in a clean virtual environment. The same interpreter runs in every case.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("results.md")
BASELINE, BARE, HELP, COMMAND, WARM, AGAIN, POOLED, FIRST_OUTPUT = (
    "python -I -c pass",
    "bwrap … python -I -c pass",
    "belljar --help",
    "belljar run -c pass",
    'Sandbox.run("pass")',
    "the same, at once again",
    'Pool.run("pass")',
    "Pool.stream, to the first output",
)
"""A Sandbox makes the next jar while it is idle; `again` leaves it no time for that."""
SETTLE_SECONDS = 0.05
"""Between any two cases: what one leaves to be done in the background must not be charged to the next."""

OUTSIDE, INSIDE = "compute outside", "compute in a jar"
LIMITS = ((WARM, BARE, 1.4), (HELP, BASELINE, 4.0), (INSIDE, OUTSIDE, 1.02), (POOLED, BASELINE, 0.2))
"""(case, compared with, at most this many times as long)."""

COMPUTE = """\
import time
started = time.perf_counter()
total = 0
for number in range({loops}): total += number * number % 7
print(time.perf_counter() - started)"""

Case = Callable[[], float]
"""Does it once; the seconds it took."""


@dataclass(frozen=True)
class Row:
    """One case: times in milliseconds, and how many times the baseline that is."""

    case: str
    median_ms: float
    p90_ms: float
    ratio: float
    against: str


@dataclass(frozen=True)
class Verdict:
    """One limit: what was found, and whether it holds."""

    case: str
    against: str
    limit: float
    found: float
    ok: bool


# --- the cases -------------------------------------------------------------------------------------------------------


def spawn(command: list[str], environment: dict[str, str]) -> float:
    """The time from the call to the end of a process, the same way for every command."""
    null = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    started = time.perf_counter()
    pid = os.posix_spawn(command[0], command, environment, file_actions=null)
    _pid, status = os.waitpid(pid, 0)
    taken = time.perf_counter() - started
    if status:
        raise SystemExit(f"failed with {os.waitstatus_to_exitcode(status)}: {' '.join(command)}")
    return taken


def bare_bwrap(venv: Path) -> list[str]:
    """What one would type by hand: every namespace, the system, the interpreter and its environment, read-only."""
    bwrap = shutil.which("bwrap", path="/usr/bin:/usr/local/bin:/bin")
    if bwrap is None:
        raise SystemExit("bwrap is not installed\nhint: apt install bubblewrap")
    arguments = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = f"/{name}"
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            arguments += ["--ro-bind", path, path]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    program = os.path.realpath(venv / "bin/python")
    prefix = os.path.dirname(os.path.dirname(program))
    if not program.startswith("/usr/"):
        arguments += ["--ro-bind", prefix, prefix]
    return [*arguments, "--ro-bind", str(venv), str(venv), "--", str(venv / "bin/python"), "-I", "-c", "pass"]


def make_venv(path: Path) -> Path:
    """A clean one, from the interpreter beneath this one."""
    base = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    subprocess.run([base, "-I", "-m", "venv", "--without-pip", path], check=True)
    return path


def install(venv: Path) -> str:
    """Install belljar as its users do, into a virtual environment of its own. The command's path."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "--python"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([*pip, venv / "bin/python", "install", "--quiet", "--compile", ROOT], check=True, env=environment)
    return str(venv / "bin/belljar")


def measure(cases: dict[str, Case], rounds: int) -> dict[str, list[float]]:
    """Every case once a round, in another order each time; the first round warms caches and is not counted."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    order = random.Random(1)
    for number in range(rounds + 1):
        for name in order.sample(list(cases), len(cases)):
            time.sleep(SETTLE_SECONDS)
            taken = cases[name]()
            if number:
                times[name].append(taken)
    return times


def run_all(rounds: int) -> dict[str, list[float]]:
    """Prepare, measure, and leave nothing behind."""
    from belljar import Pool, Sandbox

    with tempfile.TemporaryDirectory(prefix="belljar-bench-") as directory:
        here = Path(directory)
        venv, belljar = make_venv(here / "clean"), install(make_venv(here / "installed"))
        python, by_hand = str(venv / "bin/python"), bare_bwrap(venv)
        environment = {"PATH": "/usr/bin:/bin", "HOME": directory, "BELLJAR_STATE_DIR": str(here / "state")}
        code = COMPUTE.format(loops=loops_for(0.25))
        policy = {"python": {"venv": str(venv)}}
        with Sandbox(policy) as jar, Pool(policy) as pool:

            def pooled() -> float:
                started = time.perf_counter()
                result = pool.run("pass")
                taken = time.perf_counter() - started
                return taken if result.ok else fail(result.reason or result.stderr)

            def first_output() -> float:
                started = time.perf_counter()
                with pool.stream("print(1)") as events:
                    next(events)
                    return time.perf_counter() - started

            def warm() -> float:
                started = time.perf_counter()
                result = jar.run("pass")
                taken = time.perf_counter() - started
                return taken if result.ok else fail(result.reason or result.stderr)

            def again() -> float:
                warm()
                return warm()

            def inside() -> float:
                result = jar.run(code)
                return float(result.stdout) if result.ok else fail(result.reason or result.stderr)

            def outside() -> float:
                command = [python, "-I", "-c", code]
                done = subprocess.run(command, capture_output=True, check=True, env=environment)
                return float(done.stdout)

            starting: dict[str, Case] = {
                BASELINE: lambda: spawn([python, "-I", "-c", "pass"], environment),
                BARE: lambda: spawn(by_hand, environment),
                HELP: lambda: spawn([belljar, "--help"], environment),
                COMMAND: lambda: spawn([belljar, "run", "--set", f"python.venv={venv}", "-c", "pass"], environment),
                WARM: warm,
                AGAIN: again,
                POOLED: pooled,
                FIRST_OUTPUT: first_output,
            }
            times = measure(starting, rounds)
            return times | measure({OUTSIDE: outside, INSIDE: inside}, max(10, rounds // 2))


def fail(why: str) -> float:
    """End with the reason: a case that does not work has no time."""
    raise SystemExit(f"a run in the jar failed: {why}")


def loops_for(seconds: float) -> int:
    """How many turns of the loop take about so long here."""
    loops = 200_000
    started = time.perf_counter()
    total = 0
    for number in range(loops):
        total += number * number % 7
    return int(loops * seconds / (time.perf_counter() - started))


# --- telling ---------------------------------------------------------------------------------------------------------


def rows(times: dict[str, list[float]]) -> list[Row]:
    """Medians, the slowest tenth, and ratios of medians."""
    found = []
    for case, taken in times.items():
        against = OUTSIDE if case in (OUTSIDE, INSIDE) else BASELINE
        middle = statistics.median(taken)
        slow = statistics.quantiles(taken, n=10)[-1]
        found.append(Row(case, middle * 1000, slow * 1000, middle / statistics.median(times[against]), against))
    return found


def verdicts(times: dict[str, list[float]]) -> list[Verdict]:
    """The limits, with what was found."""
    found = []
    for case, against, limit in LIMITS:
        ratio = statistics.median(times[case]) / statistics.median(times[against])
        found.append(Verdict(case, against, limit, ratio, ratio <= limit))
    return found


def machine() -> str:
    """What it was measured on, without naming it."""
    who = "root" if os.geteuid() == 0 else "an ordinary user"
    what = f"Linux {platform.release()}, {os.cpu_count()} processors (load {os.getloadavg()[0]:.1f})"
    return f"{what}, Python {platform.python_version()}, as {who}"


def as_markdown(found: list[Row], judged: list[Verdict], rounds: int) -> str:
    """The page that --record writes; the README's numbers are from it."""
    lines = [
        "# What a jar costs",
        "",
        f"Written by `make bench BENCH_ARGS=--record`: {machine()}, {rounds} rounds.",
        "",
    ]
    lines += ["| case | median | slowest tenth from | ratio |", "|---|---|---|---|"]
    lines += [f"| `{r.case}` | {r.median_ms:.1f} ms | {r.p90_ms:.1f} ms | {r.ratio:.2f} |" for r in found]
    lines += ["", "A Sandbox makes its next jar while it is idle; `at once again` leaves it no time for that."]
    lines += ["", "| limit | at most | found | |", "|---|---|---|---|"]
    lines += [f"| `{v.case}` to `{v.against}` | {v.limit} | {v.found:.3f} | {word(v)} |" for v in judged]
    return "\n".join(lines) + "\n"


def as_text(found: list[Row], judged: list[Verdict], rounds: int) -> str:
    """The table for a terminal."""
    lines = [f"{machine()}, {rounds} rounds", "", f"{'case':<28}{'median':>12}{'p90':>12}{'ratio':>9}"]
    for row in found:
        if row.case == OUTSIDE:
            lines.append("")
        lines.append(f"{row.case:<28}{row.median_ms:>9.2f} ms{row.p90_ms:>9.2f} ms{row.ratio:>9.2f}")
    lines.append("")
    for verdict in judged:
        text = f"{verdict.case} / {verdict.against}"
        lines.append(f"{text:<52}{verdict.found:>7.3f}  at most {verdict.limit:<5} {word(verdict)}")
    return "\n".join(lines) + "\n"


def word(verdict: Verdict) -> str:
    return "ok" if verdict.ok else "MISSED"


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="how often each case is measured (default: 40)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    options = parser.parse_args()
    if options.rounds < 2:
        parser.error("at least 2 rounds are needed")
    times = run_all(options.rounds)
    found, judged = rows(times), verdicts(times)
    if options.json:
        answer = {"machine": machine(), "rounds": options.rounds}
        print(
            json.dumps(answer | {"cases": [asdict(r) for r in found], "limits": [asdict(v) for v in judged]}, indent=2)
        )
    else:
        print(as_text(found, judged, options.rounds), end="")
    if options.record:
        RESULTS.write_text(as_markdown(found, judged, options.rounds))
    return 1 if options.check and not all(verdict.ok for verdict in judged) else 0


if __name__ == "__main__":
    raise SystemExit(main())
