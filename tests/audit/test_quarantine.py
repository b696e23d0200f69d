"""Quarantine at the command line, of every kind of run; and bundles that someone has tampered with."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit import killswitch
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.cli.runs.quarantine import _move
from belljar.errors import SandboxUnavailableError, UsageError
from belljar.sandbox.files.snapshot_files import SnapshotFiles
from belljar.sandbox.incident.evidence_archive import EvidenceArchiveWriter
from belljar.sandbox.incident.evidence_archive_reading import EvidenceArchive
from belljar.sandbox.incident.quarantine import take_ended
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.remote import _ask, _owners, kill, order, running

pytestmark = pytest.mark.backend("bubblewrap")
BELLJAR = [sys.executable, "-m", "belljar"]
UP = "import os, time; open('made', 'w').write('x'); os.write(1, b'up: someone@example.org\\n'); time.sleep(1000)"
"""Code that has a file and has printed, and then waits."""


def belljar(*words: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    return subprocess.run([*BELLJAR, *words], capture_output=True, text=True, check=False, timeout=100)


@contextmanager
def another_process(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A run of another program, and its name."""
    with subprocess.Popen(
        [*BELLJAR, "run", *options, "-c", UP], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as owner:
        try:
            assert owner.stdout is not None
            owner.stdout.readline()
            (one,) = running()
            yield owner, str(one["run"])
        finally:
            owner.kill()


class TestCommand:
    """`belljar quarantine` and `quarantine open`."""

    def test_a_run_of_another_process(self, tmp_path: Path) -> None:
        """It is killed, whoever waits for it hears why, and what was taken can be looked at."""
        with another_process() as (owner, run_id):
            done = belljar("quarantine", run_id, "--reason", "it looks wrong", "--output", str(tmp_path / "taken"))
            assert done.returncode == 0, done.stderr
            assert done.stdout == f"{tmp_path / 'taken'}\n"
            assert "stood still, by " in done.stderr
            assert "it is killed" in done.stderr
            _out, err = owner.communicate(timeout=60)
            assert owner.returncode == 137
            assert "quarantined: it looks wrong" in err
        assert (tmp_path / "taken").stat().st_mode & 0o777 == 0o600
        assert os.listdir(Path(os.environ["BELLJAR_STATE_DIR"], "quarantine")) == []
        shown = belljar("quarantine", "open", str(tmp_path / "taken"))
        assert shown.returncode == 0
        for words in ("it looks wrong", "has this bundle", "files/made", "policy.json"):
            assert words in shown.stdout
        told = json.loads(belljar("quarantine", "open", str(tmp_path / "taken"), "--json").stdout)
        assert (told["problems"], told["recorded"], told["manifest"]["run"]) == ([], True, run_id)

    def test_what_it_printed_has_tokens(self, tmp_path: Path) -> None:
        """As everything that is stored; the code is as it was, as it is stored anyway."""
        with another_process() as (_owner, run_id):
            belljar("quarantine", run_id, "--output", str(tmp_path / "taken"))
        assert (
            belljar("quarantine", "open", str(tmp_path / "taken"), "--file", "output/stdout").stdout
            == "up: <EMAIL_1>\n"
        )
        assert belljar("quarantine", "open", str(tmp_path / "taken"), "--file", "code").stdout == UP
        assert belljar("quarantine", "open", str(tmp_path / "taken"), "--file", "files/made").stdout == "x"
        for wrong in ("files/none", "files/../x", "nothing", "../../etc/passwd"):
            done = belljar("quarantine", "open", str(tmp_path / "taken"), "--file", wrong)
            assert done.returncode == 2
            assert "Traceback" not in done.stderr

    def test_it_is_seen_to_stand_still(self) -> None:
        """In the list of what runs, until it goes on."""
        with another_process() as (_owner, run_id):
            for then, state in (("--keep-frozen", "frozen"), ("--resume", "running")):
                assert belljar("quarantine", run_id, then).returncode == 0
                assert f"{run_id}  {state}" in belljar("ps").stdout
                assert f"{run_id}  {state}" in belljar("ps", "--all").stdout

    @pytest.mark.parametrize(("ratio", "output"), [(0, None), (1, b"1\n")], ids=["not stored", "stored"])
    def test_what_a_run_had_printed(self, ratio: int, output: bytes | None) -> None:
        """Is in the bundle of one that has ended, if it was stored; else it is told why not."""
        with Sandbox({"logging": {"sample_ratio": ratio}}) as jar:
            taken = take_ended(jar.run("print(1)").run_id, reason="a test")
        assert ("sample_ratio" in taken.missing.get("output", "")) == (output is None)
        with EvidenceArchive(taken.path) as bundle:
            assert bundle.read("output/stdout", 100) == (output or b"")

    def test_many_at_once(self) -> None:
        """Each has a bundle of its own, though all want the same name."""
        with Sandbox() as jar:
            run_id = jar.run("print(1)").run_id
        words = [*BELLJAR, "quarantine", run_id]
        many = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(4)]
        paths = {one.communicate(timeout=60)[0].strip() for one in many}
        assert [one.returncode for one in many] == [0] * 4
        assert len(paths) == 4
        for path in paths:
            assert belljar("quarantine", "open", path).returncode == 0

    def test_what_was_left_unfinished(self) -> None:
        """By a process that was killed is removed a day later; what someone may be writing stays, and all else."""
        with Sandbox() as jar:
            run_id = jar.run("print(1)").run_id
        place = Path(take_ended(run_id, reason="a test").path).parent
        old = [place / f"{run_id}.tar.12-0a0b0c0d", place / f"{run_id}.tar.files.12-0a0b0c0d"]
        stay = [
            place / f"{run_id}.tar.13-0a0b0c0d",
            place / "mine.tar",
            place / "x.tar.bak",
            place / "l.tar.1-0a0b0c0d",
        ]
        for path in old + stay[:3]:
            path.write_text("half of it")
        stay[3].symlink_to(stay[1])
        for path in old + stay[1:]:
            os.utime(path, (0, 0), follow_symlinks=False)
        take_ended(run_id, reason="a test")
        assert {*place.iterdir()} == {place / f"{run_id}.tar", place / f"{run_id}-2.tar", *stay}

    def test_snapshots_of_one_name(self) -> None:
        """At once, by several: one has it, and the others are told."""
        with Sandbox() as jar, jar.stream(UP) as stream:
            next(stream)
            (one,) = running()
            words = [*BELLJAR, "snapshot", str(one["run"]), "--name", "here"]
            handle, _details = CONTROL._runs[one["run"]]
            with handle.looking:  # so that all have seen that there is none
                many = [subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) for _ in range(3)]
                with pytest.raises(subprocess.TimeoutExpired):
                    many[0].wait(timeout=3)
            for process in many:
                process.communicate(timeout=60)
            assert sorted(process.returncode for process in many) == [0, 2, 2]

    def test_the_environment_has_tokens(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wherever in the bundle it stands, what the policy sets and what it lets in; while it runs, and later."""
        monkeypatch.setenv("OURS", "someone@example.org")
        words = ["env.set.THEIRS=other@example.org", "env.pass=[OURS]"]
        with Sandbox(overrides=words) as jar, jar.stream("print(1); import time; time.sleep(1000)") as stream:
            next(stream)
            (one,) = running()
            paths = [order("quarantine", str(one["run"]), reason="a test", then="kill")["path"]]
            list(stream)
        paths.append(take_ended(str(one["run"]), reason="a test").path)
        for path in paths:
            with EvidenceArchive(path) as bundle:
                assert bundle.problems() == []
                for name in ("policy.json", "plan.json", "environment.json"):
                    assert b"THEIRS" in bundle.read(name, 1 << 20)
            assert b"@example.org" not in Path(path).read_bytes()

    def test_holes_and_hard_links_cost_no_evidence(self, tmp_path: Path) -> None:
        """Files that look larger than a jar may hold, by holes or by many names: the rest is kept, and that is said.

        `open` writes a file with its holes, and prints no hours of zeros.
        """
        code = """
import os, time
for number in range(3):
    hole = os.open(f"hole{number}", os.O_CREAT | os.O_RDWR)
    os.truncate(hole, 200 << 20)
    os.pwrite(hole, b"data", 100 << 20)
open("small", "w").write("here")
os.makedirs("many")
open("many/0", "wb").write(b"x" * (3 << 20))
for number in range(1, 9):
    os.link("many/0", f"many/{number}")
print(1, flush=True)
time.sleep(1000)
"""
        with Sandbox({"fs": {"size_mb": 20}}) as jar, jar.stream(code) as stream:
            next(stream)
            (one,) = running()
            done = order("quarantine", str(one["run"]), reason="a test", then="kill")
            list(stream)
        assert "of the jar's, such as 'many/6'" in done["missing"]["files"]
        with EvidenceArchive(done["path"]) as bundle:
            assert bundle.problems() == []
            part = bundle.parts["files.snapshot"]
            with SnapshotFiles(done["path"], start=part.offset, size=part.size) as files:
                assert {"hole0", "hole1", "hole2", "small", "many/0", "many/5"} < set(files.files)
                assert files.files["hole1"].size == 200 << 20
        words = ("quarantine", "open", str(done["path"]), "--file", "files/hole1")
        with open(tmp_path / "written", "wb") as file:
            subprocess.run([*BELLJAR, *words], stdout=file, check=True)
        status = (tmp_path / "written").stat()
        assert (status.st_size, status.st_blocks * 512 < 1 << 20) == (200 << 20, True)
        with open(tmp_path / "written", "rb") as file:
            assert os.pread(file.fileno(), 6, (100 << 20) - 1) == b"\0data\0"
        refused = belljar(*words)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert "of holes, which would be printed as zeros" in refused.stderr

    def test_a_run_that_has_ended(self) -> None:
        """There is what was stored of it, and what is missing is told."""
        with Sandbox() as jar:
            run_id = jar.run("print(1)").run_id
        done = json.loads(belljar("quarantine", run_id, "--json").stdout)
        assert done["then"] == "ended"
        assert "files.snapshot" in done["missing"]
        with EvidenceArchive(done["path"]) as bundle:
            assert bundle.problems() == []
            assert bundle.read("code", 100) == b"print(1)"
            events = [json.loads(line)["event"] for line in bundle.read("records.jsonl", 1 << 20).splitlines()]
            assert events[-2:] == ["finished", "quarantine"]

    def test_what_makes_no_sense(self, tmp_path: Path) -> None:
        """Says so, and what to type."""
        (tmp_path / "there").touch()
        for words in (
            ("quarantine", "none-such"),
            ("quarantine", "x", "--kill", "--resume"),
            ("quarantine", "x", "--output", str(tmp_path / "there")),
            ("quarantine", "open", str(tmp_path / "there")),
            ("quarantine", "open", str(tmp_path)),
            ("snapshot", "none-such"),
            ("snapshot", "x", "--name", "../x"),
            ("snapshot", "rm", "none-such"),
        ):
            done = belljar(*words)
            assert done.returncode == 2, words
            assert "Traceback" not in done.stderr
            assert done.stdout == ""

    def test_a_snapshot_of_another_process(self) -> None:
        """By the end of its name; listed, and removed."""
        with another_process() as (_owner, run_id):
            assert belljar("snapshot", run_id[-8:], "--name", "one").stdout == "one\n"
            assert "one" in belljar("snapshot", "ls").stdout
        with SnapshotFiles("one") as files:
            assert list(files.files) == ["made"]
        assert "has ended" in belljar("snapshot", run_id).stderr
        assert belljar("snapshot", "rm", "one").returncode == 0
        assert json.loads(belljar("snapshot", "ls", "--json").stdout) == []


class TestKinds:
    """Runs that are not a Sandbox's."""

    def test_of_a_pool(self) -> None:
        """The jar's own workspace; the pool goes on."""
        with Pool(size=2) as pool:
            with pool.stream(UP) as stream:
                assert isinstance(next(stream), Output)
                (one,) = running()
                done = order("quarantine", str(one["run"]), reason="a test", then="kill")
                *_some, last = stream
            assert "quarantined: a test" in last.result.reason  # type: ignore[union-attr]
            assert pool.run("print(1)").stdout == "1\n"
        assert done["still"]
        with EvidenceArchive(done["path"]) as bundle:
            assert b'"made"' in bundle.read("tree.json", 1 << 20)
            assert bundle.read("output/stdout", 100) == b"up: <EMAIL_1>\n"

    def test_of_a_session(self) -> None:
        """Every step's code and output, by the session's name; and its files while it is idle, or has run nothing."""
        with Session() as session:
            assert order("snapshot", session.id, name="empty")["files"] == 0
            session.run("print('one'); open('made', 'w').write('x')")
            session.run("print('two')")
            (one,) = running()
            assert one["session"] == session.id
            done = belljar("snapshot", session.id, "--name", "full")
            assert done.returncode == 0, done.stderr
            assert session.run("40 + 2").value == "42"
            taken = json.loads(belljar("quarantine", session.id, "--json").stdout)
        with EvidenceArchive(taken["path"]) as bundle:
            assert bundle.read("code/2", 100) == b"print('two')"
            assert bundle.read("output/stdout", 100) == b"one\ntwo\n"
        with SnapshotFiles("empty") as first, SnapshotFiles("full") as second:
            assert (list(first.files), list(second.files)) == ([], ["made"])

    def test_a_session_that_was_closed(self) -> None:
        """Is known no more."""
        with Session() as session:
            session.run("1")
        with pytest.raises(UsageError, match="not in progress"):
            order("snapshot", session.id)


class TestFaults:
    """What goes wrong while a run stands still."""

    @pytest.mark.parametrize("who", ["owner", "stage", "launcher"])
    def test_its_processes_are_killed(self, who: str) -> None:
        """Nothing of the run is left, though a process that is frozen does not die of every signal."""
        with another_process() as (owner, run_id):
            assert json.loads(belljar("quarantine", run_id, "--keep-frozen", "--json").stdout)["still"]
            jar = below(owner.pid)
            chosen = {"owner": "python", "stage": "belljar-stage", "launcher": "belljar-launch"}[who]
            (victim,) = [owner.pid] if who == "owner" else [pid for pid, name in jar.items() if name == chosen]
            os.kill(victim, signal.SIGKILL)
            owner.communicate(timeout=60)
            deadline = time.monotonic() + 20
            while left := [f"{pid} {name}" for pid, name in jar.items() if is_alive(pid)]:
                assert time.monotonic() < deadline, left
                time.sleep(0.02)

    def test_there_is_no_room(self) -> None:
        """The error says so, the run stands still, and nothing half is left."""
        with Sandbox() as jar, jar.stream(UP) as stream:
            next(stream)
            (one,) = running()
            place = Path(os.environ["BELLJAR_STATE_DIR"], "quarantine")
            for then, words in (
                ("resume", "the run: it goes on"),
                ("kill", f"still until `belljar kill {one['run']}`"),
            ):
                with no_file_beyond(12 << 10), pytest.raises(SandboxUnavailableError, match="File too large") as told:
                    order("quarantine", str(one["run"]), reason="a test", then=then)
                assert words in told.value.hint
                assert CONTROL._runs[one["run"]][0].kept_still == (then == "kill")
            assert list(place.iterdir()) == []
            assert running()
            assert "quarantined" not in [record["event"] for record in records(directory())]
            kill(str(one["run"]), "enough")

    def test_there_is_no_room_elsewhere(self, tmp_path: Path) -> None:
        """Where it was to be put: nothing half is left there, and the error says where the bundle is."""
        (tmp_path / "bundle").write_bytes(bytes(64 << 10))
        with no_file_beyond(12 << 10), pytest.raises(UsageError, match="File too large") as told:
            _move(str(tmp_path / "bundle"), str(tmp_path / "there"))
        assert str(tmp_path / "bundle") in told.value.hint
        assert [path.name for path in tmp_path.iterdir()] == ["bundle"]

    def test_nothing_else_waits_for_it(self) -> None:
        """While evidence is being taken, the process answers, and what it runs can be killed."""
        with Sandbox() as jar, jar.stream(UP) as stream:
            next(stream)
            (one,) = running()
            handle, _details = CONTROL._runs[one["run"]]
            with handle.looking:  # as someone who takes long
                ((_pid, name),) = _owners()
                wanted = {"op": "quarantine", "run": one["run"], "reason": "a test", "then": "kill"}
                assert _ask(name, wanted, 0.5) is None
                assert running() == [one]
                handle.kill("enough")
                end = next(event for event in stream if isinstance(event, Finished))
            assert end.result.reason == "it was ended: enough"

    @pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # that is what is tried
    def test_the_program_forks_meanwhile(self) -> None:
        """What its child lets go of waits for nobody: the thread that looks into the run is not there."""
        with Sandbox() as jar, jar.stream(UP) as stream:
            next(stream)
            ((handle, _details),) = CONTROL._runs.values()
            with handle.looking:
                if (child := os.fork()) == 0:
                    os._exit(0 if handle.looking.acquire(blocking=False) else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                assert not handle.looking.acquire(blocking=False)

    def test_orders_that_make_no_sense(self) -> None:
        """Get no answer; and after each of them the process still answers, and sees the kill switch."""
        with Sandbox() as jar, jar.stream(UP) as stream:
            next(stream)
            (one,) = running()
            ((_pid, name),) = _owners()
            for place in ({"stdout": [0, float("inf")], "stderr": [0, 0]}, [], {"stdout": "x"}, None):
                assert _ask(name, {"op": "output", "run": one["run"], "place": place}) is None
                assert running() == [one]
            killswitch.turn_on("a test")
            end = next(event for event in stream if isinstance(event, Finished))
            assert end.result.reason == "it was ended: the kill switch is on: a test"


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """The kernel lets this process write no larger file: as on a disk that is full, but for the log's short lines."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def below(pid: int) -> dict[int, str]:
    """Every process below, by name; each is looked for by number and start."""
    found: dict[int, str] = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        found[int(child)] = Path(f"/proc/{child}/comm").read_text().strip()
        found |= below(int(child))
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# --- bundles ---


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A small one, as belljar writes it."""
    with EvidenceArchiveWriter(str(tmp_path / "bundle.tar")) as writer:
        writer.add("policy.json", b"{}")
        writer.add("output/stdout", b"x" * 700)
        writer.finish({"run": "0123", "reason": "a test"})
    return tmp_path / "bundle.tar"


def found_wrong(path: Path) -> bool:
    """Whether it is told that the bundle is not as it was."""
    try:
        with EvidenceArchive(str(path)) as opened:
            return bool(opened.problems())
    except UsageError:
        return True


class TestTampered:
    """A bundle that is not as belljar wrote it."""

    def test_as_it_was(self, bundle: Path) -> None:
        """The control: nothing is wrong with it, and `tar` can read it, too."""
        assert not found_wrong(bundle)
        with tarfile.open(bundle) as archive:
            assert archive.getnames() == ["policy.json", "output/stdout", "manifest.json"]

    def test_any_changed_byte(self, bundle: Path) -> None:
        """Wherever it is: content, headers, the manifest, what lies between."""
        whole, chance = bundle.read_bytes(), random.Random(7)
        places = {*range(700), *chance.sample(range(len(whole)), 1500)}
        unnoticed = []
        for place in sorted(places):
            changed = bytearray(whole)
            changed[place] ^= 1 << chance.randrange(8)
            bundle.write_bytes(changed)
            if not found_wrong(bundle):
                unnoticed.append(place)
        assert unnoticed == []

    def test_cut_off_or_longer(self, bundle: Path) -> None:
        """At any length, and with something behind it."""
        whole = bundle.read_bytes()
        end = len(whole.rstrip(b"\0"))
        for length in (0, 1, 511, 512, 600, 1500, end - 1, end):
            bundle.write_bytes(whole[:length])
            assert found_wrong(bundle), length
        bundle.write_bytes(whole + b"x")
        assert found_wrong(bundle)

    FORGED: dict[str, dict[str, Any]] = {
        "a path that climbs": {"name": "../code"},
        "an absolute path": {"name": "/tmp/code"},
        "another name": {"name": "run.sh"},
        "a link": {"name": "code", "type": tarfile.SYMTYPE, "linkname": "/etc/passwd"},
        "a hard link": {"name": "code", "type": tarfile.LNKTYPE, "linkname": "policy.json"},
        "a device": {"name": "code", "type": tarfile.CHRTYPE, "devmajor": 1, "devminor": 3},
        "a directory": {"name": "code", "type": tarfile.DIRTYPE},
        "a file with holes": {"name": "code", "type": tarfile.GNUTYPE_SPARSE},
        "a second manifest": {"name": "manifest.json"},
        "what the manifest does not list": {"name": "code"},
    }

    @pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
    def test_what_no_bundle_holds(self, bundle: Path, tmp_path: Path, forged: dict[str, Any]) -> None:
        """Is told, nothing is written, and the exit code is not 0."""
        with tarfile.open(bundle) as archive:
            kept = [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
        with tarfile.open(bundle, "w", format=tarfile.USTAR_FORMAT) as archive:
            for member, data in kept[:1]:
                archive.addfile(member, io.BytesIO(data))
            evil = tarfile.TarInfo()
            for name, value in forged.items():
                setattr(evil, name, value)
            archive.addfile(evil)
            for member, data in kept[1:]:
                archive.addfile(member, io.BytesIO(data))
        before = sorted(tmp_path.iterdir())
        for more in ((), ("--json",), ("--file", "code")):
            done = belljar("quarantine", "open", str(bundle), *more)
            assert done.returncode != 0
            assert "Traceback" not in done.stderr
        assert sorted(tmp_path.iterdir()) == before

    def test_larger_than_it_is(self, bundle: Path) -> None:
        """A header that says eight gigabytes is not believed."""
        whole = bytearray(bundle.read_bytes())
        whole[124:136] = b"77777777777\0"
        whole[148:156] = b" " * 8
        whole[148:156] = f"{sum(whole[:512]):06o}\0 ".encode()
        bundle.write_bytes(whole)
        with pytest.raises(UsageError, match="larger than the bundle"):
            EvidenceArchive(str(bundle))

    def test_all_written_anew(self, tmp_path: Path) -> None:
        """A forger who makes all checksums right is found by the audit log, which has the digest of the bundle."""
        with Sandbox() as jar:
            run_id = jar.run("print(1)").run_id
        taken = take_ended(run_id, reason="a test")
        assert belljar("quarantine", "open", taken.path).returncode == 0
        with EvidenceArchive(taken.path) as opened, EvidenceArchiveWriter(str(tmp_path / "forged")) as writer:
            for name in opened.parts:
                if name not in ("manifest.json", "code"):
                    writer.add(name, opened.read(name, 1 << 20))
            writer.add("code", b"print('harmless')")
            writer.finish({"run": run_id, "reason": "a test"})
        assert not found_wrong(tmp_path / "forged")
        done = belljar("quarantine", "open", str(tmp_path / "forged"))
        assert done.returncode == 1
        assert "the audit log has another digest" in done.stderr

    def test_hostile_words(self, tmp_path: Path) -> None:
        """In a manifest that is right in itself, nothing reaches a terminal."""
        with EvidenceArchiveWriter(str(tmp_path / "bundle")) as writer:
            writer.finish(
                {"run": "\x1b[2J", "reason": "\x1b]0;x\x07\u202e", "missing": {"\x1b": "\x1b"}, "created": 1e300}
            )
        done = belljar("quarantine", "open", str(tmp_path / "bundle"))
        assert done.returncode == 0, done.stderr
        assert not set("\x1b\x07\u202e") & set(done.stdout + done.stderr)

    def test_a_name_that_is_no_text(self, tmp_path: Path) -> None:
        """Half of a character, which JSON can say, is looked up in the audit log like any other name."""
        with Sandbox() as jar:
            jar.run("1")  # so that there is a log
        with EvidenceArchiveWriter(str(tmp_path / "bundle")) as writer:
            writer.finish({"run": "\ud800"})
        done = belljar("quarantine", "open", str(tmp_path / "bundle"))
        assert done.returncode == 0, done.stderr
        assert "does not know it" in done.stdout
