"""`AsyncPool`: the same, for programs with an event loop. Works under asyncio and trio, through anyio."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Hashable, Iterable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Self, TypeVar

from belljar.errors import PrerequisiteError
from belljar.sandbox.pool.pool import Pool, PoolStatistics
from belljar.sandbox.pool.pool_map import Batch
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.run.sandbox import PolicyLike, last

try:
    import anyio
    import anyio.to_thread
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise PrerequisiteError("AsyncPool needs anyio", hint="pip install 'belljar[async]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")
Codes = Iterable[str | bytes] | AsyncIterable[str | bytes]


class AsyncPool:
    """Runs code in fresh jars that have been waiting; see `Pool`, whose arguments it takes."""

    def __init__(self, policy: PolicyLike = None, **options: Any) -> None:
        self._arguments = (policy, options)
        self._pool: Pool | None = None
        self._threads = anyio.CapacityLimiter(64)

    async def __aenter__(self) -> Self:
        policy, options = self._arguments
        self._pool = await anyio.to_thread.run_sync(lambda: Pool(policy, **options))
        return self

    async def __aexit__(self, *_exception: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._inner.close)

    @property
    def _inner(self) -> Pool:
        if self._pool is None:
            raise RuntimeError("use `async with AsyncPool(…) as pool:`")
        return self._pool

    async def run(self, code: str | bytes, **options: Any) -> RunResult:
        """Run code and wait for its end; see `Pool.run`. Cancelling the call ends the run."""
        stream = self._inner.of_caller(_task(), code, **options)
        try:
            return await self._awaited(lambda: last(stream))
        finally:
            stream.kill("abandoned")

    async def stream(self, code: str | bytes, **options: Any) -> AsyncGenerator[Output | Finished, None]:
        """Yield output as it is produced; the last event is `Finished`. Leaving the loop early ends the run."""
        stream = self._inner.of_caller(_task(), code, **options)
        try:
            while (event := await self._awaited(lambda: next(stream, None))) is not None:
                yield event
        finally:
            stream.kill("abandoned")  # so that a thread which still waits for an event gets the last one
            await _to_its_end(stream.close)

    def map(
        self, codes: Codes, *, concurrency: int | None = None, ordered: bool = True
    ) -> AsyncGenerator[RunResult, None]:
        """Run many, some at a time, and yield their results: in order, or as they finish; see `Pool.map`.

        `codes` may be an asynchronous iterator, too. Leaving the loop early ends what runs: at once if the generator is
        closed (`contextlib.aclosing`), else when it is collected.
        """
        return self._mapped(codes, Batch(codes, concurrency, ordered=ordered))

    async def _mapped(self, codes: Codes, batch: Batch) -> AsyncGenerator[RunResult, None]:
        try:
            async with aclosing(_each(codes)) as each:
                async for code in each:
                    batch.add(self._inner.of_caller(batch, code))
                    while batch.is_full:
                        await self._awaited(batch.wait)
                        yield batch.take()
            while batch:
                await self._awaited(batch.wait)
                yield batch.take()
        finally:
            await _to_its_end(batch.end)

    async def _awaited(self, function: Callable[[], T]) -> T:
        """What a thread waits for; if the call is cancelled, the thread is left alone and the run has to be ended."""
        return await anyio.to_thread.run_sync(function, limiter=self._threads, abandon_on_cancel=True)

    def kill(self, reason: str = "killed") -> None:
        """End every run."""
        self._inner.kill(reason)

    async def statistics(self) -> PoolStatistics:
        """What it has done so far, and what it has ready."""
        return await anyio.to_thread.run_sync(self._inner.statistics)


def _task() -> Hashable:
    """Who calls: of one thread, there may be many."""
    return "task", anyio.get_current_task().id


async def _each(codes: Codes) -> AsyncGenerator[str | bytes, None]:
    if isinstance(codes, AsyncIterable):
        async for code in codes:
            yield code
    else:
        for code in codes:
            yield code


async def _to_its_end(function: Callable[[], object]) -> None:
    """In a thread, even if the call is cancelled: what was begun is let go of."""
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(function)
