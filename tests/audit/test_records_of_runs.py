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
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from recorded_runs import run_one, told

from belljar import Pool, Sandbox, Session
from belljar.audit import stored
from belljar.audit.log import audit_log, directory
from belljar.audit.reading import records
from belljar.audit.store import RunStore
from belljar.audit.verify import verify
from belljar.backends.contract import End, Process, Status
from belljar.errors import AuditError
from belljar.policy.load.resolve import resolve
from belljar.sandbox.record import recording
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.result import Outcome
from belljar.sandbox.run.lifecycle import settle
from belljar.sandbox.run.replay import replay
from belljar.sandbox.run.watch import Watch
from belljar.state import state_directory

pytestmark = pytest.mark.backend("bubblewrap")


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


def test_sigkill_in_every_phase() -> None:
    """Whenever belljar is killed, the log is in order, and says of each run at least that it was created."""
    code = "from belljar import run\nimport sys\nwhile True: run('print(1)')"
    for number in range(6):
        before = len(list(records(directory())))
        process = subprocess.Popen([sys.executable, "-c", code])
        deadline = time.monotonic() + 60
        while len(list(records(directory()))) == before:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(number * 0.03)  # the moment itself is what is tried
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
