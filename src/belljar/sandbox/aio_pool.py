"""`AsyncPool`: the same, for programs with an event loop. Works under asyncio and trio, through anyio."""

from __future__ import annotations

from typing import Any, Self

from belljar.errors import PrerequisiteError
from belljar.sandbox.pool import Pool, PoolStatistics
from belljar.sandbox.result import RunResult
from belljar.sandbox.sandbox import PolicyLike, last

try:
    import anyio
    import anyio.to_thread
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise PrerequisiteError("AsyncPool needs anyio", hint="pip install 'belljar[async]'") from error


class AsyncPool:
    """Runs Python code in fresh jars that have been waiting; see `Pool`, whose arguments it takes."""

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
        stream = self._inner.stream(code, **options)
        try:
            return await anyio.to_thread.run_sync(lambda: last(stream), limiter=self._threads, abandon_on_cancel=True)
        finally:
            stream.kill("abandoned")

    def kill(self, reason: str = "killed") -> None:
        """End every run."""
        self._inner.kill(reason)

    async def statistics(self) -> PoolStatistics:
        """What it has done so far, and what it has ready."""
        return await anyio.to_thread.run_sync(self._inner.statistics)
