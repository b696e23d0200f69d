"""Sandboxes that wait for one run each: what a pool has where there is no interpreter to clone jars from."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from belljar.errors import BelljarError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.events import Finished, Output
from belljar.sandbox.sandbox import Sandbox
from belljar.sandbox.stream import Handle
from belljar.sandbox.work import Work

if TYPE_CHECKING:
    from belljar.egress.events import Event

_CLOSERS = 2


class Stock:
    """For each language that was asked for, some Sandboxes, each with a jar at its gate. A thread makes more."""

    def __init__(self, policy: Policy, size: int, on_egress: Callable[[Event], None] | None) -> None:
        self._policy = policy
        self._size = size
        self._on_egress = on_egress
        self._ready: dict[str, deque[Sandbox]] = {}
        self._used: deque[Sandbox] = deque()
        self._change = threading.Condition()
        self._closed = False
        self._running = 0
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

    def ask_for(self, language: str) -> None:
        """Have some wait for this language, from now on."""
        with self._change:
            self._ready.setdefault(language, deque())
            self._change.notify_all()

    def events(self, handle: Handle, work: Work) -> Generator[Output | Finished, None, None]:
        """Run it in one that nobody has used and nobody will use again."""
        jar = self._take(work.language)
        try:
            for path, content in work.files.items():
                jar.files.write(path, content)
            with jar.stream(
                work.code, language=work.language, name=work.name, args=work.arguments, stdin=work.stdin
            ) as stream:
                handle.started(stream)
                for event in stream:
                    if isinstance(event, Finished) and work.artifacts is not None:
                        jar.save_artifacts(event.result, work.artifacts)
                    yield event
        finally:
            handle.ended()
            self._give_back(jar)

    def _take(self, language: str) -> Sandbox:
        with self._change:
            if self._closed:
                raise UsageError("this Pool is closed")
            self._running += 1
            ready = self._ready.setdefault(language, deque())
            self._change.notify_all()
            if ready:
                return ready.popleft()
        return Sandbox(self._policy, one_shot=True, on_egress=self._on_egress)

    def _give_back(self, jar: Sandbox) -> None:
        with self._change:
            self._running -= 1
            self._used.append(jar)
            self._change.notify_all()

    def _wanted(self) -> str | None:
        return next((language for language, ready in self._ready.items() if len(ready) < self._size), None)

    def _fill(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._closed or self._wanted() is not None)
                if self._closed:
                    return
                language = self._wanted()
            assert language is not None
            jar = Sandbox(self._policy, one_shot=True, on_egress=self._on_egress)
            try:
                jar.prepare(language=language)
            except BelljarError:  # told by the run that then has to make its own
                jar.close()
                with self._change:
                    self._change.wait(1.0)
                continue
            self._put(language, jar)

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
            self._change.notify_all()
        for thread in self._threads:
            thread.join()


__all__ = ["Stock"]
