"""AsyncSandbox: the same jar for programs with an event loop; and cancelling is ending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from jars import WAIT_FOR_GO, told
from lifeline import Lifeline
from trees import contents, plant

from belljar import AsyncSandbox
from belljar.errors import UsageError
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.result import Outcome

LONG = ["sh", "-c", "sleep 600 <&0 & echo up; exec sleep 600"]

Main = Callable[[], Awaitable[None]]


@pytest.fixture(params=["asyncio", "trio"])
def loop(request: pytest.FixtureRequest) -> Callable[[Main], None]:
    """Runs a coroutine function on each kind of event loop."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    return lambda main: anyio.run(main, backend=request.param)


class TestPlain:
    """What Sandbox does, awaited."""

    def test_run_exec_and_files(self, loop: Callable[[Main], None], backend: str) -> None:
        """Code, commands, stdin, and the workspace between them."""

        async def main() -> None:
            async with AsyncSandbox(backend=backend) as jar:
                await jar.files.write("d/file", "x")
                assert told(await jar.run("print(open('d/file').read())")) == "x\n"
                assert told(await jar.exec(["sh", "-c", "cat; echo y > made"], stdin=b"given")) == "given"
                assert await jar.files.read("made") == b"y\n"
                assert [entry.path for entry in await jar.files.list()] == ["d", "made"]
                await jar.files.remove("d")
                assert [entry.path for entry in await jar.files.list()] == ["made"]
                assert told(await jar.run('echo "$1"', language="bash", args=["a b"])) == "a b\n"
                assert jar.policy.proc.uid == 1000

        loop(main)

    def test_output_streams(self, loop: Callable[[Main], None], backend: str) -> None:
        """The code waits for the host, who waits for its first line."""

        async def main() -> None:
            async with AsyncSandbox(backend=backend) as jar:
                seen = []
                async for event in jar.stream(argv=["sh", "-c", f"echo first; {WAIT_FOR_GO}; echo second"]):
                    seen.append(event)
                    if event == Output("stdout", b"first\n"):
                        await jar.files.write("go", "")
                assert seen[:2] == [Output("stdout", b"first\n"), Output("stdout", b"second\n")]
                assert isinstance(seen[-1], Finished)
                assert seen[-1].result.ok

        loop(main)

    def test_many_at_once(self, loop: Callable[[Main], None], backend: str) -> None:
        """More than a loop's worker threads would allow if each held one for ever; the loop goes on meanwhile."""

        async def main() -> None:
            ticks = 0
            async with AsyncSandbox(backend=backend) as jar, anyio.create_task_group() as outer:

                async def tick() -> None:
                    nonlocal ticks
                    while True:
                        ticks += 1
                        await anyio.sleep(0.005)

                outer.start_soon(tick)
                seen: dict[int, str] = {}

                async def one(number: int) -> None:
                    seen[number] = told(await jar.exec(["echo", str(number)]))

                async with anyio.create_task_group() as group:
                    for number in range(12):
                        group.start_soon(one, number)
                outer.cancel_scope.cancel()
            assert seen == {number: f"{number}\n" for number in range(12)}
            assert ticks > 2

        loop(main)

    def test_changes_and_artifacts(
        self, loop: Callable[[Main], None], backend: str, project: Path, tmp_path: Path
    ) -> None:
        """The workspace comes back as it does without a loop."""
        plant(project, {"file": "old"})

        async def main() -> None:
            async with AsyncSandbox(backend=backend, workspace=project) as jar:
                result = await jar.exec(["sh", "-c", "echo new > file; echo x > made"])
                await jar.save_artifacts(result, tmp_path / "saved")
                with await jar.changes() as changes:
                    assert len(changes) == 2

        loop(main)
        assert contents(tmp_path / "saved") == {"file": "new\n", "made": "x\n"}
        assert contents(project) == {"file": "old"}

    def test_mistakes_are_told(self, loop: Callable[[Main], None], backend: str) -> None:
        """The same exceptions, out of the await."""

        async def main() -> None:
            async with AsyncSandbox(backend=backend) as jar:
                with pytest.raises(UsageError):
                    await jar.exec("ls -l")  # type: ignore[arg-type]
                with pytest.raises(UsageError):
                    await jar.files.read("../../etc/passwd")
                with pytest.raises(FileNotFoundError):
                    await jar.files.read("none")
            with pytest.raises(UsageError, match="closed"):
                await jar.exec(["true"])

        loop(main)


class TestCancelled:
    """Whoever stops waiting ends the run."""

    @pytest.mark.parametrize("call", ["exec", "stream", "run"])
    def test_every_process_is_gone(self, loop: Callable[[Main], None], backend: str, call: str) -> None:
        """And soon: long before the run's own time is up. The Sandbox stays usable."""

        async def main() -> None:
            async with AsyncSandbox(backend=backend, timeout="20m") as jar:
                with Lifeline() as line:
                    async with anyio.create_task_group() as group:
                        group.start_soon(_start, jar, call, line)
                        while "up" not in {entry.path for entry in await jar.files.list()}:
                            await anyio.sleep(0.01)
                        group.cancel_scope.cancel()
                    assert line.is_cut()
                assert told(await jar.exec(["echo", "next"])) == "next\n"

        loop(main)

    def test_leaving_the_loop_early(self, loop: Callable[[Main], None], backend: str) -> None:
        """By closing the generator, as `aclosing` does."""

        async def main() -> None:
            async with AsyncSandbox(backend=backend, timeout="20m") as jar:
                with Lifeline() as line:
                    events = jar.stream(argv=LONG, stdin=line.stdin)
                    async for event in events:
                        assert event == Output("stdout", b"up\n")
                        break
                    await events.aclose()
                    assert line.is_cut()

        loop(main)

    def test_leaving_the_sandbox(self, loop: Callable[[Main], None], backend: str) -> None:
        """An exception in the block ends what runs in it."""

        async def main() -> None:
            with Lifeline() as line:
                with pytest.raises(ZeroDivisionError):
                    await fail(line)
                assert line.is_cut()

        async def fail(line: Lifeline) -> None:
            async with (
                AsyncSandbox(backend=backend, timeout="20m") as jar,
                aclosing(jar.stream(argv=LONG, stdin=line.stdin)) as events,
            ):
                await anext(events)
                raise ZeroDivisionError

        loop(main)

    def test_a_timeout_of_the_callers(self, loop: Callable[[Main], None], backend: str) -> None:
        """`move_on_after` around a run: it returns when it should."""

        async def main() -> None:
            async with AsyncSandbox(backend=backend, timeout="20m") as jar:
                with Lifeline() as line:
                    with anyio.move_on_after(0.5) as scope:
                        await jar.exec(LONG, stdin=line.stdin)
                    assert scope.cancelled_caught
                    assert line.is_cut()

        loop(main)

    def test_kill_is_heard(self, loop: Callable[[Main], None], backend: str) -> None:
        """From another task: the result says killed."""

        async def main() -> None:
            async with AsyncSandbox(backend=backend, timeout="20m") as jar:
                async for event in jar.stream(argv=LONG):
                    if isinstance(event, Output):
                        jar.kill()
                    else:
                        assert event.result.outcome is Outcome.KILLED

        loop(main)


async def _start(jar: AsyncSandbox, call: str, line: Lifeline) -> None:
    script = "sleep 600 <&0 & : > up; exec sleep 600"
    options: dict[str, Any] = {"stdin": line.stdin}
    if call == "exec":
        await jar.exec(["sh", "-c", script], **options)
    elif call == "run":
        await jar.run(script, language="bash", **options)
    else:
        async for _event in jar.stream(argv=["sh", "-c", script], **options):
            pass
