"""What is timed of belljar itself, and of Python without it; peers.py has the others."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from environments import PEERS, Place
from peers import CODEX, SRT, Peer
from recorded import spent_on_records
from timing import IN_USE_SECONDS, SETTLE_SECONDS, Case, fail, spawn

from belljar import Pool, Sandbox
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import RunResult

BASELINE, HELP, COMMAND = "python -I -c pass", "belljar --help", "belljar run -c pass"
WARM, AGAIN = 'Sandbox.run("pass")', "the same, at once again"
"""A Sandbox makes the next jar while it is idle; `again` leaves it no time for that."""
POOLED, FIRST_OUTPUT, EGRESS = 'Pool.run("pass")', "Pool.stream, to the first output", "Pool.run, with an allowlist"
RECORDED = 'Pool.run("pass"), of which the audit log'
PANDAS_BARE, PANDAS = "python -I -c 'import pandas'", "Pool.run('import pandas'), preloaded"
COMMAND_PRINT, SRT_PRINT, CODEX_PRINT = "belljar run -c 'print(1)'", f"{SRT}, print(1)", f"{CODEX}, print(1)"
OUTSIDE, INSIDE = "compute outside", "compute in a jar"
FLOOR = "the same namespaces and mounts, in C"

COMPUTE_SECONDS = 0.25
COMPUTE = """\
import time
started = time.perf_counter()
total = 0
for number in range({loops}): total += number * number % 7
print(time.perf_counter() - started)"""


@contextmanager
def opened(place: Place, peers: list[Peer], missing: dict[str, str]) -> Iterator[list[Case]]:
    """Every case that can be measured here; what can't is added to `missing`, with the reason."""
    with ExitStack() as stack:
        policy = {"python": {"venv": str(place.venv)}}
        jar = stack.enter_context(Sandbox(policy))
        pool = stack.enter_context(Pool(policy))
        listed = stack.enter_context(Pool(policy | {"net": {"enabled": True, "allowlist": ["example.com"]}}))
        cases = [
            *commands(place, peers),
            Case(WARM, lambda: timed(lambda: jar.run("pass"))),
            Case(AGAIN, lambda: timed(lambda: jar.run("pass")) and timed(lambda: jar.run("pass"))),
            Case(POOLED, lambda: timed(lambda: pool.run("pass")), pause=IN_USE_SECONDS),
            Case(FIRST_OUTPUT, lambda: first_output(pool), pause=IN_USE_SECONDS),
            Case(EGRESS, lambda: timed(lambda: listed.run("pass")), pause=IN_USE_SECONDS),
            Case(RECORDED, lambda: spent_on_records(pool), pause=IN_USE_SECONDS),
            *pandas(place, stack, missing),
            *compute(place, jar),
            *floor(place, missing),
        ]
        yield cases


def commands(place: Place, peers: list[Peer]) -> list[Case]:
    """Whole commands, each a process from its start to its end."""

    def case(name: str, *command: str, every: int = 1) -> Case:
        pause = IN_USE_SECONDS if name == BASELINE else SETTLE_SECONDS
        return Case(name, lambda: spawn(list(command), place.environment), every, pause)

    run = (place.belljar, "run", "--set", f"python.venv={place.venv}", "-c")
    cases = [case(BASELINE, place.python, "-I", "-c", "pass")]
    cases += [case(peer.name, *peer.command("pass"), every=3 if peer.slow else 1) for peer in peers]
    cases += [case(HELP, place.belljar, "--help"), case(COMMAND, *run, "pass"), case(COMMAND_PRINT, *run, "print(1)")]
    names = {SRT: SRT_PRINT, CODEX: CODEX_PRINT}
    return cases + [case(names[peer.name], *peer.command("print(1)")) for peer in peers if peer.name in names]


# --- belljar as a library --------------------------------------------------------------------------------------------


def timed(run: Callable[[], RunResult]) -> float:
    """The whole call, as its caller sees it."""
    started = time.perf_counter()
    result = run()
    taken = time.perf_counter() - started
    return taken if result.ok else fail(f"a run failed: {result.reason or result.stderr}")


def first_output(pool: Pool) -> float:
    started = time.perf_counter()
    with pool.stream("print(1)") as events:
        event = next(events)
        taken = time.perf_counter() - started
        if not isinstance(event, Output):
            fail("a run printed nothing")
    return taken


def pandas(place: Place, stack: ExitStack, missing: dict[str, str]) -> list[Case]:
    """What a preloaded module saves."""
    venv = PEERS / "pandas"
    if not (venv / "bin/python").exists():
        missing["pandas"] = "not installed; make bench-peers installs it"
        return []
    pool = stack.enter_context(Pool({"python": {"venv": str(venv)}}, preload=["pandas"]))
    bare = [str(venv / "bin/python"), "-I", "-c", "import pandas"]
    return [
        Case(PANDAS_BARE, lambda: spawn(bare, place.environment), every=2),
        Case(PANDAS, lambda: timed(lambda: pool.run("import pandas")), pause=IN_USE_SECONDS),
    ]


# --- work, and the floor ---------------------------------------------------------------------------------------------


def compute(place: Place, jar: Sandbox) -> list[Case]:
    """The same loop, timed by itself."""
    code = COMPUTE.format(loops=loops_for(COMPUTE_SECONDS))

    def inside() -> float:
        result = jar.run(code)
        return float(result.stdout) if result.ok else fail(f"a run failed: {result.reason or result.stderr}")

    outside = [place.python, "-I", "-c", code]
    return [Case(OUTSIDE, lambda: printed(outside, place), every=2, goes=3), Case(INSIDE, inside, every=2, goes=3)]


def loops_for(seconds: float) -> int:
    """How many turns of the loop take about so long here."""
    loops = 200_000
    started = time.perf_counter()
    total = 0
    for number in range(loops):
        total += number * number % 7
    return int(loops * seconds / (time.perf_counter() - started))


def floor(place: Place, missing: dict[str, str]) -> list[Case]:
    """What the kernel takes for an empty jar: no implementation can be quicker."""
    compiler = shutil.which("cc")
    program, source = place.top / "floor", Path(__file__).with_name("floor.c")
    if compiler is None:
        missing[FLOOR] = "there is no C compiler"
        return []
    subprocess.run([compiler, "-O2", "-o", program, source], check=True)
    tried = subprocess.run([program], capture_output=True, text=True, check=False)
    if tried.returncode:
        missing[FLOOR] = tried.stderr.strip()
        return []
    return [Case(FLOOR, lambda: printed([str(program)], place))]


def printed(command: list[str], place: Place) -> float:
    """The seconds that a program says it took."""
    return float(subprocess.run(command, capture_output=True, check=True, env=place.environment).stdout)
