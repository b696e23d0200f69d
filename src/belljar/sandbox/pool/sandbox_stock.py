"""Sandboxes that wait for one run each: what a pool has where there is no interpreter to clone jars from."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping
from typing import TYPE_CHECKING, cast

from belljar.backends.contract import LOOK_UP_SECONDS, never_started
from belljar.backends.fair_queue import FairQueue
from belljar.errors import BelljarError, SandboxUnavailableError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.pool.work import PoolWork
from belljar.sandbox.record import recording
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.record.stream import Handle, new_run_id
from belljar.sandbox.run.lifecycle import settle
from belljar.sandbox.run.sandbox import Sandbox
from belljar.sandbox.run.watch import Watch

if TYPE_CHECKING:
    from belljar.backends.contract import Process
    from belljar.egress.events import Event

_CLOSERS = 2
_MOST_RUNNING = 64
"""As many as there are cloned jars beside those that wait (`backends/bubblewrap/host/compile_pool.py`)."""
_PAUSE_SECONDS = 1.0
"""After a jar for a language could not be made: others are made meanwhile."""


class _Waiter:
    """A run for which there is no place yet."""

    def __init__(self, stock: SandboxStock, caller: Hashable) -> None:
        self._sandbox_stock = stock
        self.caller = caller
        self.woken = threading.Event()
        self.has_place = False
        self.killed = ""

    def kill(self, reason: str) -> None:
        """It is not wanted any more. From any thread."""
        self._sandbox_stock.call_off(self, reason)


class SandboxStock:
    """For each language that was asked for, some Sandboxes, each with a jar at its gate. A thread makes more."""

    def __init__(self, policy: Policy, size: int, on_egress: Callable[[Event], None] | None) -> None:
        self._policy = policy
        self._size = size
        self._on_egress = on_egress
        self._ready: dict[str, deque[Sandbox]] = {}
        self._paused: dict[str, float] = {}
        """Until when none is made for a language, because the last one could not be."""
        self._used: deque[Sandbox] = deque()
        self._change = threading.Condition()
        self._closed = False
        self._running = 0
        self._places: FairQueue[_Waiter] = FairQueue()
        """Runs that wait until fewer run. One that ends leaves its place to the next of them."""
        self._threads = [threading.Thread(target=self._fill, daemon=True, name="belljar-stock")]
        self._threads += [
            threading.Thread(target=self._bury, daemon=True, name="belljar-stock-end") for _ in range(_CLOSERS)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """How many are ready."""
        with self._change:
            return sum(map(len, self._ready.values()))

    @property
    def running(self) -> int:
        """How many are in use."""
        with self._change:
            return self._running

    @property
    def queued(self) -> int:
        """How many runs wait until fewer run."""
        with self._change:
            return len(self._places)

    def ask_for(self, language: str) -> None:
        """Have some wait for this language, from now on."""
        with self._change:
            self._ready.setdefault(language, deque())
            self._change.notify_all()

    def events(self, handle: Handle, work: PoolWork) -> Generator[Output | Finished, None, None]:
        """Run it in one that nobody has used and nobody will use again."""
        started = time.monotonic()
        if reason := self._enter(handle, work.caller):
            handle.ended()
            yield Finished(self._called_off(work, reason, started))
            return
        jar: Sandbox | None = None
        try:
            jar = self._take(work.language)
            _fill(jar, work.files)
            with jar.stream(
                work.code, language=work.language, name=work.name, args=work.arguments, stdin=work.stdin
            ) as stream:
                handle.started(stream)
                for event in stream:
                    if isinstance(event, Finished) and work.artifacts is not None:
                        saved = jar.save_artifacts(event.result, work.artifacts, overwrite=work.overwrite)
                        if saved.refused:
                            event = Finished(event.result.but_not_saved(saved.refused))  # noqa: PLW2901 - the same end
                    yield event
        finally:
            handle.ended()
            self._leave(jar)

    # --- places ---

    def _enter(self, handle: Handle, caller: Hashable) -> str:
        """Wait for a place, in turn; why the run was called off meanwhile, if it was."""
        with self._change:
            if self._closed:
                raise UsageError("this Pool is closed")
            if self._running < _MOST_RUNNING:
                self._running += 1
                return ""
            waiter = _Waiter(self, caller)
            self._places.add(caller, waiter)
        try:
            handle.started(waiter)
            while not waiter.woken.wait(LOOK_UP_SECONDS):
                pass
        except BaseException:
            self.call_off(waiter, "abandoned")
            if waiter.has_place:
                self._leave(None)
            raise
        if not waiter.has_place and not waiter.killed:
            raise SandboxUnavailableError("the pool was closed before the run had begun")
        return waiter.killed

    def call_off(self, waiter: _Waiter, reason: str) -> None:
        """It waits no more; if it has a place by now, the run is ended in another way."""
        with self._change:
            if self._places.remove(waiter.caller, waiter):
                waiter.killed = reason
                waiter.woken.set()

    def _leave(self, jar: Sandbox | None) -> None:
        """The run has ended: its jar is used up, and its place somebody else's."""
        with self._change:
            if jar is not None:
                self._used.append(jar)
            if self._places:
                waiter = self._places.next()
                waiter.has_place = True
                waiter.woken.set()
            else:
                self._running -= 1
            self._change.notify_all()

    def _called_off(self, work: PoolWork, reason: str, started: float) -> RunResult:
        """The result of a run that had no place: it is recorded as any other, and nothing is made for it."""
        run_id = new_run_id()
        with Sandbox(self._policy, one_shot=True) as jar:
            plan = jar.plan(work.code, language=work.language, name=work.name, args=work.arguments)
        details = recording.code_details(work.code, (), work.language, work.arguments, work.name)
        begun = recording.Begun(self._policy, plan, run_id, work.arguments)
        recording.begin(run_id, "pool", begun, plan, starts=False, **details)
        return settle(
            self._policy,
            plan,
            Watch(cast("Process", None), 0),
            never_started(reason),
            run_id=run_id,
            report=plan.report,
            started=started,
            artifacts=(),
            fallback_from=jar.fallback_from,
        )

    # --- jars ---

    def _take(self, language: str) -> Sandbox:
        with self._change:
            ready = self._ready.setdefault(language, deque())
            self._change.notify_all()
            if ready:
                return ready.popleft()
        return self._new()

    def _new(self) -> Sandbox:
        return Sandbox(self._policy, one_shot=True, on_egress=self._on_egress)

    def _wanted(self) -> str | None:
        """The language of which fewest wait, if one can be made."""
        now = time.monotonic()
        wanted = [
            (len(ready), language)
            for language, ready in self._ready.items()
            if len(ready) < self._size and self._paused.get(language, 0.0) <= now
        ]
        return min(wanted)[1] if wanted else None

    def _patience(self) -> float | None:
        """Until one may be made for a language of which the last could not be."""
        return max(0.0, min(self._paused.values()) - time.monotonic()) if self._paused else None

    def _fill(self) -> None:
        while True:
            with self._change:
                language = self._wanted()
                while not self._closed and language is None:
                    self._change.wait(self._patience())
                    language = self._wanted()
                if self._closed or language is None:
                    return
                self._paused.pop(language, None)
            try:
                jar = self._prepared(language)
            except Exception:  # noqa: BLE001 - whatever it is: told by the run that then has to make its own
                with self._change:
                    self._paused[language] = time.monotonic() + _PAUSE_SECONDS
            else:
                self._put(language, jar)

    def _prepared(self, language: str) -> Sandbox:
        jar = self._new()
        try:
            jar.prepare(language=language)
        except BaseException:
            jar.close()
            raise
        return jar

    def _put(self, language: str, jar: Sandbox) -> None:
        with self._change:
            if not self._closed:
                self._ready[language].append(jar)
                return
        jar.close()

    def _bury(self) -> None:
        """Close what was used, off every caller's path."""
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closed or self._used)
                if not self._used:
                    return
                jar = self._used.popleft()
            with contextlib.suppress(BelljarError, OSError):
                jar.close()

    def close(self) -> None:
        """End all of them, used or not."""
        with self._change:
            self._closed = True
            for ready in self._ready.values():
                self._used.extend(ready)
                ready.clear()
            while self._places:
                self._places.next().woken.set()
            self._change.notify_all()
        for thread in self._threads:
            thread.join()


def _fill(jar: Sandbox, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        try:
            jar.files.write(path, content)
        except OSError as error:
            from belljar.backends.pool_contract import does_not_fit

            raise does_not_fit(f"{path}: {error.strerror or error}") from error


__all__ = ["SandboxStock"]
