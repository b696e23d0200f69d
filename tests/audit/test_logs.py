"""What runs print, read by others: while they run, and when they have ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit import outputs, retention
from belljar.audit.log import audit_log, directory
from belljar.audit.reading import records
from belljar.audit.verify import verify
from belljar.policy.load.resolve import resolve
from belljar.sandbox.record import redacting
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.following import LiveOutput
from belljar.sandbox.record.remote import running
from belljar.sandbox.record.stream import Handle

pytestmark = pytest.mark.backend("bubblewrap")
MAIL = "jane.doe@example.com"
WAITS = (
    f"import sys; print('{MAIL}', flush=True); print('no', file=sys.stderr, flush=True); input(); print('end', end='')"
)
BELLJAR = [sys.executable, "-m", "belljar"]


def logs(*words: str) -> subprocess.CompletedProcess[str]:
    """`belljar logs`, in a process of its own."""
    return subprocess.run([*BELLJAR, "logs", *words], capture_output=True, text=True, check=False, timeout=60)


def everything(output: LiveOutput, stream: str = "stdout") -> bytes:
    """Of one stream, until the end."""
    return b"".join(piece.data for piece in output.follow() if piece.stream == stream)


class Gate:
    """Standard input that ends when a test says so."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def open(self) -> None:
        if self._writer >= 0:
            os.write(self._writer, b"\n")
            os.close(self._writer)
            self._writer = -1


@contextmanager
def in_progress(run: Callable[..., Any], code: str = WAITS) -> Iterator[tuple[str, Gate]]:
    """A run that waits in a thread, has printed, and what it waits for."""
    gate = Gate()
    thread = threading.Thread(target=run, args=(code,), kwargs={"stdin": gate.reader})
    thread.start()
    deadline = time.monotonic() + 60
    while not (found := running()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    name = str(found[0]["run"])
    while b"no" not in b"".join(piece.data for piece in LiveOutput(name).now()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield name, gate
    finally:
        gate.open()
        thread.join()
        os.close(gate.reader)


class TestLive:
    """From another process than the one that runs the jar."""

    @pytest.mark.parametrize("kind", [Sandbox, Pool])
    def test_what_it_has_printed(self, kind: type[Sandbox | Pool]) -> None:
        """And with -f what follows, to the last byte; secrets and personal data as tokens."""
        with kind() as jar, in_progress(jar.run) as (run, gate):
            so_far = logs(run)
            assert (so_far.stdout, so_far.stderr) == ("<EMAIL_1>\n", "no\n")
            assert logs("--stderr", run[-8:]).stdout == ""
            follower = subprocess.Popen([*BELLJAR, "logs", "-f", run], stdout=subprocess.PIPE, text=True)
            assert follower.stdout is not None
            assert follower.stdout.readline() == "<EMAIL_1>\n"
            gate.open()
            assert follower.communicate(timeout=60)[0] == "end"
            assert follower.returncode == 0

    def test_the_last_words_of_a_process(self) -> None:
        """A process that has nothing else to do waits a moment for those who read along."""
        child = subprocess.Popen(
            [*BELLJAR, "run", "--quiet", "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
        )
        while not (found := running()):
            time.sleep(0.01)
        output = LiveOutput(str(found[0]["run"]))
        assert child.stdin is not None
        text = b""
        for piece in output.follow():
            if not child.stdin.closed:
                child.stdin.write("\n")
                child.stdin.close()
            text += piece.data if piece.stream == "stdout" else b""
        assert text == b"<EMAIL_1>\nend"
        assert output.ended
        assert child.wait(timeout=60) == 0

    def test_its_process_is_killed(self) -> None:
        """Then what was read so far is all, and the reader is told."""
        child = subprocess.Popen(
            [*BELLJAR, "run", "--quiet", "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        while not (found := running()):
            time.sleep(0.01)
        follower = subprocess.Popen(
            [*BELLJAR, "logs", "-f", str(found[0]["run"])], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert follower.stdout is not None
        assert follower.stdout.readline() == "<EMAIL_1>\n"
        child.kill()
        child.communicate()
        _rest, said = follower.communicate(timeout=60)
        assert "its process is gone" in said

    def test_much_and_in_pieces(self) -> None:
        """More than fits into one answer, with bytes that are no text; a secret that is cut by an answer is found."""
        code = f"{WAITS}; sys.stdout.buffer.write((b'x' * 70 + b'\\xff {MAIL}\\n') * 20_000)"
        with Sandbox() as jar, in_progress(jar.run, code) as (run, gate):
            output = LiveOutput(run)
            gate.open()
            text = everything(output)
            assert text == b"<EMAIL_1>\nend" + (b"x" * 70 + b"\xff <EMAIL_1>\n") * 20_000
            assert output.ended

    def test_asked_before_it_begins(self) -> None:
        """Nothing is told until it is known what must not be."""
        handle = Handle()
        CONTROL.enter("early", handle)
        try:
            output = LiveOutput("early")
            assert list(output.now()) == []
            handle.prints({"stdout": bytearray(f"{MAIL}\n".encode()), "stderr": bytearray()}, resolve("strict"))
            assert [piece.data for piece in output.now()] == [b"<EMAIL_1>\n"]
        finally:
            CONTROL.leave("early")

    def test_not_redacted(self) -> None:
        """If the policy says so."""
        with Sandbox({"logging": {"redact_pii": False}}) as jar, in_progress(jar.run) as (run, gate):
            assert logs(run).stdout == f"{MAIL}\n"
            gate.open()

    def test_as_json(self) -> None:
        """A document, or lines as it comes."""
        with Sandbox() as jar, in_progress(jar.run) as (run, gate):
            assert json.loads(logs("--json", run).stdout) == {
                "run": run,
                "running": True,
                "stdout": "<EMAIL_1>\n",
                "stderr": "no\n",
                "missing": "",
            }
            follower = subprocess.Popen([*BELLJAR, "logs", "-f", "--json", run], stdout=subprocess.PIPE, text=True)
            assert follower.stdout is not None
            first = follower.stdout.readline()
            gate.open()
            lines = [json.loads(line) for line in (first, *follower.communicate(timeout=60)[0].splitlines())]
            assert "".join(line.get("text", "") for line in lines if line.get("stream") == "stdout") == "<EMAIL_1>\nend"
            assert lines[-1] == {"run": run, "ended": True, "missing": ""}

    def test_of_a_session(self) -> None:
        """What its steps printed, the first steps too, each once."""
        with Session() as session:
            session.run(f"print('{MAIL}')")
            session.run("print('two', end='')")
            output = LiveOutput(str(running()[0]["run"]))
            assert [(piece.part, piece.data) for piece in output.now()] == [(1, b"<EMAIL_1>\n")]
            session.run("print('three')")
            assert [(piece.part, piece.data) for piece in output.now()] == [(2, b"two"), (3, b"three\n")]
            assert list(output.now()) == []
            assert not output.forgotten

    def test_a_session_that_prints_much(self) -> None:
        """Keeps what its last steps printed, and says that there was more."""
        with Session() as session:
            for number in range(4):
                session.run(f"print('{number}' * (3 << 20))")
            output = LiveOutput(str(running()[0]["run"]))
            assert {piece.part for piece in output.now()} == {3, 4}
            assert output.forgotten

    def test_read_when_it_has_been_recorded(self) -> None:
        """The redactor that is made for a late reader is not kept for ever."""
        handle = Handle()
        CONTROL.enter("late", handle)
        handle.prints({"stdout": bytearray(f"{MAIL}\n".encode()), "stderr": bytearray()}, resolve("strict"))
        assert list(LiveOutput("late").now())
        assert "late" in redacting._OF_RUNS
        CONTROL.leave("late")
        deadline = time.monotonic() + 60
        while "late" in redacting._OF_RUNS:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert "late" not in CONTROL._ended

    def test_nobody_reads(self) -> None:
        """Then nothing is kept of a run that has ended, and nothing is looked through."""
        with Pool() as pool:
            result = pool.run("print(1)")
            assert result.ok
        assert not CONTROL._runs
        assert result.run_id not in CONTROL._ended
        assert list(LiveOutput(result.run_id).now()) == []

    @pytest.mark.parametrize("name", ["nothing", "../../etc", "01a1e4e2ffbe-8c01c265", "\x1b[31m"])
    def test_no_such_run(self, name: str) -> None:
        """Is told, with what to type."""
        done = logs(name)
        assert done.returncode == 2
        assert "hint: " in done.stderr
        assert "\x1b[31m" not in done.stderr


ALL = {"logging": {"sample_ratio": 1}}
NONE = {"logging": {"sample_ratio": 0}}
PRINTS = f"import sys; print('{MAIL}'); print('no', file=sys.stderr)"


def stored_files() -> dict[str, bytes]:
    """What lies in the state directory of what runs printed."""
    return {path.name: path.read_bytes() for path in Path(outputs.outputs()).glob("*/*")}


def inspected(run: str) -> str:
    done = subprocess.run([*BELLJAR, "inspect", "--json", run], capture_output=True, text=True, check=True)
    return str(json.loads(done.stdout)["output"])


class TestStored:
    """What runs printed that have ended."""

    @pytest.mark.parametrize("kind", [Sandbox, Pool])
    def test_all_of_it(self, kind: type[Sandbox | Pool]) -> None:
        """With tokens, readable for its owner only; the digest is in the audit log."""
        with kind(ALL) as jar:
            result = jar.run(PRINTS)
        assert result.stdout == f"{MAIL}\n", "the caller gets what there is"
        done = logs(result.run_id)
        assert (done.returncode, done.stdout, done.stderr) == (0, "<EMAIL_1>\n", "no\n")
        assert logs("--stdout", "-f", result.run_id).stderr == ""
        names = {f"{result.run_id}.0.stdout", f"{result.run_id}.0.stderr"}
        assert set(stored_files()) == names
        assert {path.stat().st_mode & 0o777 for path in Path(outputs.outputs()).glob("*/*")} == {0o600}
        assert {path.stat().st_mode & 0o777 for path in Path(outputs.outputs()).glob("*")} == {0o700}
        (end,) = [record for record in records(directory()) if record["event"] == "finished"]
        assert end["output"]["stdout"]["bytes"] == len("<EMAIL_1>\n")
        assert inspected(result.run_id) == f"`belljar logs {result.run_id}`"

    def test_a_share(self) -> None:
        """As large as the policy says, and known by the name alone."""
        with Pool({"logging": {"sample_ratio": 0.5}}) as pool:
            runs = [pool.run("print(1)").run_id for _ in range(40)]
        kept = {name.partition(".")[0] for name in stored_files()}
        assert kept == {run for run in runs if int(run[-8:], 16) < 1 << 31}
        assert 0 < len(kept) < 40  # else it is no share: this fails once in 2**39 times

    def test_none(self) -> None:
        """Nothing is stored, of runs that fail either; who asks is told why, and what to set."""
        with Sandbox(NONE) as jar:
            result = jar.run(f"{PRINTS}; 1 / 0")
        assert stored_files() == {}
        done = logs(result.run_id)
        assert done.returncode == 2
        assert "logging.sample_ratio, of which its policy has 0" in done.stderr
        assert "hint: --set logging.sample_ratio=1" in done.stderr
        assert "was not stored" in inspected(result.run_id)

    def test_failed(self) -> None:
        """Of a run that did not end well, the last part is there, though it is not in the sample."""
        little = {"logging": {"sample_ratio": 1e-9}}
        with Sandbox(little) as jar:
            good = jar.run(PRINTS)
            failed = jar.run(f"print('{MAIL}\\n' * 50_000); 1 / 0")
        assert {name.partition(".")[0] for name in stored_files()} == {failed.run_id}
        done = logs(failed.run_id)
        assert set(done.stdout.splitlines()) == {"<EMAIL_1>", ""}
        assert 60_000 < len(done.stdout) <= 1 << 16
        assert "ZeroDivisionError" in done.stderr
        assert "of its stdout were not stored" in done.stderr
        assert logs(good.run_id).returncode == 2

    def test_a_key_that_is_cut(self) -> None:
        """What is stored begins in the middle of a private key, and nothing of the key is in it."""
        body = "".join(f"{'AbC1' * 16}\n" for _ in range(30))
        code = (
            f"print('x' * 200_000); print('-----BEGIN RSA PRIVATE KEY-----\\n' + {body!r} + "
            "'-----END RSA PRIVATE KEY-----'); print('y' * 64_600); raise SystemExit(1)"
        )
        with Sandbox({"logging": {"sample_ratio": 1e-9}}) as jar:
            failed = jar.run(code)
        assert "AbC1" in failed.stdout
        assert b"AbC1" not in stored_files()[f"{failed.run_id}.0.stdout"]

    def test_nothing_printed(self) -> None:
        """Is no reason to complain."""
        with Sandbox(ALL) as jar:
            result = jar.run("pass")
        done = logs(result.run_id)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert inspected(result.run_id) == "it printed nothing"

    def test_of_a_session(self) -> None:
        """Step by step, in order."""
        with Session(ALL) as session:
            for number in range(11):
                session.run(f"print({number}, '{MAIL}')")
            run = str(running()[0]["run"])
        assert logs(run).stdout == "".join(f"{number} <EMAIL_1>\n" for number in range(11))

    def test_changed_or_removed(self) -> None:
        """Is told; what is not what was stored is not shown. A link is not followed."""
        with Sandbox(ALL) as jar:
            result = jar.run("print('all of it')")
        (path,) = Path(outputs.outputs()).glob("*/*")
        path.write_text("all of that\n")
        done = logs(result.run_id)
        assert (done.returncode, done.stdout) == (2, "")
        assert "has been removed since, or changed" in done.stderr
        path.unlink()
        other = path.with_name("other")
        other.write_text("all of it\n")
        path.symlink_to(other)
        assert logs(result.run_id).returncode == 2

    def test_a_place_that_cannot_be_written(self) -> None:
        """The run's result is returned, and the log says that its output is not there."""
        Path(outputs.outputs()).write_text("in the way")
        with Sandbox(ALL) as jar:
            result = jar.run("print(1)")
        assert result.ok
        assert "it can't be written" in logs(result.run_id).stderr

    def test_pruned(self) -> None:
        """With the day of the log; and before it, where there is too much."""
        with Sandbox(ALL) as jar:
            result = jar.run("print('x' * 50_000)")
        assert retention.prune(most_bytes=200_000).files == ()
        done = retention.prune(most_bytes=40_000)
        assert done.size == 50_001
        assert stored_files() == {}
        assert "removed since" in logs(result.run_id).stderr
        assert verify(directory()).ok

    def test_pruned_by_age(self) -> None:
        """What was printed on a day that goes."""
        with Sandbox(ALL) as jar:
            jar.run("print(1)")
        (day,) = Path(outputs.outputs()).iterdir()
        day.rename(day.with_name("2001-01-01"))
        (log,) = Path(directory()).glob("*.jsonl")
        audit_log().close()
        lines = log.read_text().splitlines(keepends=True)
        (log.with_name("2001-01-01.jsonl")).write_text("".join(lines[:-1]))
        log.write_text(lines[-1])
        done = retention.prune(older_days=30)
        assert day.with_name("2001-01-01") not in Path(outputs.outputs()).iterdir()
        assert len(done.files) == 2
