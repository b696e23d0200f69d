"""A run stands still when it is told to, from any thread or process, and what is taken of it then is all there."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from jars import OpenJar, finish, is_enforced

from belljar import Sandbox
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.errors import UsageError
from belljar.sandbox.files.snapshot_files import SnapshotFiles
from belljar.sandbox.incident.evidence_archive_reading import EvidenceArchive
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.remote import await_end, kill, order, running
from belljar.sandbox.record.result import RunResult

COUNTING = """
import os, time
os.mkdir("made"); open("made/file", "w").write("content")
print("up", flush=True)
n = 0
while True:
    n += 1
    open("new", "w").write(str(n)); os.rename("new", "count")
    time.sleep(0.001)
"""
"""Counts for ever, in a file that is whole at any time."""


class Counting:
    """A run that counts."""

    def __init__(self, jar: Sandbox) -> None:
        self.jar = jar
        self.result: RunResult | None = None

    def run(self, code: str) -> None:
        self.result = finish(self.jar.stream(code))

    @property
    def id(self) -> str:
        (one,) = running()
        return str(one["run"])

    @property
    def count(self) -> int:
        return int(self.jar.files.read("count"))

    def await_more(self) -> int:
        """Until it has counted on."""
        before = self.count
        while self.count == before:
            pass
        return before


@contextmanager
def counting(jar: Sandbox, code: str = COUNTING) -> Iterator[Counting]:
    """While it counts; it is killed at the end, if it is still there."""
    one = Counting(jar)
    thread = threading.Thread(target=one.run, args=(code,))
    thread.start()
    try:
        while "count" not in {entry.path for entry in jar.files.list()}:
            assert thread.is_alive(), one.result
        one.await_more()
        yield one
    finally:
        kill("*", "the test is over")
        thread.join()


def quarantine(one: Counting, then: str) -> dict[str, Any]:
    """As `belljar quarantine` has it done."""
    return order("quarantine", one.id, reason="a test", then=then)


def stands_still(one: Counting) -> bool:
    """Whether it counts no more, in as many looks, and in as much time, as would see it count."""
    before, until = one.count, time.monotonic() + 0.2
    while time.monotonic() < until:
        if any(one.count != before for _ in range(20)):
            return False
    return True


def test_it_stands_still_and_goes_on(open_jar: OpenJar) -> None:
    """Frozen, frozen once more, let go on; and while it counts, looking as often sees it."""
    with counting(open_jar()) as one:
        assert not stands_still(one)
        done = quarantine(one, "keep")
        assert done["frozen"]
        assert done["still"]
        assert stands_still(one)
        assert quarantine(one, "keep")["path"] != done["path"]
        order("snapshot", one.id, name="frozen")
        assert stands_still(one)
        quarantine(one, "resume")
        one.await_more()
    assert one.result is not None
    assert one.result.outcome == "killed"


def test_what_stands_still_can_be_killed(open_jar: OpenJar) -> None:
    """By anyone, as any run."""
    with counting(open_jar()) as one:
        quarantine(one, "keep")
        run_id = one.id
        assert kill(run_id, "enough").ended == [run_id]
        assert not await_end({run_id: 0})
    assert one.result is not None
    assert (one.result.outcome, one.result.reason) == ("killed", "it was ended: enough")


def test_a_sandbox_closes_with_a_run_that_stands_still(open_jar: OpenJar) -> None:
    """And nothing is left of it, which is looked at after every test."""
    jar = open_jar()
    with counting(jar) as one:
        quarantine(one, "keep")
        jar.close()


def test_its_clock_stands_still_too(open_jar: OpenJar) -> None:
    """It is frozen for longer than it may run, and ends by itself later."""
    code = COUNTING.replace("while True", "while not os.path.exists('go')")
    jar = open_jar(timeout="8s")
    with counting(jar, code) as one:
        quarantine(one, "keep")
        threading.Event().wait(8.5)
        jar.files.write("go", b"")
        quarantine(one, "resume")
        while running():
            threading.Event().wait(0.01)
    assert one.result is not None
    assert one.result.outcome == "ok", one.result.reason


def test_the_bundle_has_it_all(open_jar: OpenJar, backend: str) -> None:
    """Everything that is known, each with its checksum, and the run is killed; the log knew of it before."""
    with counting(open_jar(), COUNTING) as one:
        run_id = one.id
        done = quarantine(one, "kill")
        assert not await_end({run_id: 0})
    assert one.result is not None
    assert (one.result.outcome, one.result.reason) == ("killed", "it was ended: quarantined: a test")
    path = Path(done["path"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    with EvidenceArchive(str(path)) as bundle:
        assert bundle.problems() == []
        assert bundle.digest() == done["sha256"]
        assert set(bundle.manifest["missing"]) == {"input"}
        assert set(bundle.parts) == {
            *("records.jsonl", "egress.jsonl", "policy.json", "plan.json", "code", "output/stdout", "output/stderr"),
            *("tree.json", "files.snapshot", "environment.json", "versions.json", "manifest.json"),
        }
        assert bundle.read("code", 10_000).decode() == COUNTING
        assert bundle.read("output/stdout", 100) == b"up\n"
        assert json.loads(bundle.read("plan.json", 1 << 20))["backend"] == backend
        part = bundle.parts["files.snapshot"]
        with SnapshotFiles(str(path), start=part.offset, size=part.size) as files:
            assert {"made", "made/file", "count"} <= set(files.files)
            assert files.read(files.files["made/file"], 100) == b"content"
    events = [record["event"] for record in records(directory()) if record.get("run") == run_id]
    assert events.index("started") < events.index("quarantine") < events.index("quarantined") < events.index("killed")
    taken = next(record for record in records(directory()) if record["event"] == "quarantined")
    assert taken["sha256"] == done["sha256"]


def test_a_snapshot_of_a_run(open_jar: OpenJar) -> None:
    """Its files at one moment, while it runs; and it goes on."""
    with counting(open_jar()) as one:
        taken = order("snapshot", one.id, name="here")
        one.await_more()
        with pytest.raises(UsageError, match="already"):
            order("snapshot", one.id, name="here")
    with SnapshotFiles("here") as files:
        assert files.path == taken["path"]
        assert files.read(files.files["made/file"], 100) == b"content"


def test_a_snapshot_lets_nothing_go_on(open_jar: OpenJar) -> None:
    """What was frozen to stay so stays so, whoever looks into it; until it is said that it may go on."""
    with counting(open_jar()) as one:
        quarantine(one, "keep")
        order("snapshot", one.id, name="there")
        assert stands_still(one)
        quarantine(one, "resume")
        order("snapshot", one.id, name="later")
        one.await_more()


SLOW_TO_DIE = """
import os, time
ballast = bytearray(20_000_000)
for _ in range(20):
    if os.fork() == 0:
        ballast[:] = bytes(len(ballast))
        time.sleep(1000)
"""
"""So that it takes the kernel some time."""


def test_what_was_killed_is_not_frozen(open_jar: OpenJar) -> None:
    """Frozen, it could not die: so a run that was killed, and is to stand still after that, ends."""
    with counting(open_jar(), SLOW_TO_DIE + COUNTING) as one:
        run_id = one.id
        handle, _details = CONTROL._runs[run_id]
        assert handle.access is not None
        handle.access.process.kill("enough")
        with contextlib.suppress(OSError):  # that it is being ended, or has
            handle.access.process.freeze()
        assert not await_end({run_id: 0})
    assert one.result is not None
    assert one.result.reason == "it was ended: enough"


BOMB = """
import os, time
print("up", flush=True)
def count():
    n = 0
    while True:
        n += 1
        open(f"new{os.getpid()}", "w").write(str(n)); os.rename(f"new{os.getpid()}", "count")
        try:
            if os.fork() == 0:
                os.setsid()
                if n % 2: os._exit(0)
            else:
                os.waitpid(-1, os.WNOHANG)
        except OSError:
            pass
count()
"""
"""Processes that come and go as fast as they can, in sessions of their own."""


def test_a_fork_bomb_stands_still(open_jar: OpenJar) -> None:
    """Whatever was being born meanwhile. An engine may give up on it: then that is told."""
    jar = open_jar({"proc": {"pids": 16}})
    if not is_enforced(jar, "proc.pids"):
        pytest.skip("processes are not limited here")
    with counting(jar, BOMB) as one:
        done = quarantine(one, "keep")
        if "unable to freeze" in done["missing"].get("stillness", ""):
            assert (done["still"], done["frozen"]) == (False, "")
            return
        assert done["still"], done["missing"]
        assert stands_still(one)


def test_it_has_ended_meanwhile(open_jar: OpenJar) -> None:
    """Then there is nothing to freeze, and the error says so."""
    jar = open_jar()
    run_id = jar.run("pass").run_id
    for op in ("snapshot", "quarantine"):
        with pytest.raises(UsageError, match="not in progress"):
            order(op, run_id, reason="", then="kill")
    assert not os.path.exists(os.path.join(os.environ["BELLJAR_STATE_DIR"], "quarantine"))


LOCKSTEP = """
import os
n = 0
while True:
    n += 1
    for name in (f"f{at:03}" for at in range(100)):
        open("new", "w").write(str(n)); os.rename("new", name)
    open("new", "w").write(str(n)); os.rename("new", "count")
"""
"""A hundred files, one after the other, have the same number; at any moment no two are further apart than one."""


def test_a_snapshot_is_one_moment(open_jar: OpenJar) -> None:
    """However long it takes to read: the code stands still."""
    with counting(open_jar(), LOCKSTEP) as one:
        order("snapshot", one.id, name="moment")
    with SnapshotFiles("moment") as files:
        numbers = [int(files.read(files.files[f"f{at:03}"], 100)) for at in range(100)]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] - numbers[-1] <= 1
