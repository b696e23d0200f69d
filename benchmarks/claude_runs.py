"""What a whole run of Claude Code costs in a jar: `belljar claude -p` and the bare command, one after the other.

    python benchmarks/claude_runs.py              a table
    python benchmarks/claude_runs.py --json       the same as JSON
    python benchmarks/claude_runs.py --record     also writes benchmarks/claude_runs.md
    python benchmarks/claude_runs.py --check      exits with 1 if the limit is missed

Both ask the same scripted model on loopback, which has them run `git status`, write a file and end. The project is a
repository with two files, and one with 30,000. A round has one run of each kind, in changing order, so that other work
on the machine meets both. The ratio is told for each round, and of that the median.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import machine

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "agents" / "inside"))

from agent_runs import BELLJAR, Home, git, make_home  # noqa: E402
from model_endpoint import ModelEndpoint, bash, say, use  # noqa: E402

LIMIT = 1.3
SIZES = (2, 30_000)
BARE, OURS = "bare", "belljar"
KEY = "sk-ant-of-the-benchmark"


def bundled() -> str:
    """The command that the SDK's wheel carries: both kinds run it."""
    spec = importlib.util.find_spec("claude_agent_sdk")
    assert spec is not None
    assert spec.origin is not None
    return os.path.join(os.path.dirname(spec.origin), "_bundled", "claude")


def make_project(directory: Path, files: int) -> Home:
    """A repository with so many files, all of them committed."""
    home = make_home(directory)
    for start in range(0, files - 2, 100):
        below = home.project / f"src/part{start // 2000}/module{start}"
        below.mkdir(parents=True)
        for number in range(start, min(start + 100, files - 2)):
            (below / f"file{number}.py").write_text(f"VALUE = {number}\n")
    git(home.project, "config", "gc.auto", "0")  # which would pack what a run looks at
    git(home.project, "add", ".")
    git(home.project, "commit", "-q", "-m", "all of them")
    return home


def run_once(home: Home, kind: str, number: int) -> float:
    """Seconds from the start of the command to its end."""
    written = home.project / f"{kind}{number}.txt"
    turns = [bash("git status --short"), use("Write", file_path=str(written), content="x\n"), say("ok")]
    bare = [bundled(), "--dangerously-skip-permissions"]
    words = [*(bare if kind == BARE else [*BELLJAR, "claude", "--apply", "none"]), "-p", "go"]
    with ModelEndpoint(turns) as model:
        environment = home.environment(
            ANTHROPIC_API_KEY=KEY,
            ANTHROPIC_BASE_URL=model.url,
            BELLJAR_STATE_DIR=str(home.directory / "state"),
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
            DISABLE_AUTOUPDATER="1",
            IS_SANDBOX="1",
        )
        started = time.perf_counter()
        done = subprocess.run(
            words, cwd=home.project, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        taken = time.perf_counter() - started
        assert done.returncode == 0, done
        assert len(model.results()) == 2, model.results()
    written.unlink(missing_ok=True)
    return taken


def measure(rounds: int) -> dict[str, dict[str, float]]:
    """By the project's size: the median of each kind in seconds, and of the ratio."""
    results = {}
    for files in SIZES:
        with tempfile.TemporaryDirectory() as directory:
            home = make_project(Path(directory, "home"), files)
            found: list[dict[str, float]] = []
            for number in range(rounds + 1):
                kinds = (BARE, OURS) if number % 2 else (OURS, BARE)
                found.append({kind: run_once(home, kind, number) for kind in kinds})
        counted = found[1:]  # the first fills the caches
        medians = {kind: statistics.median(times[kind] for times in counted) for kind in (BARE, OURS)}
        ratio = statistics.median(times[OURS] / times[BARE] for times in counted)
        results[f"{files:,} files"] = {**medians, "ratio": ratio}
    return results


def report(results: dict[str, dict[str, float]]) -> str:
    lines = ["| project | bare command | `belljar claude -p` | ratio |", "|---|---:|---:|---:|"]
    for size, found in results.items():
        lines.append(f"| {size} | {found[BARE]:.2f} s | {found[OURS]:.2f} s | {found['ratio']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7, help="of each size")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    results = measure(options.rounds)
    load = os.getloadavg()[0]
    print(json.dumps({**results, "load": load}, indent=2) if options.json else report(results))
    if options.record:
        how = f"{options.rounds} rounds of each size; the load average at the end was {load:.1f}. Limit: {LIMIT:g}."
        written = f"Written by `make bench-agents BENCH_ARGS=--record`: {machine()}.\n{how}"
        (HERE / "claude_runs.md").write_text(f"# What a whole run costs\n\n{written}\n\n{report(results)}")
    missed = [f"{size}: {found['ratio']:.2f}" for size, found in results.items() if found["ratio"] > LIMIT]
    if options.check and missed:
        sys.exit(f"belljar takes more than {LIMIT:g} times the bare command: {', '.join(missed)}")


if __name__ == "__main__":
    main()
