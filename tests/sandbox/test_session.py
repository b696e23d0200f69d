"""What is particular to sessions on this host: figures, programs with an event loop, and hostile frames."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path

import anyio
import pytest

from belljar import AsyncSession, Session
from belljar.errors import UsageError
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Outcome
from belljar.sandbox.session import wire
from belljar.sandbox.session.interpreter import Inbox
from belljar.sandbox.session.step import StepFinished

pytestmark = pytest.mark.backend("bubblewrap")
PNG = b"\x89PNG\r\n\x1a\n"


class TestFigures:
    """matplotlib's figures come back without the code having to ask."""

    @pytest.fixture
    def session(self) -> Session:
        """One whose Python has matplotlib."""
        if importlib.util.find_spec("matplotlib") is None:
            pytest.skip("matplotlib is not installed: make dev")
        return Session({"python": {"venv": sys.prefix}, "proc": {"timeout_ms": "60s", "pids": 128}})

    def test_as_pictures(self, session: Session, tmp_path: Path) -> None:
        """At the step's end, or when `show` is called, each once; under names of their own."""
        with session:
            result = session.run("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.figure(); plt.plot([3]);")
            assert result.ok, result.error
            assert [rich.name for rich in result.results] == ["figure-1.png", "figure-2.png"]
            assert all(rich.data.startswith(PNG) for rich in result.results)
            assert result.stderr == ""
            assert session.run("1").results == ()
            shown = session.run("plt.plot([1]); plt.show(); print('after'); plt.plot([2]); plt.show()")
            assert (len(shown.results), shown.stdout, shown.stderr) == (2, "after\n", "")
            session.run("import matplotlib; matplotlib.use('Agg')")
            assert len(session.run("plt.plot([1]);").results) == 1
            (path,) = session.save_results(session.run("plt.plot([1]);"), tmp_path)
            assert Path(path).read_bytes().startswith(PNG)


class TestAsync:
    """The same for programs with an event loop."""

    @pytest.mark.parametrize("loop", ["asyncio", "trio"])
    def test_steps(self, loop: str) -> None:
        """Variables stay; two sessions work at once; a fork goes on."""

        async def main() -> None:
            async with AsyncSession() as one, AsyncSession() as other:
                async with anyio.create_task_group() as group:
                    group.start_soon(one.run, "x = 1")
                    group.start_soon(other.run, "x = 2")
                assert ((await one.run("x")).value, (await other.run("x")).value) == ("1", "2")
                async with await one.fork(state=True) as fork:
                    assert (await fork.run("x + 1")).value == "2"

        anyio.run(main, backend=loop)

    def test_cancelling_interrupts(self) -> None:
        """And the variables stay."""

        async def main() -> None:
            async with AsyncSession() as session:
                await session.run("x = 3")
                with anyio.move_on_after(0.5) as scope:
                    await session.run("import time; time.sleep(100)")
                assert scope.cancelled_caught
                assert (await session.run("x")).value == "3"

        anyio.run(main)


class TestTheEnd:
    """Nothing stays."""

    def test_killed_with_its_program(self, tmp_path: Path) -> None:
        """SIGKILL to the program ends the session's processes; its place is free again."""
        code = (
            "from belljar import Session\nimport time\n"
            "s = Session({'session': {'max_sessions': 1}})\n"
            's.run(\'import subprocess; subprocess.Popen(["sleep", "4321"])\')\n'
            "print('up', flush=True)\ntime.sleep(100)"
        )
        program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        assert program.stdout is not None
        assert program.stdout.readline() == b"up\n"
        program.send_signal(signal.SIGKILL)
        program.wait()
        program.stdout.close()
        with Session({"session": {"max_sessions": 1}}) as session:
            assert session.run("1").ok

    def test_a_program_that_forgets_to_close_ends(self) -> None:
        """The thread that listens holds nobody."""
        code = "from belljar import Session\ns = Session()\nprint(s.run('6 * 7').value)"
        done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"42\n", b"")

    def test_kept_files_are_removed_in_time(self) -> None:
        """What was kept long enough is gone when the next session opens."""
        with Session({"session": {"idle_s": 0.2, "keep_s": 0.1}}) as session:
            session.run("open('x', 'w')")
            while session.state != "evicted":
                time.sleep(0.02)
        over = time.time() + 0.1  # kept from a moment before it was evicted
        while time.time() <= over:
            time.sleep(0.02)
        with pytest.raises(UsageError, match="no snapshot"):
            Session.resume(session.id)
        assert not [
            name for name in os.listdir(os.path.join(os.environ["BELLJAR_STATE_DIR"], "sessions")) if "." in name
        ]

    def test_descriptors_are_closed(self) -> None:
        """Sessions that come and go leave none."""

        def one() -> None:
            with Session() as session:
                session.run("1")
                session.fork(state=True).run("2")
                session.restart()
                session.run("3")

        one()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            one()
        assert len(os.listdir("/proc/self/fd")) <= before


class TestNetwork:
    """What the network refused is told by the step that tried."""

    def test_denials_are_the_steps(self) -> None:
        """Not again by the next."""
        policy = {"net": {"enabled": True, "allowlist": ["allowed.test"]}}
        with Session(policy) as session:
            assert session.run("import socket").denials == ()
            refused = session.run(
                "try: socket.getaddrinfo('denied.test', 443)\nexcept OSError as error: print('refused')"
            )
            assert refused.stdout == "refused\n"
            assert [denial.target for denial in refused.denials] == ["look up denied.test"]
            assert session.run("1").denials == ()


FRAMES = {
    "a kind that there is not": b"?\0\0\0\0\0\0",
    "a length beyond every limit": b"o\0\0\xff\xff\xff\xff",
}
WORDS = {
    "no JSON": b"{",
    "too deep": b"[" * 100_000,
    "a list": b"[]",
    "no step": b"{}",
    "a step that is text": b'{"step": "1"}',
    "a step that is true": b'{"step": true}',
    "a value that is a number": b'{"step": 1, "value": 1}',
    "an error that is text": b'{"step": 1, "error": "x"}',
    "forms that are a list": b'{"step": 1, "bundle": []}',
    "too many forms": json.dumps({"step": 1, "bundle": {str(n): "" for n in range(50)}}).encode(),
    "a form that is a number": b'{"step": 1, "bundle": {"text/html": 1}}',
    "a picture that is no base64": b'{"step": 1, "bundle": {"image/png": "\\u00e9"}}',
}


class TestHostileFrames:
    """All that comes from a jar is the guest's word."""

    @pytest.mark.parametrize("data", FRAMES.values(), ids=FRAMES)
    def test_no_frame(self, data: bytes) -> None:
        """What is no frame ends the session."""
        with pytest.raises(wire.BrokenError):
            list(wire.SessionFrames(1000).feed(data))

    @pytest.mark.parametrize("payload", WORDS.values(), ids=WORDS)
    def test_no_end_of_a_step(self, payload: bytes) -> None:
        """What is no end of a step is none."""
        with pytest.raises(wire.BrokenError):
            wire.done(payload, 1)

    @pytest.mark.parametrize(
        "data",
        [
            b'{"step": 1, "x": [' + b"[]," * 300_000 + b"[]]}",
            b'{"step": 1, "x": ' + b'{"a":' * 200_000 + b"1" + b"}" * 200_000 + b"}",
            b'{"step": 1, ' + b", ".join(b'"%d": {}' % number for number in range(80_000)) + b"}",
            b'{"step": 1, "value": "' + b"x" * 1_000_000 + "\N{GRINNING FACE}".encode() + b'"}',
            b'{"step": ' + b"1" * 1_000_000 + b"}",
            b'{"step": 1}' + b" " * 1_000_000,
        ],
        ids=["lists", "deep", "members", "not ASCII", "a number", "spaces"],
    )
    def test_what_would_be_larger_in_memory_is_not_read(self, data: bytes) -> None:
        """It became thirty times as large."""
        tracemalloc.start()
        try:
            with pytest.raises(wire.BrokenError):
                wire.done(data, 1)
            assert tracemalloc.get_traced_memory()[1] < 2.5 * len(data)
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("text", ["x" * 1000, "a\n\"'\\", "\N{GRINNING FACE} \ud800 é", ""])
    def test_what_an_interpreter_says_is_read(self, text: str) -> None:
        """As `json` would read it."""
        error = {"type": text, "message": text, "traceback": text}
        told = {
            "step": 3,
            "value": text,
            "bundle": {"text/html": text},
            "error": error,
            "exit": -1,
            "interrupted": True,
        }
        done = wire.done(json.dumps(told).encode(), 1)
        clean = text.encode("utf-8", "backslashreplace").decode()
        assert (done.step, done.value, done.exit_code, done.interrupted) == (3, clean, 255, True)
        assert done.forms[0].text == clean
        assert done.error is not None
        assert done.error.message == clean
        empty = wire.done(b'{"step": 1, "value": null, "bundle": {}, "error": null, "exit": null}', 1)
        assert (empty.value, empty.forms, empty.error, empty.exit_code) == (None, (), None, None)

    def test_names_are_ours(self) -> None:
        """A kind that the code made up names no file."""
        payload = json.dumps({"text": "", "bundle": {"../../x\n/y": "aGk=", "image/../png": "aGk="}}).encode()
        shown = wire.shown(payload, 3)
        assert {rich.name for rich in shown.forms} == {"result-3.bin", "figure-3.bin"}
        assert {rich.mime for rich in shown.forms} == {"application/octet-stream", "image/../png"}

    def test_a_keeper_that_is_stopped(self) -> None:
        """Code that stops the supervisor is killed when its time is over."""
        with Session({"proc": {"timeout_ms": "1s"}}, restart=True) as session:
            session.run("x = 1")
            result = session.run("import os, signal\nos.kill(os.getppid(), signal.SIGSTOP)")
            assert (result.outcome, result.state_lost) == (Outcome.TIMEOUT, True)
            assert session.run("1").value == "1"


class TestInbox:
    """What a jar says and nobody takes is bounded, however it is cut."""

    def test_bytes_one_by_one(self) -> None:
        """Take the room of their number, up to the limit."""
        inbox = Inbox(threading.Condition(), 1000)
        with inbox._changed:
            for _ in range(5000):
                inbox.put(wire.STDOUT, b"x")
                inbox.put(wire.STDOUT, b"")
            assert inbox.take() == (wire.STDOUT, b"x" * 1000)
            assert inbox.take() is None
        assert inbox.over

    def test_streams_that_take_turns(self) -> None:
        """Each is in order, and they take the room of their number: it was a hundred and fifty times that."""
        inbox = Inbox(threading.Condition(), 1 << 20)
        tracemalloc.start()
        with inbox._changed:
            for number in range(50_000):
                inbox.put((wire.STDOUT, wire.STDERR)[number % 2], b"%d" % (number // 2 % 10))
            taken = tracemalloc.get_traced_memory()[1]
            frames = list(iter(inbox.take, None))
        tracemalloc.stop()
        assert taken < 1 << 20
        assert frames[:4] == [(wire.STDOUT, b"0"), (wire.STDERR, b"0"), (wire.STDOUT, b"1"), (wire.STDERR, b"1")]
        for kind in (wire.STDOUT, wire.STDERR):
            assert b"".join(data for which, data in frames if which == kind) == b"0123456789" * 2500

    def test_a_stream_goes_on_after_something_else(self) -> None:
        """What was printed before a thing is shown comes before it, and the rest after it."""
        inbox = Inbox(threading.Condition(), 1000)
        with inbox._changed:
            for kind, data in ((wire.STDOUT, b"a"), (wire.SHOWN, b"{}"), (wire.STDOUT, b"b"), (wire.STDOUT, b"c")):
                inbox.put(kind, data)
            assert inbox.take() == (wire.STDOUT, b"a")
            inbox.put(wire.STDOUT, b"d")
            assert list(iter(inbox.take, None)) == [(wire.SHOWN, b"{}"), (wire.STDOUT, b"bcd")]

    def test_ends_of_steps_without_end(self) -> None:
        """Are nobody's word: neither many of them, nor a few that are long."""
        for payload, most in ((b"{}", 20_000), (b" " * 500_000, 5)):
            inbox = Inbox(threading.Condition(), 1000)
            with inbox._changed, pytest.raises(wire.BrokenError):
                list(map(inbox.put, [wire.DONE] * most, [payload] * most))


def test_code_larger_than_a_pipe() -> None:
    """Megabytes of code arrive whole."""
    with Session() as session:
        assert session.run(f"text = {'x' * 3_000_000!r}\nlen(text)").value == "3000000"


def test_output_between_steps_is_the_next_ones() -> None:
    """A thread that goes on printing is heard when somebody listens."""
    with Session() as session:
        late = "print('late', flush=True); open('said', 'w').close()"
        session.run(f"import threading\ndef work():\n    {late}\nthreading.Timer(0.1, work).start()")
        deadline = time.monotonic() + 30
        while "said" not in [entry.path for entry in session.files.list()]:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        events = list(session.stream("1"))
        assert [event.data for event in events if isinstance(event, Output)] == [b"late\n"]
        assert isinstance(events[-1], StepFinished)
