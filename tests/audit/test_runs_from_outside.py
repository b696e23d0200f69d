"""Replaying recorded runs, and ending runs from another process: by command and by the kill switch."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import run_one, told

from belljar import Pool, Sandbox, Session
from belljar.audit import killswitch, stored
from belljar.audit.log import audit_log
from belljar.errors import KillSwitchError, UsageError
from belljar.sandbox.record.control import control_directory
from belljar.sandbox.record.remote import kill, running
from belljar.sandbox.record.result import Outcome
from belljar.sandbox.run.replay import replay

pytestmark = pytest.mark.backend("bubblewrap")


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


class TestFromOutside:
    """Runs of other processes."""

    def test_listed_and_ended(self, elsewhere: subprocess.Popen[bytes]) -> None:
        """With the reason, which whoever waits for it is told, and the log has."""
        (run,) = running()
        assert (run["backend"], run["owner"]) == ("bubblewrap", elsewhere.pid)
        assert kill(run["run"], "belljar kill: because").ended == [run["run"]]
        deadline = time.monotonic() + 30
        while running():  # its program hears of the end, and takes it off the list
            assert time.monotonic() < deadline
            time.sleep(0.02)
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
