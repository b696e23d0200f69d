"""What the audit log has of real runs, and what can be done with it: the store, replaying, ending runs from outside."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit import killswitch, stored
from belljar.audit.log import audit_log, directory
from belljar.audit.reading import records
from belljar.audit.state import state_directory
from belljar.audit.store import RunStore
from belljar.audit.verify import verify
from belljar.backends.contract import End, Process, Status
from belljar.errors import AuditError, KillSwitchError, UsageError
from belljar.policy.resolve import resolve
from belljar.sandbox import recording
from belljar.sandbox.control import control_directory
from belljar.sandbox.events import Finished, Output
from belljar.sandbox.lifecycle import settle
from belljar.sandbox.remote import kill, running
from belljar.sandbox.replay import replay
from belljar.sandbox.result import Outcome, RunResult
from belljar.sandbox.running import Watch

pytestmark = pytest.mark.backend("bubblewrap")


def told(run_id: str) -> list[str]:
    """The events of a run."""
    return [record["event"] for record in records(directory()) if record.get("run") == run_id]


def run_one(code: str, **options: Any) -> RunResult:
    """In a Sandbox of its own."""
    with Sandbox(options.pop("policy", None), one_shot=True) as jar:
        return jar.run(code, **options)


class TestEvents:
    """Each run, before it starts and when it has ended."""

    def test_of_a_run(self) -> None:
        """In order, with the policy's text stored beside it, under its digest."""
        result = run_one("open('made', 'w').write('x')")
        assert told(result.run_id) == ["created", "plan", "started", "canaries", "artifacts", "finished"]
        found = {record["event"]: record for record in records(directory())}
        assert found["policy"]["policy"] == found["created"]["policy"] == result.policy_digest
        text = stored.load(stored.policies(), result.policy_digest.removeprefix("sha256:"), ".json")
        assert text is not None
        assert json.loads(text)["proc"]["mem_mb"] == 1024
        assert found["finished"]["outcome"] == "ok"
        assert found["finished"]["peak_memory_bytes"] > 0
        assert verify(directory()).ok

    def test_it_is_there_before_the_code(self) -> None:
        """When the first byte of output arrives, the start is in the log, and the end is not."""
        with Sandbox() as jar:
            for event in jar.stream("print(1, flush=True); input()", stdin="\n"):
                last = [record["event"] for record in records(directory())][-1]
                assert last == ("started" if isinstance(event, Output) else "finished")

    ENDS = (
        ("while True: pass", {"proc": {"timeout_ms": 300}}, "limit"),
        ("x = bytearray(1 << 30)", {"proc": {"mem_mb": 64}}, "limit"),
        ("import ctypes; ctypes.CDLL(None).ptrace(0, 0, 0, 0)", {}, "denied"),
    )

    @pytest.mark.parametrize(("code", "policy", "event"), ENDS, ids=["time", "memory", "system call"])
    def test_limits_and_denials(self, code: str, policy: dict[str, Any], event: str) -> None:
        """Are records of their own."""
        result = run_one(code, policy=policy)
        by_group = result.enforcement.clause("proc.mem_mb").status is Status.ENFORCED
        assert event in told(result.run_id) or ("bytearray" in code and not by_group), result

    def test_what_is_passed_on_is_written_nowhere(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A value of the caller's environment may be any secret; its name is in the plan."""
        monkeypatch.setenv("DATABASE_WORD", "hunter-of-ducks")
        result = run_one("import os; assert os.environ['DATABASE_WORD']", policy={"env": {"pass": ["DATABASE_WORD"]}})
        assert result.ok, result.stderr
        files = [path.read_bytes() for path in Path(state_directory()).rglob("*") if path.is_file()]
        assert any(b"DATABASE_WORD" in content for content in files)
        assert not any(b"hunter-of-ducks" in content for content in files)

    def test_a_refusal(self) -> None:
        """Of a policy that can't be enforced here."""
        with Sandbox({"backend": "unconfined"}) as jar:
            result = jar.run("1")
        assert result.outcome is Outcome.REFUSED
        assert told(result.run_id) == ["created", "plan", "refused"]
        found = {record["event"]: record for record in records(directory()) if record.get("run") == result.run_id}
        text = stored.load(stored.policies(), found["created"]["policy"].removeprefix("sha256:"), ".json")
        assert text is not None
        assert found["created"]["backend"] == "unconfined"
        assert stored.load_input(found["created"]["code"]) == b"1"
        again = replay(result.run_id)
        assert (again.result.outcome, again.differences) == (Outcome.REFUSED, ())

    def test_a_jar_that_does_not_hold(self) -> None:
        """What the canaries found is told; that they were tried is only told if they were."""
        plan = Sandbox().plan("1")
        end = End(137, None, "canary", ("a hole",), False, 0.0, 0, None, None, None, 0, 0, ())
        recording.begin("0", "run", recording.Begun(resolve(), plan), plan, language="python")
        settle(
            resolve(),
            plan,
            Watch(cast("Process", None), 0),
            end,
            run_id="0",
            report=plan.report,
            started=0.0,
            artifacts=(),
            fallback_from=(),
        )
        (canaries,) = [one for one in records(directory()) if one["event"] == "canaries" and one["run"] == "0"]
        assert (canaries["held"], canaries["problems"]) == (False, ["a hole"])

    def test_of_a_pool(self) -> None:
        """Every run has the same records there."""
        with Pool(size=2) as pool:
            results = [pool.run(f"print({n})") for n in range(3)]
        for result in results:
            assert told(result.run_id) == ["created", "plan", "started", "canaries", "finished"]
        assert len({record["plan"] for record in records(directory()) if record["event"] == "plan"}) == 1

    def test_of_a_session(self) -> None:
        """Its run, its steps and its snapshots."""
        with Session() as session:
            session.run("1")
            session.run("1 / 0")
            session.snapshot().remove()
        events = [record["event"] for record in records(directory())]
        steps, kept = ["step", "stepped"], ["snapshot", "snapshotted", "snapshot_removed"]
        assert events[-10:] == ["started", *steps, *steps, *kept, "canaries", "finished"]

    def test_code_is_not_in_the_log(self) -> None:
        """The log goes to others; code lies beside it, under its digest, for its owner alone."""
        result = run_one("password = 'hunter2-in-the-code'")
        text = "".join(path.read_text() for path in Path(directory()).glob("*.jsonl"))
        assert "hunter2" not in text
        created = next(record for record in records(directory()) if record.get("run") == result.run_id)
        assert stored.load_input(created["code"]) == b"password = 'hunter2-in-the-code'"
        (path,) = Path(stored.inputs()).iterdir()
        assert path.stat().st_mode & 0o777 == 0o600

    def test_hostile_names(self) -> None:
        """Files and arguments with line ends, quotes, escapes and formulas in them break no listing and no export."""
        hostile = "=cmd|'\n\x1b[31m\",\u202e\\x"
        with Sandbox(one_shot=True) as jar:
            result = jar.run("import sys; open(sys.argv[1].replace('/', ''), 'w')", args=[hostile])
        assert [artifact.path for artifact in result.artifacts] == [hostile]
        assert verify(directory()).ok
        command = [sys.executable, "-m", "belljar"]
        for words in (
            ["audit", "tail"],
            ["audit", "export", "--format", "csv"],
            ["inspect", result.run_id],
            ["ps", "-a"],
        ):
            done = subprocess.run([*command, *words], capture_output=True, check=True)
            assert b"\x1b" not in done.stdout
            assert b"\n=cmd" not in done.stdout
            assert b",=cmd" not in done.stdout

    def test_what_cannot_be_recorded_does_not_start(self) -> None:
        """The code never runs."""
        Path(os.environ["BELLJAR_STATE_DIR"]).mkdir(parents=True, exist_ok=True)
        Path(directory()).write_text("in the way")
        with Sandbox() as jar:
            with pytest.raises(AuditError, match="nothing runs unrecorded"):
                jar.run("open('ran', 'w')")
            os.unlink(directory())
            assert jar.run("import os; print(os.listdir())").stdout == "[]\n"


class TestStore:
    """An index of the log."""

    def test_what_ran(self) -> None:
        """With how it ended, newest first; by the beginning or the end of its name."""
        first, second = run_one("1"), run_one("import sys; sys.exit(4)")
        with RunStore() as store:
            assert [(row["run"], row["exit_code"]) for row in store.runs()] == [(second.run_id, 4), (first.run_id, 0)]
            for name in (first.run_id, first.run_id[-8:], first.run_id[:20]):
                row = store.run(name)
                assert row is not None
                assert row["run"] == first.run_id
            assert store.run("nothing") is None
            assert [record["event"] for record in store.events(first.run_id)] == told(first.run_id)

    def test_it_catches_up(self) -> None:
        """Each opening has what was written since."""
        run_one("1")
        with RunStore() as store:
            assert len(store.runs()) == 1
        run_one("2")
        with RunStore() as store:
            assert len(store.runs()) == 2

    DAMAGE: dict[str, Callable[[Path], object]] = {
        "overwritten": lambda path: path.write_bytes(os.urandom(40_000)),
        "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
        "a page": lambda path: _spoil(path),
        "another version": lambda path: _another_version(path),
        "emptied": lambda path: path.write_bytes(b""),
    }

    @pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
    def test_damaged_is_made_anew(self, damage: Callable[[Path], object]) -> None:
        """From the log; nothing is lost."""
        result = run_one("1")
        with RunStore() as store:
            path = Path(store.path)
            before = store.runs()
        damage(path)
        with RunStore() as store:
            assert store.runs() == before
            assert store.run(result.run_id) is not None

    def test_only_its_owner_can_read_it(self) -> None:
        """It tells what ran."""
        with RunStore() as store:
            assert os.stat(store.path).st_mode & 0o777 == 0o600


def _spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[4096:8192] = b"\xff" * 4096
    path.write_bytes(data)


def _another_version(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("pragma user_version = 99")
    database.close()


def test_inputs_are_found_among_others() -> None:
    """Also after half of one, which a full disk left."""
    first, second = stored.keep_input(b"one\n64 9\n"), stored.keep_input(b"\0" * 70_000)
    (path,) = Path(stored.inputs()).iterdir()
    with path.open("ab") as file:
        file.write(b"f" * 64 + b" 999999999\nhalf")
    assert stored.load_input(first) == b"one\n64 9\n"
    assert stored.load_input(second) == b"\0" * 70_000
    assert stored.load_input("0" * 64) is None


def metrics() -> list[Any]:
    """What Prometheus would read."""
    from prometheus_client.parser import text_string_to_metric_families

    text = subprocess.run([sys.executable, "-m", "belljar", "metrics"], capture_output=True, check=True, text=True)
    return [one for family in text_string_to_metric_families(text.stdout) for one in family.samples]


class TestMetrics:
    """Numbers for Prometheus, of every process."""

    def test_counts(self) -> None:
        """As the log has them."""
        run_one("1")
        run_one("import sys; sys.exit(1)")
        run_one("while True: pass", policy={"proc": {"timeout_ms": 200}})
        samples = metrics()
        runs = {one.labels["outcome"]: one.value for one in samples if one.name == "belljar_runs_total"}
        assert runs == {"ok": 1, "failed": 1, "timeout": 1}
        counted = {one.name: one.value for one in samples if not one.labels or set(one.labels) == {"backend"}}
        assert counted["belljar_run_seconds_count"] == 3
        assert counted["belljar_limits_total"] == 1
        assert counted["belljar_audit_records_total"] == len(list(records(directory())))
        buckets = [one.value for one in samples if one.name == "belljar_run_seconds_bucket"]
        assert buckets == sorted(buckets)

    def test_starts_bytes_and_lag(self) -> None:
        """How long runs take to start, what they printed and read, and how soon what the proxy decided is recorded."""
        result = run_one("print('x' * 999)")
        with Session() as session:
            session.run("import sys; print('y' * 99); print('z' * 9, file=sys.stderr)")
        asks = "import socket\ntry: socket.create_connection(('nowhere.example.com', 443))\nexcept OSError: pass"
        run_one(asks, policy={"net": {"enabled": True, "allowlist": ["api.example.com"]}})
        samples = metrics()
        started = {one.labels["kind"]: one.value for one in samples if one.name == "belljar_run_start_seconds_count"}
        assert started == {"run": 2, "session": 1}
        (took,) = [
            one.value
            for one in samples
            if one.name == "belljar_run_start_seconds_sum" and one.labels["kind"] == "session"
        ]
        assert 0 < took < 60
        (start,) = [
            r["start_seconds"] for r in records(directory()) if r.get("run") == result.run_id and "outcome" in r
        ]
        assert 0 < start < result.duration
        printed = {one.labels["stream"]: one.value for one in samples if one.name == "belljar_output_bytes_total"}
        assert printed == {"stdout": 1100, "stderr": 10}
        moved = {one.labels["direction"]: one.value for one in samples if one.name == "belljar_io_bytes_total"}
        assert moved["read"] > 1000
        assert moved["written"] >= 1000
        (lags,) = [one.value for one in samples if one.name == "belljar_audit_lag_seconds_count"]
        assert lags == sum(record["event"] == "egress" for record in records(directory())) > 0
        (within,) = [
            one.value for one in samples if one.name == "belljar_audit_lag_seconds_bucket" and one.labels["le"] == "60"
        ]
        assert within == lags

    def test_pools(self) -> None:
        """Of every process, while they are open."""
        with Pool(size=2) as pool, Pool(size=3) as other:
            while pool.statistics().waiting + other.statistics().waiting != 5:
                time.sleep(0.01)
            reader, writer = os.pipe()
            with pool.stream("input()", stdin=reader) as stream:
                thread = threading.Thread(target=lambda: list(stream))
                thread.start()
                while not pool.statistics().running:
                    time.sleep(0.01)
                jars = {one.labels["state"]: one.value for one in metrics() if one.name == "belljar_pool_jars"}
                assert jars["running"] == 1
                assert jars["waiting"] >= 4
                stream.kill()
                thread.join()
            os.close(reader)
            os.close(writer)
        assert "belljar_pool_jars" not in {one.name for one in metrics()}

    def test_served(self, elsewhere: subprocess.Popen[bytes]) -> None:
        """What runs now, too."""
        assert elsewhere.pid
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        command = [sys.executable, "-m", "belljar", "metrics", "--listen", str(port)]
        with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
            assert server.stderr is not None
            assert b"until Ctrl-C" in server.stderr.readline()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
                assert b'belljar_running{backend="bubblewrap"} 1.0' in answer.read()
            server.send_signal(signal.SIGINT)
            assert server.wait() == 130


class TestReplay:
    """A record and its inputs are enough."""

    def test_the_same_again(self) -> None:
        """Under the same policy, with the same code and arguments."""
        result = run_one("import sys; print(sys.argv[1:]); sys.exit(3)", args=["a b"], policy={"proc": {"mem_mb": 99}})
        again = replay(result.run_id)
        assert (again.result.stdout, again.result.exit_code, again.differences) == ("['a b']\n", 3, ())
        assert again.result.policy_digest == result.policy_digest

    def test_what_differs_is_told(self, tmp_path: Path) -> None:
        """Here a file that it reads has changed."""
        (tmp_path / "data").write_text("one")
        policy = {"fs": {"mounts": [{"path": "/data", "source": str(tmp_path)}]}}
        result = run_one("print(open('/data/data').read())", policy=policy)
        (tmp_path / "data").write_text("three")
        again = replay(result.run_id)
        assert again.differences == (("stdout_bytes", 4, 6),)
        (tmp_path / "data").write_text("two")
        assert [what for what, _before, _now in replay(result.run_id).differences] == ["stdout"]
        assert "mounted, and is as it is now" in again.notes[0]

    def test_as_it_was_given(self) -> None:
        """However long the command, whatever is a token in the log, and with the name that tracebacks have."""
        words = ["echo", "ada@example.org", *map(str, range(80))]
        with Sandbox() as jar:
            results = [
                jar.exec(words),
                jar.run("import sys; print(sys.argv)", args=words),
                jar.run("1 / 0", name="sums.py"),
                jar.run("open('/etc/shadow')", explain_denials=True),
            ]
        assert "sums.py" in results[2].stderr
        for result in results:
            again = replay(result.run_id)
            assert (again.result.stdout, again.result.stderr) == (result.stdout, result.stderr)
            assert (again.differences, again.notes) == ((), ())

    DIFFERS: dict[str, tuple[str, str]] = {
        "what is printed": ("import os; print(os.urandom(4).hex())", "stdout"),
        "what is complained of": ("import os, sys; sys.stderr.write(os.urandom(4).hex())", "stderr"),
        "the files": ("import os; open(os.urandom(4).hex(), 'w')", "artifacts"),
    }

    @pytest.mark.parametrize(("code", "what"), DIFFERS.values(), ids=DIFFERS)
    def test_the_same_in_number(self, code: str, what: str) -> None:
        """Is not the same."""
        assert [one[0] for one in replay(run_one(code).run_id).differences] == [what]

    def test_the_environment_is_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What the policy passes on is not stored, and may have changed."""
        monkeypatch.setenv("DATABASE_WORD", "one")
        result = run_one("import os; print(os.environ['DATABASE_WORD'])", policy={"env": {"pass": ["DATABASE_WORD"]}})
        monkeypatch.setenv("DATABASE_WORD", "two")
        again = replay(result.run_id)
        assert [what for what, _before, _now in again.differences] == ["stdout"]
        assert "DATABASE_WORD came from its caller's environment" in again.notes[0]

    def test_what_is_not_replayed(self) -> None:
        """Says why."""
        with Session() as session:
            run_id = session.run("1").run_id
        with pytest.raises(UsageError, match="sessions are not replayed"):
            replay(run_id)
        audit_log().append(
            {"event": "created", "run": "0123-lost"}, {"event": "lost", "run": "0123-lost", "reason": "?"}
        )
        with pytest.raises(UsageError, match="broke, so there is nothing to compare with"):
            replay("0123-lost")
        audit_log().append({"event": "created", "run": "0123-open"})
        with pytest.raises(UsageError, match="no end in the audit log"):
            replay("0123-open")

    def test_standard_input(self, tmp_path: Path) -> None:
        """Text, bytes or a file: the same is read again."""
        (tmp_path / "file").write_bytes(b"skipped\nfrom a file\n")
        for given, wanted in (("text\n", "text\n"), (b"bytes\n", "bytes\n"), (None, "from a file\n")):
            with (tmp_path / "file").open("rb", buffering=0) as file:
                file.seek(8)
                ran = run_one("print(input())", stdin=file.fileno() if given is None else given)
            again = replay(ran.run_id)
            assert (ran.stdout, again.result.stdout, again.differences, again.notes) == (wanted, wanted, (), ())

    def test_standard_input_of_the_command(self, tmp_path: Path) -> None:
        """Through a pipe, which nobody can read before the run: it is stored when the run has ended."""
        (tmp_path / "code.py").write_text("import sys; print(len(sys.stdin.read()), sys.argv[1:])")
        words = [sys.executable, "-m", "belljar", "run", "--json", str(tmp_path / "code.py"), "a"]
        for size in (4, 1 << 20, (1 << 20) + 1):
            done = subprocess.run(words, input=b"x" * size, capture_output=True, check=True)
            again = replay(json.loads(done.stdout)["run_id"])
            if size <= 1 << 20:
                assert (again.result.stdout, again.differences) == (f"{size} ['a']\n", ())
            else:
                assert "standard input, which was not stored" in again.notes[0]

    def test_standard_input_that_is_not_stored(self) -> None:
        """That is told, because it may be why something differs."""
        reader, writer = os.pipe()
        os.write(writer, b"once\n")
        os.close(writer)
        ran = run_one("print(input())", stdin=reader)
        os.close(reader)
        again = replay(ran.run_id)
        assert ("outcome", "ok", "failed") in again.differences
        assert "standard input, which was not stored" in again.notes[0]

    def test_files_that_were_written_are_told(self) -> None:
        """They are not stored, and the run may need them."""
        with Sandbox() as jar:
            jar.files.write("data", b"1")
            ran = jar.run("print(open('data').read())")
        again = replay(ran.run_id)
        assert ("outcome", "ok", "failed") in again.differences
        assert again.notes == ("1 file was written into its workspace, and not stored",)
        with Pool(size=1) as pool:
            ran = pool.run("print(open('data').read())", files={"data": b"1"})
        assert "1 file was written" in replay(ran.run_id).notes[0]

    def test_inputs_that_were_changed(self) -> None:
        """Are not run."""
        result = run_one("print(1)")
        (path,) = Path(stored.inputs()).iterdir()
        path.write_bytes(path.read_bytes().replace(b"print(1)", b"print(7)"))
        with pytest.raises(UsageError, match="not stored any more, or was changed"):
            replay(result.run_id)

    def test_unknown(self) -> None:
        """Is told."""
        with pytest.raises(UsageError, match="no run"):
            replay("01234567")


@pytest.fixture
def elsewhere() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, with a run in progress."""
    code = (
        "from belljar import Sandbox\n"
        "with Sandbox() as jar:\n"
        "    print(jar.run('import time; time.sleep(1000)').reason, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while process.pid not in {run["owner"] for run in running()}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


class TestFromOutside:
    """Runs of other processes."""

    def test_listed_and_ended(self, elsewhere: subprocess.Popen[bytes]) -> None:
        """With the reason, which whoever waits for it is told, and the log has."""
        (run,) = running()
        assert (run["backend"], run["owner"]) == ("bubblewrap", elsewhere.pid)
        assert kill(run["run"], "belljar kill: because").ended == [run["run"]]
        assert running() == []
        assert elsewhere.stdout is not None
        assert elsewhere.stdout.read() == b"it was ended: belljar kill: because\n"
        assert elsewhere.wait() == 0
        assert "killed" in told(run["run"])

    def test_one_that_does_not_answer(self, elsewhere: subprocess.Popen[bytes]) -> None:
        """It is killed itself, and its jars with it."""
        os.kill(elsewhere.pid, signal.SIGSTOP)
        os.waitpid(elsewhere.pid, os.WUNTRACED)
        assert kill("*", "now").ended == [f"process {elsewhere.pid}"]
        assert elsewhere.wait() == -9

    def test_a_number_that_is_another_processes_now(self) -> None:
        """The socket of a process that was killed is removed; whoever has its number now is left alone."""
        with subprocess.Popen(["sleep", "600"]) as bystander:
            place = Path(control_directory())
            place.mkdir(parents=True, exist_ok=True)
            for name in (f"{bystander.pid}-1.sock", f"{bystander.pid}.sock", "nonsense"):
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
                    end.bind(str(place / name))
            assert kill("*", "everything").ended == []
            assert bystander.poll() is None
            assert list(place.iterdir()) == []
            bystander.kill()

    def test_nothing_of_that_name(self, elsewhere: subprocess.Popen[bytes]) -> None:
        """Ends nothing."""
        assert elsewhere.pid
        assert kill("no such run", "x").ended == []
        assert len(running()) == 1

    def test_in_pools_and_sessions(self) -> None:
        """They are runs as any."""
        with Pool(size=1) as pool, Session() as session:
            results: list[Any] = []
            threads = [
                threading.Thread(target=lambda: results.append(pool.run("import time; time.sleep(1000)"))),
                threading.Thread(target=lambda: results.append(session.run("import time; time.sleep(1000)"))),
            ]
            for thread in threads:
                thread.start()
            while len(running()) < 2:
                time.sleep(0.02)
            assert len(kill("*", "both").ended) == 2
            for thread in threads:
                thread.join()
        assert [result.outcome for result in results] == [Outcome.KILLED, Outcome.KILLED]


class TestKillSwitch:
    """Nothing runs while it is on."""

    def test_ends_and_refuses(self, elsewhere: subprocess.Popen[bytes]) -> None:
        """Within a second, in every process; until it is off."""
        started = time.monotonic()
        killswitch.turn_on("a test")
        assert elsewhere.stdout is not None
        assert b"the kill switch is on: a test" in elsewhere.stdout.readline()
        assert time.monotonic() - started < 5
        with Sandbox() as jar, Pool(size=1) as pool, Session() as session:
            for attempt in (lambda: jar.run("1"), lambda: pool.run("1"), lambda: session.run("1")):
                with pytest.raises(KillSwitchError, match="a test"):
                    attempt()
            assert killswitch.turn_off()
            assert jar.run("1").ok
            assert pool.run("1").ok
            assert session.run("1").ok
        assert not killswitch.turn_off()

    @pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"{", b"[1]"], ids=repr)
    def test_a_file_of_someone_elses(self, content: bytes) -> None:
        """Whatever is in it."""
        path = Path(killswitch.path())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with Sandbox() as jar, pytest.raises(KillSwitchError):
            jar.run("1")

    def test_the_variable(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A word, or the path of a file."""
        for value, on in (("", False), ("0", False), ("1", True), (str(tmp_path / "stop"), False)):
            monkeypatch.setenv("BELLJAR_KILLSWITCH", value)
            assert bool(killswitch.why()) is on, value
        (tmp_path / "stop").touch()
        assert killswitch.why()


def test_sigkill_in_every_phase() -> None:
    """Whenever belljar is killed, the log is in order, and says of each run at least that it was created."""
    code = "from belljar import run\nimport sys\nwhile True: run('print(1)')"
    for number in range(6):
        process = subprocess.Popen([sys.executable, "-c", code])
        time.sleep(0.3 + number * 0.07)
        process.kill()
        process.wait()
    assert verify(directory()).ok
    audit_log().append({"event": "after"})
    verdict = verify(directory())
    assert verdict.ok, verdict
    runs: dict[str, list[str]] = {}
    for record in records(directory()):
        if "run" in record:
            runs.setdefault(record["run"], []).append(record["event"])
    assert runs
    assert all(events[0] == "created" for events in runs.values())


def test_results_are_recorded_before_they_are_returned() -> None:
    """Who has a result can find its end in the log."""
    with Sandbox() as jar:
        for event in jar.stream("1"):
            if isinstance(event, Finished):
                assert "finished" in told(event.result.run_id)
