"""Threads, event loops, and the life of a Sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from jars import OpenJar, finish, sh, told
from lifeline import Lifeline

import belljar
from belljar import RunResult, Sandbox
from belljar.errors import BelljarError, UsageError
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Outcome

LONG = ["sh", "-c", "sleep 600 <&0 & echo up; exec sleep 600"]


class TestAtOnce:
    """Many threads."""

    def test_eight_threads_in_one_sandbox(self, jar: Sandbox) -> None:
        """Every run has its own output, and all their files are there."""

        def work(number: int) -> list[str]:
            return [told(sh(jar, f"echo {number}-{turn} | tee out-{number}-{turn}")) for turn in range(3)]

        with ThreadPoolExecutor(8) as threads:
            seen = list(threads.map(work, range(8)))
        assert seen == [[f"{number}-{turn}\n" for turn in range(3)] for number in range(8)]
        assert len(jar.files.list()) == 24

    def test_eight_threads_with_a_sandbox_each(self, open_jar: OpenJar) -> None:
        """Made, used and closed at the same time."""

        def work(number: int) -> str:
            with open_jar() as jar:
                told(sh(jar, f"echo {number} > mine"))
                return told(sh(jar, "cat *"))

        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(work, range(8))) == [f"{number}\n" for number in range(8)]

    @pytest.mark.slow
    def test_files_while_runs_go_on(self, jar: Sandbox) -> None:
        """The API and the runs do not wait for each other, and answers are not mixed up."""

        def files(number: int) -> None:
            for turn in range(20):
                jar.files.write(f"f{number}", f"{number}-{turn}")
                assert jar.files.read(f"f{number}") == f"{number}-{turn}".encode()
                assert f"f{number}" in {entry.path for entry in jar.files.list()}

        def runs(number: int) -> None:
            for turn in range(3):
                assert told(sh(jar, f"echo {number}-{turn}")) == f"{number}-{turn}\n"

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(work, number) for number in range(4) for work in (files, runs)]:
                done.result()

    @pytest.mark.slow
    def test_different_ends_at_once(self, open_jar: OpenJar) -> None:
        """Each run's end is its own."""
        jar = open_jar({"proc": {"timeout_ms": "5s", "output_mb": "64k", "mem_mb": 64}})
        scripts = {
            "true": "ok",
            "exit 3": "failed",
            "exec sleep 600": "timeout",
            "yes": "killed",
            "exec tail /dev/zero": "oom",
        }
        with ThreadPoolExecutor(len(scripts)) as threads:
            seen = list(threads.map(lambda script: sh(jar, script).outcome, scripts))
        assert seen == list(scripts.values())

    def test_run_ids_are_unique(self, jar: Sandbox) -> None:
        """Also within one millisecond."""
        with ThreadPoolExecutor(4) as threads:
            ids = list(threads.map(lambda _: sh(jar, ":").run_id, range(8)))
        assert len(set(ids)) == 8


class TestThreads:
    """Who started a run does not have to stay."""

    def test_the_thread_that_started_a_run_ends_and_the_run_goes_on(self, jar: Sandbox) -> None:
        """The first event is read in a worker; the rest here, long after the worker is gone."""
        streams = []

        def start() -> None:
            stream = jar.stream(argv=["sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done; echo still here"])
            assert next(stream) == Output("stdout", b"up\n")
            streams.append(stream)

        worker = threading.Thread(target=start)
        worker.start()
        worker.join()
        jar.files.write("go", "")
        assert told(finish(streams[0])) == "up\nstill here\n"

    def test_a_sandbox_made_in_a_thread_that_is_gone(self, open_jar: OpenJar) -> None:
        """It is as good as any, and what it started goes on."""
        jars: list[Sandbox] = []

        def make() -> None:
            jar = open_jar()
            told(sh(jar, "echo x > file"))
            jars.append(jar)

        worker = threading.Thread(target=make)
        worker.start()
        worker.join()
        assert told(sh(jars[0], "cat file")) == "x\n"


class TestEventLoop:
    """The plain API in a notebook, where a loop is running."""

    def test_inside_a_running_loop(self, open_jar: OpenJar) -> None:
        """Runs, streams and files, called from a coroutine."""

        async def cell() -> str:
            jar = open_jar()
            jar.files.write("file", "x")
            told(sh(jar, "cat file"))
            return told(finish(jar.stream("print(open('file').read())")))

        assert asyncio.run(cell()) == "x\n"

    def test_in_the_loops_worker_threads(self, jar: Sandbox) -> None:
        """As `asyncio.to_thread` has them, while the loop goes on."""

        async def cell() -> list[RunResult]:
            return await asyncio.gather(*(asyncio.to_thread(sh, jar, f"echo {number}") for number in range(4)))

        assert [told(result) for result in asyncio.run(cell())] == ["0\n", "1\n", "2\n", "3\n"]

    def test_the_one_line_call(self, backend: str) -> None:
        """`belljar.run`, in a loop and out of it."""

        async def cell() -> str:
            return told(belljar.run("print(1)", backend=backend))

        assert asyncio.run(cell()) == "1\n"
        assert told(belljar.run("echo 2", language="bash", backend=backend)) == "2\n"


class TestEnds:
    """Whatever lets go of a run ends it."""

    def _leave_early(self, jar: Sandbox, line: Lifeline) -> None:
        for event in jar.stream(argv=LONG, stdin=line.stdin):
            assert event == Output("stdout", b"up\n")
            break

    def _close_the_stream(self, jar: Sandbox, line: Lifeline) -> None:
        stream = jar.stream(argv=LONG, stdin=line.stdin)
        next(stream)
        stream.close()

    def _drop_the_stream(self, jar: Sandbox, line: Lifeline) -> None:
        stream = jar.stream(argv=LONG, stdin=line.stdin)
        next(stream)
        del stream
        gc.collect()

    def _raise_in_the_loop(self, jar: Sandbox, line: Lifeline) -> None:
        with contextlib.suppress(ZeroDivisionError), jar.stream(argv=LONG, stdin=line.stdin) as stream:
            for _event in stream:
                raise ZeroDivisionError

    def _close_the_sandbox(self, jar: Sandbox, line: Lifeline) -> None:
        stream = jar.stream(argv=LONG, stdin=line.stdin)
        next(stream)
        jar.close()
        stream.close()

    @pytest.mark.parametrize(
        "let_go",
        [_leave_early, _close_the_stream, _drop_the_stream, _raise_in_the_loop, _close_the_sandbox],
        ids=lambda function: function.__name__.strip("_"),
    )
    def test_the_run(self, open_jar: OpenJar, let_go: Callable[[object, Sandbox, Lifeline], None]) -> None:
        """Every process of it is gone long before its time is up."""
        with Lifeline() as line:
            let_go(self, open_jar(timeout="20m"), line)
            assert line.is_cut()

    def test_after_leaving_early_the_sandbox_is_usable(self, jar: Sandbox) -> None:
        """The run is over, the workspace is there."""
        for _event in jar.stream(argv=["sh", "-c", "echo x > file; echo up; exec sleep 600"]):
            break
        assert told(sh(jar, "cat file")) == "x\n"

    def test_closing_while_another_thread_waits(self, jar: Sandbox) -> None:
        """The one who waits hears that it was ended: a result or a BelljarError, soon."""
        stream = jar.stream(argv=LONG)
        next(stream)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(lambda: finish(stream))
            jar.close()
            try:
                assert waiting.result(timeout=60).outcome is Outcome.KILLED
            except BelljarError:
                pass

    def test_a_stream_that_is_never_read_starts_nothing_that_stays(self, jar: Sandbox) -> None:
        """Asked for and forgotten."""
        jar.stream(argv=LONG)
        gc.collect()
        assert told(sh(jar, "echo fine")) == "fine\n"


class TestClosed:
    """After close()."""

    CALLS = {
        "run": lambda jar: jar.run("1"),
        "exec": lambda jar: jar.exec(["true"]),
        "stream": lambda jar: list(jar.stream(argv=["true"])),
        "files": lambda jar: jar.files.list(),
        "write": lambda jar: jar.files.write("x", "x"),
        "changes": lambda jar: jar.changes(),
    }

    @pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
    @pytest.mark.parametrize("used", [False, True], ids=["never used", "used"])
    def test_every_call_is_the_callers_mistake(
        self,
        open_jar: OpenJar,
        project,
        call: Callable[[Sandbox], object],
        used: bool,  # type: ignore[no-untyped-def]
    ) -> None:
        """Told as that, whether the Sandbox ever ran something or not."""
        jar = open_jar(workspace=project)
        if used:
            assert sh(jar, "true").ok
        jar.close()
        with pytest.raises(UsageError, match="closed"):
            call(jar)

    def test_what_was_got_before_is_closed_too(self, jar: Sandbox) -> None:
        """`jar.files` in a variable."""
        files = jar.files
        files.write("x", "x")
        jar.close()
        with pytest.raises(UsageError, match="closed"):
            files.read("x")

    def test_saving_artifacts_is_too_late(self, jar: Sandbox, tmp_path) -> None:  # type: ignore[no-untyped-def]
        """The workspace is gone."""
        result = sh(jar, "echo x > file")
        jar.close()
        with pytest.raises(UsageError, match="closed"):
            jar.save_artifacts(result, tmp_path / "out")

    def test_closing_twice_and_killing_is_fine(self, jar: Sandbox) -> None:
        """Both say: let it be over."""
        sh(jar, "true")
        jar.close()
        jar.close()
        jar.kill()
