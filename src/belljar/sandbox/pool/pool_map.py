"""The runs of one `map`: some at a time, and no more of them taken than somebody waits for."""

from __future__ import annotations

import os
import threading
from collections import deque

from belljar.backends.contract import LOOK_UP_SECONDS
from belljar.errors import UsageError
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.record.stream import Stream
from belljar.sandbox.run.sandbox import last

_MOST_AT_ONCE = 2000
_IDLE_SECONDS = 0.1


class _MapRun:
    """One of them."""

    __slots__ = ("error", "result", "stream")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.result: RunResult | None = None
        self.error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        return self.result is not None or self.error is not None

    def go(self) -> None:
        """To its end, whatever that is: whoever takes the result is told."""
        try:
            self.result = last(self.stream)
        except BaseException as error:  # noqa: BLE001
            self.error = error


class Batch:
    """What runs, and what has ended and was not taken yet: together at most twice as many as run at a time.

    A thread for which nothing comes ends by itself: a program that leaves a `map` where it is can end.
    """

    def __init__(self, codes: object, concurrency: int | None, *, ordered: bool) -> None:
        """Raises UsageError if that is nothing to map."""
        if isinstance(codes, str | bytes):
            raise UsageError("map takes a list of programs, not one", hint="write [code], or use run(code)")
        if concurrency is not None and (not isinstance(concurrency, int) or not 1 <= concurrency <= _MOST_AT_ONCE):
            raise UsageError(f"concurrency is {concurrency!r}: 1 to {_MOST_AT_ONCE} programs run at a time")
        self._workers = concurrency or os.cpu_count() or 1
        self._ordered = ordered
        self._pending: deque[_MapRun] = deque()
        self._lock = threading.Lock()
        self._added = threading.Condition(self._lock)
        self._ended = threading.Condition(self._lock)
        self._todo: deque[_MapRun] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        """How many of them wait for something to run."""
        self._over = False

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def is_full(self) -> bool:
        """Whether a result has to be taken before there is another run."""
        return len(self._pending) >= 2 * self._workers

    def add(self, stream: Stream) -> None:
        """Have it run, when there is a thread for it."""
        run = _MapRun(stream)
        self._pending.append(run)
        with self._lock:
            self._todo.append(run)
            if len(self._todo) <= self._idle:
                self._added.notify()
            elif len(self._threads) < self._workers:
                thread = threading.Thread(target=self._work, name="belljar-pool")
                thread.start()
                self._threads.add(thread)

    def _work(self) -> None:
        """In a thread: one after the other."""
        done: _MapRun | None = None
        while True:
            with self._lock:
                if done is not None and (not self._ordered or (self._pending and self._pending[0] is done)):
                    self._ended.notify_all()
                if not self._comes():
                    self._threads.discard(threading.current_thread())
                    return
                done = self._todo.popleft()
            done.go()

    def _comes(self) -> bool:
        """Whether there is something to run, now or in a moment."""
        patient = True
        while not self._todo and patient and not self._over:
            self._idle += 1
            patient = self._added.wait(_IDLE_SECONDS)
            self._idle -= 1
        return bool(self._todo)

    def wait(self) -> None:
        """Until there is a result to take, or nobody wants one any more. Any thread may wait."""
        with self._ended:
            while self._next() is None and not self._over:
                self._ended.wait(LOOK_UP_SECONDS)

    def _next(self) -> _MapRun | None:
        """The one whose result is to be taken, if there is one."""
        if self._ordered:
            return self._pending[0] if self._pending[0].is_done else None
        return next((run for run in self._pending if run.is_done), None)

    def take(self) -> RunResult:
        """The next result, which is there. Raises what its run did."""
        run = self._next()
        assert run is not None
        self._pending.remove(run)
        if run.error is not None:
            raise run.error
        assert run.result is not None
        return run.result

    def end(self) -> None:
        """Nobody wants more: end what runs."""
        with self._lock:
            self._todo.clear()
            self._over = True
            self._added.notify_all()
            self._ended.notify_all()
            threads = list(self._threads)
        for run in self._pending:
            run.stream.kill("abandoned")
        for thread in threads:
            thread.join()


__all__ = ["Batch"]
