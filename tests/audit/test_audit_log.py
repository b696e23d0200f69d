"""The audit log under many writers, SIGKILL, a full disk, a clock that goes back; every way to tamper."""

from __future__ import annotations

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from audit_writers import WRITER, day_file, lines_of, write

from belljar.audit import stored
from belljar.audit.chain import BrokenRecordError, decode
from belljar.audit.log import AuditLog, Head, day_files, directory, read_head, record
from belljar.audit.reading import matches, records
from belljar.audit.retention import prune
from belljar.audit.verify import verify
from belljar.errors import AuditError, UsageError


class TestChain:
    """What is written can be verified."""

    def test_records_are_numbered_and_linked(self, tmp_path: Path) -> None:
        """Each has the digest of the one before."""
        write(tmp_path, 3)
        found = list(records(str(tmp_path)))
        assert [(one["seq"], one["number"]) for one in found] == [(1, 0), (2, 1), (3, 2)]
        assert [one["prev"] for one in found[1:]] == [one["digest"] for one in found[:-1]]
        verdict = verify(str(tmp_path))
        assert (verdict.ok, verdict.records, verdict.link.seq) == (True, 3, 3)

    def test_only_its_owner_can_read_it(self, tmp_path: Path) -> None:
        """The directory and everything in it."""
        write(tmp_path / "audit")
        modes = [oct(path.stat().st_mode & 0o777) for path in (tmp_path / "audit", *(tmp_path / "audit").iterdir())]
        assert modes == ["0o700", "0o600", "0o600"]

    def test_an_empty_log_is_in_order(self, tmp_path: Path) -> None:
        """Nothing was written, and nothing is missing."""
        assert verify(str(tmp_path)).ok

    @pytest.mark.parametrize("text", ["\n", "\x00", "é\U0001f600", '"}\n{"seq":1', "a" * 100_000], ids=repr)
    def test_hostile_text(self, tmp_path: Path, text: str) -> None:
        """A name with a line's end in it ends no line."""
        log = write(tmp_path)
        log.append({"event": "test", "name": text[:200_000], text[:20]: 1})
        log.append({"event": "test"})
        assert verify(str(tmp_path)).ok
        assert [one.get("name") for one in records(str(tmp_path))][5] == text

    def test_queries(self) -> None:
        """By a member's value, members of members too."""
        record = {"event": "denied", "details": {"host": "a.test", "count": 2}, "on": True}
        assert matches(record, {"event": "denied", "details.host": "a.test", "details.count": "2", "on": "true"})
        assert not matches(record, {"details.host": "b.test"})
        assert not matches(record, {"nothing.of.it": "x"})


def flipped(path: Path) -> None:
    """One byte of the third record."""
    found = lines_of(path)
    found[2] = found[2].replace(b'"number":2', b'"number":7')
    day_file(path).write_bytes(b"".join(found))


def rehashed(path: Path) -> None:
    """The same, by someone who makes its digest right."""
    found = lines_of(path)
    body = found[2][: found[2].rindex(b',"digest"')].replace(b'"number":2', b'"number":7') + b"}"
    import hashlib

    found[2] = body[:-1] + b',"digest":"' + hashlib.sha256(body).hexdigest().encode() + b'"}\n'
    day_file(path).write_bytes(b"".join(found))


def removed(path: Path) -> None:
    """The third record."""
    found = lines_of(path)
    day_file(path).write_bytes(b"".join(found[:2] + found[3:]))


def swapped(path: Path) -> None:
    """The third and the fourth."""
    found = lines_of(path)
    day_file(path).write_bytes(b"".join([*found[:2], found[3], found[2], *found[4:]]))


def cut(path: Path) -> None:
    """The last two are gone."""
    day_file(path).write_bytes(b"".join(lines_of(path)[:3]))


def half(path: Path) -> None:
    """The last one is cut in two."""
    day_file(path).write_bytes(day_file(path).read_bytes()[:-20])


def added(path: Path) -> None:
    """A line of someone else's."""
    with day_file(path).open("ab") as file:
        file.write(b'{"seq":6,"event":"made up"}\n')


def doubled(path: Path) -> None:
    """The last one, twice."""
    with day_file(path).open("ab") as file:
        file.write(lines_of(path)[-1])


def all_gone(path: Path) -> None:
    """The file."""
    day_file(path).unlink()


def no_head(path: Path) -> None:
    """Cut, and the head removed as well."""
    cut(path)
    (path / "head").unlink()


def torn_head(path: Path) -> None:
    """The head overwritten."""
    (path / "head").write_bytes(b"x" * 90)


TAMPERED: dict[Callable[[Path], None], tuple[str, str]] = {
    flipped: (":3", "it was changed"),
    rehashed: (":4", "does not follow"),
    removed: (":3", "record 3 is missing"),
    swapped: (":3", "record 3 is missing"),
    cut: ("at its end", "its last record is 3, and 5 were written"),
    half: (":5", "cut off"),
    added: (":6", "not a record"),
    doubled: (":6", "out of order"),
    all_gone: ("at its end", "its last record is 0, and 5 were written"),
    no_head: ("at its end", "`head` is missing"),
    torn_head: ("at its end", "`head` is damaged"),
}


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda function: function.__name__)
def test_tampering_is_found(tmp_path: Path, tamper: Callable[[Path], None]) -> None:
    """And named: where, and what."""
    write(tmp_path)
    assert verify(str(tmp_path)).ok
    tamper(tmp_path)
    verdict = verify(str(tmp_path))
    where, problem = TAMPERED[tamper]
    assert not verdict.ok
    assert verdict.where.endswith(where)
    assert problem in verdict.problem


@pytest.mark.parametrize(
    "tamper", [flipped, rehashed, removed, swapped, cut, added, doubled, all_gone], ids=lambda f: f.__name__
)
def test_writing_on_hides_nothing(tmp_path: Path, tamper: Callable[[Path], None]) -> None:
    """Who comes later goes on from what was acknowledged: what is gone stays visibly gone."""
    write(tmp_path)
    tamper(tmp_path)
    AuditLog(str(tmp_path)).append({"event": "after"})
    assert not verify(str(tmp_path)).ok


class TestTexts:
    """What records name by its digest: the text of a policy, and of a plan."""

    @pytest.fixture(params=["policy", "plan"])
    def text(self, request: pytest.FixtureRequest) -> Path:
        """One that two records name."""
        event = request.param
        place = {"policy": stored.policies, "plan": stored.plans}[event]()
        digest = stored.store(place, b'{"a":1}', ".json")
        for run in ("r1", "r2"):
            record(event, run=run, **{event: f"sha256:{digest}"})
        assert verify(directory()).ok
        return Path(place, f"{digest}.json")

    def test_changed(self, text: Path) -> None:
        """At the first record that names it."""
        text.write_bytes(b'{"a":2}')
        verdict = verify(directory())
        assert (verdict.ok, verdict.records) == (False, 0)
        assert "was changed" in verdict.problem

    def test_missing(self, text: Path) -> None:
        """The same."""
        text.unlink()
        assert "is missing" in verify(directory()).problem

    def test_none_is_named(self) -> None:
        """No path leads out of where they are."""
        record("plan", run="r", plan="sha256:../../etc/passwd")
        assert verify(directory()).problem == "it names no plan"


class TestManyWriters:
    """Processes that write at once, and are killed at any moment."""

    def test_nothing_acknowledged_is_lost(self, tmp_path: Path) -> None:
        """Eight writers, each killed again and again, until a hundred thousand are written; then the log is whole."""
        total = 100_000
        path, dice = tmp_path / "audit", random.Random(7)
        acknowledged: dict[str, int] = {}
        running: dict[str, subprocess.Popen[bytes]] = {}
        begun = 0
        deadline = time.monotonic() + 150
        while sum(acknowledged.values()) < total or running:
            assert time.monotonic() < deadline
            while len(running) < 8 and sum(acknowledged.values()) < total:
                name = f"w{begun}"
                begun += 1
                command = [sys.executable, "-c", WRITER, str(path), name, str(dice.randrange(50, max(60, total // 8)))]
                running[name] = subprocess.Popen(command, stdout=subprocess.PIPE)
            time.sleep(dice.random() * 0.2)
            victim = dice.choice(list(running))
            if dice.random() < 0.5:
                running[victim].send_signal(signal.SIGKILL)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    assert process.stdout is not None
                    told = process.stdout.read().splitlines()
                    process.stdout.close()
                    acknowledged[name] = int(told[-1]) if told else 0
                    del running[name]
        verdict = verify(str(path))
        assert verdict.ok, verdict
        seen: dict[str, list[int]] = {}
        for one in records(str(path)):
            seen.setdefault(one["writer"], []).append(one["number"])
        for name, count in acknowledged.items():
            numbers = seen.get(name, [])
            assert numbers == list(range(len(numbers))), "in order, none twice"
            assert len(numbers) >= count, "what was acknowledged is there"
        assert verdict.records >= total

    def test_a_forked_process_writes_on_its_own(self, tmp_path: Path) -> None:
        """Both have the lock for themselves."""
        log = write(tmp_path, 1)
        pids = []
        for name in range(4):
            pid = os.fork()
            if pid == 0:
                for number in range(50):
                    log.append({"event": "child", "name": name, "number": number})
                os._exit(0)
            pids.append(pid)
        for number in range(50):
            log.append({"event": "parent", "number": number})
        assert all(os.waitpid(pid, 0)[1] == 0 for pid in pids)
        verdict = verify(str(tmp_path))
        assert (verdict.ok, verdict.records) == (True, 251)

    def test_forked_while_another_thread_writes(self, tmp_path: Path) -> None:
        """That thread is not in the child, and what it held there is nobody's."""
        log = write(tmp_path, 1)
        log._lock.acquire()
        fcntl.flock(log._head, fcntl.LOCK_EX)
        pid = os.fork()
        if pid == 0:
            try:
                log.append({"event": "child"})
            finally:
                os._exit(0)
        fcntl.flock(log._head, fcntl.LOCK_UN)
        log._lock.release()
        until = time.monotonic() + 10
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                pytest.fail("the child hangs")
            time.sleep(0.01)
        assert [one["event"] for one in records(str(tmp_path))] == ["test", "child"]

    def test_a_parent_that_dies_with_the_lock(self, tmp_path: Path) -> None:
        """Its children, which write nothing, do not hold it for the rest of their lives."""
        parent = """
import fcntl, os, sys
from belljar.audit.log import AuditLog
log = AuditLog(sys.argv[1])
log.append({"event": "first"})
fcntl.flock(log._head, fcntl.LOCK_EX)
pid = os.fork()
if pid == 0:
    import signal
    os.close(1)
    signal.pause()
print(pid)
"""
        command = [sys.executable, "-c", parent, str(tmp_path)]
        child = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
        try:
            with (tmp_path / "head").open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_clock_that_goes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records stay in order, and in the file of the day that had begun."""
    moments = iter([86_400.0 * 20_000, 86_400.0 * 20_001 + 5, 86_400.0 * 20_000 + 7, 86_400.0 * 20_002])
    monkeypatch.setattr("belljar.audit.log.time.time", lambda: next(moments))
    log = AuditLog(str(tmp_path))
    for number in range(4):
        log.append({"event": "test", "number": number})
    assert verify(str(tmp_path)).ok
    assert [one["number"] for one in records(str(tmp_path))] == [0, 1, 2, 3]
    assert day_files(str(tmp_path)) == ["2024-10-04.jsonl", "2024-10-05.jsonl", "2024-10-06.jsonl"]


FULL = """
import os, sys
from belljar.audit.log import AuditLog
from belljar.audit.retention import prune
from belljar.audit.verify import verify
from belljar.errors import AuditError, UsageError
path = sys.argv[1]
log = AuditLog(path)
written = refused = 0
while refused < 5:
    try:
        log.append({"event": "test", "text": "x" * 3000}, {"event": "second", "text": "y" * 3000})
        written += 2
    except AuditError as error:
        refused += 1
        last = str(error)
verdict = verify(path)
assert verdict.ok, verdict
assert verdict.records == written, (verdict, written)
os.unlink(os.path.join(os.path.dirname(path), "ballast"))
log.append({"event": "again"})
assert verify(path).records == written + 1
print(last)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk has to be mounted, which only root may do")
def test_a_full_disk(tmp_path: Path) -> None:
    """It refuses with what to do, all or nothing, and harms no record; with room, it goes on."""
    mounted = f"mount -t tmpfs -o size=256k none {tmp_path} && head -c 100000 /dev/zero >{tmp_path}/ballast"
    inside = f"{mounted} && exec {sys.executable} -c"
    command = ["unshare", "--mount", "sh", "-c", f'{inside} "$0" "$1"', FULL, str(tmp_path / "audit")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "can't be written: No space left on device" in done.stdout
    assert "hint: nothing runs unrecorded" in done.stdout


class TestDescriptors:
    """The program that belljar is in may do anything to them."""

    def test_closed_and_used_for_something_else(self, tmp_path: Path) -> None:
        """Nothing is written into another's file."""
        log = write(tmp_path / "audit", 2)
        for descriptor in (log._head, log._file):
            os.close(descriptor)
        others = [os.open(tmp_path / f"other{number}", os.O_RDWR | os.O_CREAT) for number in range(3)]
        log.append({"event": "third"})
        for descriptor in others:
            os.close(descriptor)
        assert [(tmp_path / f"other{number}").read_bytes() for number in range(3)] == [b"", b"", b""]
        assert verify(str(tmp_path / "audit")).records == 3

    def test_let_go_of_when_the_log_is_another(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A program that changes its state directory again and again has one log open."""
        record("first")
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path / str(number)))
            record("another")
        assert len(os.listdir("/proc/self/fd")) == before

    @pytest.mark.parametrize("names", [["head"], ["day"], ["head", "day"]], ids="+".join)
    def test_removed(self, tmp_path: Path, names: list[str]) -> None:
        """What is written later has a name; and what is gone is told, as long as the head or the file is there."""
        log = write(tmp_path, 2)
        for name in names:
            (day_file(tmp_path) if name == "day" else tmp_path / name).unlink()
        log.append({"event": "third"})
        log.append({"event": "fourth"})
        assert [one["event"] for one in records(str(tmp_path))][-2:] == ["third", "fourth"]
        assert verify(str(tmp_path)).ok is (names != ["day"])


def test_a_directory_that_is_none(tmp_path: Path) -> None:
    """What can't be recorded does not happen."""
    (tmp_path / "audit").write_text("in the way")
    with pytest.raises(AuditError, match="can't be written"):
        AuditLog(str(tmp_path / "audit")).append({"event": "test"})


def test_heads() -> None:
    """What is no head is none."""
    from belljar.audit.chain import Link

    head = Head(Link(7, "a" * 64), "2026-01-31", 99)
    assert read_head(head.encode()) == head
    assert read_head(b"") is None
    assert read_head(head.encode()[:-1] + b"\0") is None


def test_what_is_no_record() -> None:
    """Nothing that a file may hold is a fault of belljar's."""
    for line in (b"", b"\n", b"{}", b"[" * 100_000, b'{"digest":"' + b"0" * 64 + b'"}', b"\xff" * 200):
        with pytest.raises(BrokenRecordError):
            decode(line)
    assert json.loads('{"a": 1}') == {"a": 1}


class TestRetention:
    """Old days go, and what is left can be verified."""

    @pytest.fixture
    def days(self) -> Path:
        """A log of four days, the last of which is today."""
        now = time.time()
        moments = [now - 86_400 * back for back in (40, 20, 10, 0) for _ in range(3)]
        for moment in moments:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("belljar.audit.log.time.time", lambda moment=moment: moment)
                record("test", text="x" * 1000)
        return Path(directory())

    def test_by_age(self, days: Path) -> None:
        """Days before that; the chain begins later, and is whole."""
        assert len(prune(older_days=15).files) == 2
        verdict = verify(str(days))
        assert (verdict.ok, verdict.records) == (True, 7), verdict
        assert [one["event"] for one in records(str(days))][-1] == "pruned"
        assert prune(older_days=15).files == ()

    def test_by_size(self, days: Path) -> None:
        """The oldest, until the rest is small enough; never the day that is being written."""
        prune(most_bytes=8000)
        assert len(day_files(str(days))) == 2
        prune(most_bytes=1)
        assert len(day_files(str(days))) == 1
        assert verify(str(days)).ok

    def test_killed_between(self, days: Path) -> None:
        """The anchor is there, and the files are still: in order, and the next one removes them."""
        kept = {path: path.read_bytes() for path in days.glob("*.jsonl")}
        prune(older_days=15)
        for path, content in kept.items():
            if not path.exists():
                path.write_bytes(content)
        assert verify(str(days)).ok
        prune(older_days=15)
        assert len(day_files(str(days))) == 2

    def test_while_it_is_verified(self, days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who reads the log meanwhile begins anew where it begins now."""
        monkeypatch.setattr("belljar.audit.verify._TOLD_AT_ONCE", 1)
        told: list[int] = []

        def seen(count: int) -> None:
            told.append(count)
            if len(told) == 1:
                prune(older_days=15)

        verdict = verify(str(days), seen)
        assert (verdict.ok, verdict.records) == (True, 7), verdict

    def test_what_is_left_cannot_be_cut(self, days: Path) -> None:
        """Removing the first day that is left is found."""
        prune(older_days=15)
        (days / day_files(str(days))[0]).unlink()
        assert not verify(str(days)).ok

    @pytest.mark.parametrize("text", ["", "nothing", "{}", '{"seq": "x", "digest": "", "through": ""}', "[" * 100_000])
    def test_a_damaged_anchor(self, days: Path, text: str) -> None:
        """Is what is named, and not a record that is as it was."""
        prune(older_days=15)
        (days / "anchor").write_text(text)
        verdict = verify(str(days))
        assert (verdict.ok, verdict.records, verdict.where) == (False, 0, "anchor")
        assert "where the log begins can't be told" in verdict.problem

    def test_an_anchor_that_was_removed(self, days: Path) -> None:
        """Then records are missing before the first."""
        prune(older_days=15)
        (days / "anchor").unlink()
        assert "records 1 to 6 are missing" in verify(str(days)).problem

    def test_a_log_that_is_not_in_order_stays(self, days: Path) -> None:
        """Removing could hide what happened."""
        first = days / day_files(str(days))[0]
        first.write_bytes(first.read_bytes().replace(b"xxx", b"yyy", 1))
        with pytest.raises(UsageError, match="nothing of it is removed"):
            prune(older_days=15)
        assert len(day_files(str(days))) == 4
