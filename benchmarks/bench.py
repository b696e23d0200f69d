"""What a jar costs, measured side by side with what others cost: every case once a round.

    python benchmarks/bench.py              tables; writes results.md, .json and .svg into .cache/bench
    python benchmarks/bench.py --json       prints JSON instead
    python benchmarks/bench.py --record     writes them into benchmarks instead
    python benchmarks/bench.py --check      exits with 1 if a limit is missed

The baseline is `python -I -c pass` in a clean virtual environment. The same interpreter runs in every case. What
`make bench-peers` has not installed is left out, and named.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from cases import opened
from environments import PEERS, ROOT, Place, prepare
from judging import Found, judge
from llm_sandbox_peer import HOW, LLM_SANDBOX, LlmSandbox
from machine import machine
from peers import DOCKER, find, of_the_interpreter
from rates import measure_rates, two_callers
from recorded import recorded_cost
from telling import as_json, as_page, as_svg, as_text
from timing import Case, measure

from belljar.backends.container.images.engine_images import BASE_IMAGE

HERE = Path(__file__).resolve().parent
RATE_ROUNDS = 3


def run_all(rounds: int) -> Found:
    """Prepare, measure, and leave nothing behind."""
    found = Found(machine())
    with ExitStack() as stack:
        place = prepare(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="belljar-bench-"))))
        peers, found.missing = find(place)
        found.versions = {peer.name: peer.version for peer in peers}
        found.how = {peer.name: peer.how for peer in peers}
        with ExitStack() as jars:
            cases = jars.enter_context(opened(place, peers, found.missing))
            found.times, found.cold = measure([*cases, *llm_sandbox(place, jars, found)], rounds)
        found.rates = measure_rates(place, peers, RATE_ROUNDS)
        found.two_callers = two_callers(place)
        found.recorded = recorded_cost(place)
        footprint(place, found)
    return found


def llm_sandbox(place: Place, stack: ExitStack, found: Found) -> list[Case]:
    """A case, if it is installed and works."""
    python = PEERS / "llm-sandbox/bin/python"
    if why := found.missing.get(DOCKER, "" if python.exists() else "not installed; make bench-peers installs it"):
        found.missing[LLM_SANDBOX] = why
        return []
    peer = stack.enter_context(LlmSandbox(python, place.venv, BASE_IMAGE, of_the_interpreter(place)))
    try:
        peer.once()
    except (ValueError, OSError) as error:
        found.missing[LLM_SANDBOX] = f"it does not run here: {error}"
        return []
    found.versions[LLM_SANDBOX], found.how[LLM_SANDBOX] = peer.version, HOW
    return [Case(LLM_SANDBOX, peer.once, every=3)]


def footprint(place: Place, found: Found) -> None:
    command = [sys.executable, str(HERE / "footprint.py"), str(place.venv)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        found.missing["memory of a jar"] = (done.stderr.strip().splitlines() or ["it failed"])[-1]
    else:
        found.footprint = json.loads(done.stdout)


def main() -> int:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30, help="how often each case is measured (default: 30)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--record", action="store_true", help="write benchmarks/results.md, .json and .svg")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a limit is missed")
    options = parser.parse_args()
    if options.rounds < 3:
        parser.error("at least 3 rounds are needed")
    if (load := os.getloadavg()[0]) > 1:
        print(f"note: the machine is busy (load {load:.1f}): times say little, ratios somewhat more", file=sys.stderr)
    found = run_all(options.rounds)
    judged = judge(found)
    tell = as_json if options.json else as_text
    print(tell(found, judged, options.rounds), end="")
    into = HERE if options.record else ROOT / ".cache/bench"
    into.mkdir(parents=True, exist_ok=True)
    (into / "results.md").write_text(as_page(found, judged, options.rounds))
    (into / "results.json").write_text(as_json(found, judged, options.rounds))
    (into / "results.svg").write_text(as_svg(found))
    print(f"written: {into.relative_to(ROOT)}/results.md, results.json and results.svg", file=sys.stderr)
    return 1 if options.check and any(verdict.ok is False for verdict in judged) else 0


if __name__ == "__main__":
    raise SystemExit(main())
