"""Many runs in one pool, then many of which a third crash, run out of time or are killed: nothing is left of them.

`make soak` has ten thousand of each (BELLJAR_SOAK); with the other tests there are a few hundred.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar import Pool, RunResult
from belljar.backends.bubblewrap.host.client import LAUNCHER
from belljar.sandbox.record.events import Finished
from belljar.sandbox.record.result import Outcome
from belljar.state import state_directory

pytestmark = pytest.mark.backend("bubblewrap")

MANY = int(os.environ.get("BELLJAR_SOAK", "180"))
WORKERS = 8 if MANY > 1000 else 4
SIZE = 4
TIMEOUT = "700ms"
ENDS = {
    "crash": ("print({n}, flush=True); import os; os.kill(os.getpid(), 11)", Outcome.FAILED),
    "timeout": ("print({n}, flush=True)\nwhile True: __import__('time').sleep(9)", Outcome.TIMEOUT),
    "killed": ("import os; os.write(1, b'{n}\\n'); __import__('subprocess').run(['sleep', '9'])", Outcome.KILLED),
}
FINE = "print({n})"


# --- what there is ---------------------------------------------------------------------------------------------------


def family(pid: int) -> Iterator[int]:
    """A process, and all that it has started."""
    yield pid
    with contextlib.suppress(OSError):
        for child in map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()):
            yield from family(child)


def ours() -> dict[int, str]:
    """The launcher and its descendants, by pid: their names."""
    found = {}
    for pid in family(LAUNCHER._pid):
        with contextlib.suppress(OSError):
            found[pid] = Path(f"/proc/{pid}/comm").read_text().strip()
    return found


def groups() -> int:
    """Control groups of this launcher's."""
    count = 0
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, place, kind, *_rest = line.split(" ")
        if kind in ("cgroup", "cgroup2"):
            for directory, names, _files in os.walk(place):
                mine = [name for name in names if re.search(rf"\b{LAUNCHER._pid}\b", name)]
                count += len(names) if re.search(rf"belljar\S*\b{LAUNCHER._pid}\b", directory) else len(mine)
    return count


def memory(pid: int) -> int:
    """Bytes that the process has written, what it shares with its jars counted in part.

    Not those of libraries: how many other programs of this machine share these is not ours to say.
    """
    with contextlib.suppress(OSError):
        return 1024 * int(re.findall(r"Pss_Anon:\s+(\d+)", Path(f"/proc/{pid}/smaps_rollup").read_text())[0])
    return 0


def counted() -> dict[str, int]:
    """Everything that could be left, in numbers. What failed runs printed is kept on purpose, until `belljar prune`."""
    everyone = {os.getpid(): "", **ours()}
    zygotes = [pid for pid, name in everyone.items() if name == "belljar-zygote"]
    of_jars = {pid for zygote in zygotes for pid in family(zygote) if pid != zygote}
    lasting = [pid for pid in everyone if pid not in of_jars]
    return {
        "processes": len(everyone),
        "threads": threading.active_count(),
        "descriptors": sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in lasting),
        "mounts": sum(len(Path(f"/proc/{pid}/mounts").read_text().splitlines()) for pid in lasting),
        "groups": groups(),
        "files": sum(len(files) for place, _names, files in os.walk(state_directory()) if "outputs" not in place),
        "memory": sum(map(memory, lasting)),
    }


def settled(pool: Pool) -> dict[str, int]:
    """The same, once all jars wait and nothing has changed for a while (but memory)."""
    deadline = time.monotonic() + 60
    last: dict[str, int] = {}
    since = time.monotonic()
    while time.monotonic() - since < 0.5 or pool.statistics().waiting < SIZE:
        assert time.monotonic() < deadline, last
        time.sleep(0.05)
        with contextlib.suppress(OSError):  # a process that ended while we looked
            now = counted()
            if {**now, "memory": 0} != {**last, "memory": 0}:
                since = time.monotonic()
            last = now
    return last


# --- what is done ----------------------------------------------------------------------------------------------------


def ended(pool: Pool, number: int, how: str) -> RunResult:
    """One run, which ends in this way."""
    code = ENDS[how][0] if how else FINE
    if how != "killed":
        return pool.run(code.format(n=number))
    with pool.stream(code.format(n=number)) as events:
        next(events)
        events.kill()
        last = list(events)[-1]
    assert isinstance(last, Finished)
    return last.result


def run_many(pool: Pool, many: int, *, rough: bool) -> Counter[str]:
    """So many runs by some threads; how they ended. Every one has printed its own number, and nothing else."""
    numbers = iter(range(many))
    turn = threading.Lock()
    seen: Counter[str] = Counter()
    faults: list[str] = []

    def work() -> None:
        while not faults:
            with turn:
                number = next(numbers, None)
            if number is None:
                return
            how = list(ENDS)[number // 3 % 3] if rough and number % 3 == 0 else ""
            try:
                result = ended(pool, number, how)
            except BaseException as error:  # noqa: BLE001 - a thread's own would be lost
                faults.append(f"{number}, {how}: {error!r}")
                return
            wanted = ENDS[how][1] if how else Outcome.OK
            if (result.outcome, result.stdout) != (wanted, f"{number}\n"):
                faults.append(f"{number}, {how}: {result.outcome} {result.reason} {result.stdout!r} {result.stderr!r}")
            with turn:
                seen[str(result.outcome)] += 1

    threads = [threading.Thread(target=work) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    return seen


def test_nothing_is_left_of_many_runs() -> None:
    """No process, mount, group, descriptor, file or memory more than before; none lost, none counted twice."""
    if MANY > 1000:
        signal.alarm(0)  # no test takes so long; this one is meant to
    seen: Counter[str] = Counter()
    with Pool({"proc": {"mem_mb": 256}}, size=SIZE, timeout=TIMEOUT if MANY > 1000 else "2s") as pool:
        seen += run_many(pool, 18, rough=True)  # what is there once and for all
        before = settled(pool)
        for rough in (False, True):
            started = time.monotonic()
            many = MANY if not rough or MANY > 1000 else MANY // 4
            now = run_many(pool, many, rough=rough)
            seconds = time.monotonic() - started
            seen += now
            after = settled(pool)
            print(f"\n{many} runs, {dict(now)}, {many / seconds:.0f}/s\n  before {before}\n  after  {after}")
            assert sum(now.values()) == many
            allowed = {**before, "memory": before["memory"] * 11 // 10}
            assert not {what: (before[what], after[what]) for what in before if after[what] > allowed[what]}
        assert pool.statistics().by_outcome == dict(seen)
