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
from typing import Any

import pytest

from belljar import Pool, Sandbox, Session
from belljar.policy.resolve import resolve
from belljar.sandbox.control import CONTROL
from belljar.sandbox.following import LiveOutput
from belljar.sandbox.remote import running
from belljar.sandbox.stream import Handle

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
        first = b""
        while not first:
            first = b"".join(piece.data for piece in output.now() if piece.stream == "stdout")
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.close()
        assert first + everything(output) == b"<EMAIL_1>\nend"
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
            }
            follower = subprocess.Popen([*BELLJAR, "logs", "-f", "--json", run], stdout=subprocess.PIPE, text=True)
            assert follower.stdout is not None
            first = follower.stdout.readline()
            gate.open()
            lines = [json.loads(line) for line in (first, *follower.communicate(timeout=60)[0].splitlines())]
            assert "".join(line.get("text", "") for line in lines if line.get("stream") == "stdout") == "<EMAIL_1>\nend"
            assert lines[-1] == {"run": run, "ended": True}

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
