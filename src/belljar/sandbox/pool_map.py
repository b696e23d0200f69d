"""The runs of one `map`: some at a time, and no more of them taken than somebody waits for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from belljar.errors import UsageError
from belljar.sandbox.result import RunResult
from belljar.sandbox.sandbox import last
from belljar.sandbox.stream import Stream

_MOST_AT_ONCE = 2000


class Batch:
    """What runs, and what has ended and was not taken yet: together at most twice as many as run at a time."""

    def __init__(self, codes: object, concurrency: int | None, *, ordered: bool) -> None:
        """Raises UsageError if that is nothing to map."""
        if isinstance(codes, str | bytes):
            raise UsageError("map takes a list of programs, not one", hint="write [code], or use run(code)")
        if concurrency is not None and (not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_AT_ONCE):
            raise UsageError(f"concurrency is {concurrency!r}: 1 to {_MOST_AT_ONCE} programs run at a time")
        self._workers = concurrency or os.cpu_count() or 1
        self._ordered = ordered
        self._threads = ThreadPoolExecutor(self._workers, thread_name_prefix="belljar-pool")
        self._pending: dict[Future[RunResult], Stream] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether a result has to be taken before there is another run."""
        return len(self._pending) >= 2 * self._workers

    def add(self, stream: Stream) -> None:
        """Have it run, when there is a thread for it."""
        self._pending[self._threads.submit(last, stream)] = stream

    def wait(self) -> None:
        """Until there is a result to take. Any thread may wait."""
        awaited: Iterable[Future[RunResult]] = [next(iter(self._pending))] if self._ordered else list(self._pending)
        wait(awaited, return_when=FIRST_COMPLETED)

    def take(self) -> RunResult:
        """The next result, which is there. Raises what its run did."""
        done = next(future for future in self._pending if self._ordered or future.done())
        result = done.result()
        del self._pending[done]
        return result

    def end(self) -> None:
        """Nobody wants more: end what runs."""
        for future, stream in self._pending.items():
            future.cancel()
            stream.kill("abandoned")
        self._threads.shutdown()


__all__ = ["Batch"]
