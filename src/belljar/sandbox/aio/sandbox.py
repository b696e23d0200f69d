"""`AsyncSandbox`: the same, for programs with an event loop. Works under asyncio and trio, through anyio.

A run is a process tree elsewhere; what waits for it here is a worker thread. Cancelling a call ends the run.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from belljar.backends.contract import Entry
from belljar.errors import PrerequisiteError
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.inputs import Input
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.record.stream import Stream
from belljar.sandbox.run.sandbox import PolicyLike, Sandbox

try:
    import anyio
    import anyio.to_thread
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise PrerequisiteError("AsyncSandbox needs anyio", hint="pip install 'belljar[async]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    from belljar.policy.models import Policy
    from belljar.sandbox.files.artifacts import Saved
    from belljar.sandbox.files.changes import Changes

T = TypeVar("T")


class AsyncSandbox:
    """A jar with a workspace; see `Sandbox`, whose arguments it takes."""

    def __init__(self, policy: PolicyLike = None, **options: Any) -> None:
        self._arguments = (policy, options)
        self._sandbox: Sandbox | None = None
        self._threads = anyio.CapacityLimiter(64)

    async def __aenter__(self) -> Self:
        policy, options = self._arguments
        self._sandbox = await anyio.to_thread.run_sync(lambda: Sandbox(policy, **options))
        return self

    async def __aexit__(self, *_exception: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._inner.close)

    @property
    def _inner(self) -> Sandbox:
        if self._sandbox is None:
            raise RuntimeError("use `async with AsyncSandbox(…) as jar:`")
        return self._sandbox

    @property
    def policy(self) -> Policy:
        """The resolved policy."""
        return self._inner.policy

    @property
    def files(self) -> AsyncFiles:
        """The files of the workspace."""
        return AsyncFiles(self._inner)

    async def run(self, code: str | bytes, *, language: str = "python", **options: Any) -> RunResult:
        """Run code and wait for its end; see `Sandbox.run`."""
        return await self._last(self.stream(code, language=language, **options))

    async def exec(self, argv: Sequence[str], **options: Any) -> RunResult:
        """Run a command and wait for its end."""
        return await self._last(self.stream(argv=argv, **options))

    async def stream(
        self, code: str | bytes | None = None, *, stdin: Input = None, **options: Any
    ) -> AsyncGenerator[Output | Finished, None]:
        """Yield output as it is produced; the last event is `Finished`. Leaving the loop early ends the run."""
        stream = await self._in_thread(lambda: self._inner.stream(code, stdin=stdin, **options))
        try:
            while (event := await self._next(stream)) is not None:
                yield event
        finally:
            stream.kill("abandoned")  # so that a thread which still waits for an event gets the last one
            with anyio.CancelScope(shield=True):
                await self._in_thread(stream.close)

    async def _next(self, stream: Stream) -> Output | Finished | None:
        return await anyio.to_thread.run_sync(lambda: next(stream, None), limiter=self._threads, abandon_on_cancel=True)

    async def _in_thread(self, function: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(function, limiter=self._threads)

    async def _last(self, events: AsyncGenerator[Output | Finished, None]) -> RunResult:
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Finished):
                    return event.result
        raise AssertionError("a stream ends with Finished")

    def kill(self, reason: str = "killed") -> None:
        """End every run of this Sandbox."""
        self._inner.kill(reason)

    async def changes(self) -> Changes:
        """What the runs so far changed in the copy-on-write workspace."""
        return await self._in_thread(self._inner.changes)

    async def save_artifacts(self, result: RunResult, directory: str | os.PathLike[str], **options: bool) -> Saved:
        """Copy the files that the run made or changed into a directory; see `Sandbox.save_artifacts`."""
        return await self._in_thread(lambda: self._inner.save_artifacts(result, directory, **options))


class AsyncFiles:
    """Reads and writes files of the workspace; see `Files`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    async def read(self, path: str, **options: Any) -> bytes:
        """The content of a file."""
        return await anyio.to_thread.run_sync(lambda: self._sandbox.files.read(path, **options))

    async def write(self, path: str, content: bytes | str) -> None:
        """Write a file, and make the directories above it."""
        await anyio.to_thread.run_sync(lambda: self._sandbox.files.write(path, content))

    async def list(self, path: str = ".", **options: Any) -> list[Entry]:
        """The entries of a directory."""
        return await anyio.to_thread.run_sync(lambda: self._sandbox.files.list(path, **options))

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with all that is in it."""
        await anyio.to_thread.run_sync(lambda: self._sandbox.files.remove(path))
