"""`AsyncSession`: a session for programs with an event loop. Works under asyncio and trio, through anyio."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, Self, TypeVar

from belljar.errors import PrerequisiteError
from belljar.sandbox.files.artifacts import Saved
from belljar.sandbox.files.snapshots import Snapshot
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.run.sandbox import PolicyLike
from belljar.sandbox.session.session import Session, StepEvent
from belljar.sandbox.session.step import StepFinished, StepResult

try:
    import anyio
    import anyio.to_thread
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise PrerequisiteError("AsyncSession needs anyio", hint="pip install 'belljar[async]'") from error

T = TypeVar("T")


class AsyncSession:
    """A jar with an interpreter that keeps its variables; see `Session`, whose arguments it takes."""

    def __init__(self, policy: PolicyLike = None, **options: Any) -> None:
        self._make: Callable[[], Session] = lambda: Session(policy, **options)
        self._session: Session | None = None

    async def __aenter__(self) -> Self:
        self._session = await anyio.to_thread.run_sync(self._make)
        return self

    async def __aexit__(self, *_exception: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.inner.close)

    @property
    def inner(self) -> Session:
        """The session itself, whose calls wait."""
        if self._session is None:
            raise RuntimeError("use `async with AsyncSession(…) as session:`")
        return self._session

    async def run(self, code: str, **options: Any) -> StepResult:
        """Run code in the interpreter and wait for its end. Cancelling the call interrupts the step."""
        async with aclosing(self.stream(code, **options)) as events:
            async for event in events:
                if isinstance(event, StepFinished):
                    return event.result
        raise AssertionError("a step ends with StepFinished")

    async def stream(self, code: str, **options: Any) -> AsyncGenerator[StepEvent, None]:
        """Yield what the code prints and shows as it comes; the last event is `StepFinished`."""
        events = self.inner.stream(code, **options)
        try:
            while (event := await _next(events)) is not None:
                yield event
        finally:
            self.inner.interrupt()  # so that a thread which still waits for an event gets the last one
            with anyio.CancelScope(shield=True):
                await _in_thread(lambda: _close(events))

    def interrupt(self) -> bool:
        """Interrupt the step that is running."""
        return self.inner.interrupt()

    async def exec(self, argv: Sequence[str], **options: Any) -> RunResult:
        """Run a command beside the interpreter, on the same files."""
        return await _in_thread(lambda: self.inner.exec(argv, **options))

    async def restart(self) -> None:
        """End the interpreter; the next step has a new one, without variables."""
        await _in_thread(self.inner.restart)

    async def snapshot(self, name: str | None = None) -> Snapshot:
        """Keep the files of the workspace as they are now."""
        return await _in_thread(lambda: self.inner.snapshot(name))

    async def restore(self, snapshot: Snapshot | str) -> None:
        """Have the files of a snapshot, in a jar made anew."""
        await _in_thread(lambda: self.inner.restore(snapshot))

    async def fork(self, *, state: bool = False) -> AsyncSession:
        """Another session that goes on from this one; see `Session.fork`. To be entered, as any."""
        forked = await _in_thread(lambda: self.inner.fork(state=state))
        made = AsyncSession()
        made._make = lambda: forked
        return made

    async def save_results(self, result: StepResult, directory: str | os.PathLike[str], **options: bool) -> Saved:
        """Write what a step showed, and the files that it made, into a directory; see `Session.save_results`."""
        return await _in_thread(lambda: self.inner.save_results(result, directory, **options))


def _close(events: Iterator[StepEvent]) -> None:
    """A generator can't be closed while another thread is inside of it, which it leaves now that it was interrupted."""
    import time

    while True:
        try:
            events.close()  # type: ignore[attr-defined]
        except ValueError:
            time.sleep(0.005)
        else:
            return


async def _next(events: Iterator[StepEvent]) -> StepEvent | None:
    return await anyio.to_thread.run_sync(lambda: next(events, None), abandon_on_cancel=True)


async def _in_thread(function: Callable[[], T]) -> T:
    return await anyio.to_thread.run_sync(function)
