"""`Pool`: code in fresh jars that have been waiting for it."""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from belljar.audit import killswitch
from belljar.backends.pool_contract import pool_backend
from belljar.backends.runtimes import language_named
from belljar.errors import BelljarError, PolicyError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.files.kept_files import KeptFiles
from belljar.sandbox.files.workspace_files import has_bytes
from belljar.sandbox.pool.pool_map import Batch
from belljar.sandbox.pool.work import PoolWork
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.inputs import Input
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.record.stream import Handle, Stream
from belljar.sandbox.run.backend_choice import open_best
from belljar.sandbox.run.sandbox import PolicyLike, code_bytes, last, resolved
from belljar.state import state_directory

if TYPE_CHECKING:
    from belljar.egress.events import Event
    from belljar.policy.keys.units import Duration
    from belljar.sandbox.pool.sandbox_stock import SandboxStock
    from belljar.sandbox.pool.zygote_runs import Primed, ZygoteRuns

_MOST_TIMES = 1000
_MOST_WORDS = 20_000


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """What a pool has done and has ready. Times are of the last thousand runs, in seconds, as callers saw them."""

    runs: int
    by_outcome: Mapping[str, int]
    waiting: int
    """Jars that are ready."""
    running: int
    queued: int
    """Runs for which there is no jar yet."""
    zygotes: int
    """Interpreters from which jars were cloned: more than one, if one has died."""
    p50: float
    p95: float

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.by_outcome.items())) or "none yet"
        return (
            f"{self.runs} runs ({ends}); {self.waiting} jars wait, {self.running} run, {self.queued} runs are queued; "
            f"half of the runs took {1000 * self.p50:.1f} ms, 95 % less than {1000 * self.p95:.1f} ms"
        )


class Pool:
    """Runs code, each time in a jar that nobody has used and nobody will use again.

    Python on bubblewrap is up before the code comes, with `preload` imported: a run starts in about a millisecond. For
    other languages, and on other backends, whole Sandboxes wait. Runs share nothing, no workspace either; files go in
    with `files=` and come out with `artifacts=`.

    Args:
        policy: As for `Sandbox`.
        size: How many jars are kept waiting, for each language.
        preload: Modules of Python's that are imported once, for all runs. They must start no threads.
        backend: Which backend to use, instead of the policy's.
        overrides: `key=value`, as `--set` takes them.
        timeout: Instead of the policy's: seconds, a `timedelta`, or text such as `30s`.
        on_egress: Called with each decision of the egress proxy, as it is made, from a thread of belljar's.

    Raises:
        PolicyError: the policy can't be read, or asks for what runs of a pool can't have.
        PrerequisiteError: no backend that the policy allows works on this host.
        SandboxUnavailableError: a module can't be preloaded.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        size: int = 4,
        preload: Sequence[str] = (),
        backend: str | None = None,
        overrides: Sequence[str] = (),
        timeout: Duration | None = None,
        on_egress: Callable[[Event], None] | None = None,
    ) -> None:
        if isinstance(preload, str):
            raise UsageError("preload is a list of modules, not one name", hint=f"preload=[{preload!r}]")
        if not isinstance(size, int) or not 1 <= size <= 2000:
            raise UsageError(f"size is {size!r}: a pool keeps 1 to 2000 jars waiting")
        self.policy = resolved(
            policy, backend=backend, workspace=None, live=False, overrides=overrides, timeout=timeout
        )
        _refuse_shared(self.policy)
        self._lock = threading.Lock()
        self._running: set[Handle] = set()
        self._times: deque[float] = deque(maxlen=_MOST_TIMES)
        self._outcomes: dict[str, int] = {}
        self._size, self._on_egress = size, on_egress
        self._closed = False
        self._sandbox_stock: SandboxStock | None = None
        self._zygote_runs: ZygoteRuns | None = None
        self._clone: Callable[[], ZygoteRuns] | None = None
        """How jars for Python are made, where they are cloned."""
        self._opening = threading.Lock()
        chosen, _fallback = open_best(self.policy, state=state_directory())
        self.backend_name = chosen.name
        if (cloning := pool_backend(chosen)) is not None:
            from belljar.sandbox.pool.zygote_runs import ZygoteRuns

            self._clone = lambda: ZygoteRuns(cloning, self.policy, size, preload, on_egress)
            self._zygote_runs = self._clone()
        elif preload:
            raise UsageError(f"preload is for bubblewrap, and the policy's backend is {chosen.name}")
        else:
            self._other("python")
        CONTROL.open_pool(id(self), weakref.ref(self))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- running ---

    def run(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        name: str = "",
        args: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        stdin: Input = None,
        artifacts: str | os.PathLike[str] | KeptFiles | None = None,
        overwrite: bool = False,
    ) -> RunResult:
        """Run code and wait for its end.

        Args:
            code: The program.
            language: `python`, `javascript` or `bash`.
            name: What its file is called, for tracebacks.
            args: Its arguments.
            files: What it finds in its workspace: content by path.
            stdin: What it reads.
            artifacts: A directory into which the files are copied that it made, or `KeptFiles`. Files that are not
                written there are in the result's `not_saved`, each with the reason.
            overwrite: Whether files that are in that directory may be replaced.

        Raises:
            SandboxUnavailableError: the jar broke. What the code itself does wrong is in the result.
            UsageError: something is not as it should be, or the files do not fit into the jar.
        """
        return last(
            self.stream(
                code,
                language=language,
                name=name,
                args=args,
                files=files,
                stdin=stdin,
                artifacts=artifacts,
                overwrite=overwrite,
            )
        )

    def stream(
        self,
        code: str | bytes,
        *,
        language: str = "python",
        name: str = "",
        args: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        stdin: Input = None,
        artifacts: str | os.PathLike[str] | KeptFiles | None = None,
        overwrite: bool = False,
    ) -> Stream:
        """Run code, and yield its output as it is produced; the last event is `Finished`. Leaving it ends the run."""
        return self.of_caller(
            threading.get_ident(),
            code,
            language=language,
            name=name,
            args=args,
            files=files,
            stdin=stdin,
            artifacts=artifacts,
            overwrite=overwrite,
        )

    def of_caller(
        self,
        caller: Hashable,
        code: str | bytes,
        *,
        language: str = "python",
        name: str = "",
        args: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        stdin: Input = None,
        artifacts: str | os.PathLike[str] | KeptFiles | None = None,
        overwrite: bool = False,
    ) -> Stream:
        """As `stream`, and for whom: where runs have to wait, the callers take turns. For belljar itself."""
        known, text, content, early = language_named(language), code_bytes(code), {}, None
        words = _words(args) if args else ()
        if files:
            content = {path: code_bytes(data) for path, data in files.items()}
            _check_paths(content)
        into = artifacts if artifacts is None or isinstance(artifacts, KeptFiles) else os.fspath(artifacts)
        if isinstance(into, str):
            from belljar.sandbox.files.host_directory import check_target

            check_target(into)
        if known == "python" and self._zygote_runs is not None and stdin is None and not files:
            early = self._zygote_runs.begun(text, name, words)
        work = PoolWork(text, known, name, words, content, stdin, into, caller, overwrite)
        handle = Handle()
        return Stream(handle, self._events(handle, work, early))

    def _events(self, handle: Handle, work: PoolWork, early: Primed | None) -> Iterator[Output | Finished]:
        with self._lock:
            self._running.add(handle)  # from here on no jars are dropped
        try:
            if self._zygote_runs is None and self._sandbox_stock is None:
                killswitch.check()  # before anything is made that would be dropped again
            clones = (self._zygote_runs or self._cloned()) if work.language == "python" else None
            events = clones.events(handle, work, early) if clones else self._other(work.language).events(handle, work)
            try:
                for event in events:
                    if isinstance(event, Finished):
                        self._count(event.result)
                    yield event
            finally:
                events.close()
        finally:
            with self._lock:
                self._running.discard(handle)

    def _cloned(self) -> ZygoteRuns | None:
        """The jars for Python, where they are cloned; made anew if the kill switch was on."""
        if self._zygote_runs is None and self._clone is not None:
            with self._opening:
                if self._zygote_runs is None and not self._closed:
                    self._zygote_runs = self._clone()
        return self._zygote_runs

    def drop_waiting(self) -> None:
        """Let go of every jar that waits, unless there is a run: the kill switch is on. The next run makes others."""
        with self._lock:
            if self._running or self._closed:
                return
            clones, self._zygote_runs = self._zygote_runs, None
            stock, self._sandbox_stock = self._sandbox_stock, None
        for jars in (clones, stock):
            if jars is not None:
                jars.close()

    def _other(self, language: str) -> SandboxStock:
        """The Sandboxes that wait for a language that is not cloned."""
        with self._lock:
            if self._closed:
                raise UsageError("this Pool is closed")
            if self._sandbox_stock is None:
                from belljar.sandbox.pool.sandbox_stock import SandboxStock

                self._sandbox_stock = SandboxStock(self.policy, self._size, self._on_egress)
            self._sandbox_stock.ask_for(language)
            return self._sandbox_stock

    def map(
        self, codes: Iterable[str | bytes], *, concurrency: int | None = None, ordered: bool = True
    ) -> Generator[RunResult, None, None]:
        """Run many, some at a time, and yield their results: in order, or as they finish.

        No more of `codes` is taken than twice as many as run at a time: whoever makes them waits for whoever takes the
        results. Leaving it ends what runs.
        """
        return self._mapped(codes, Batch(codes, concurrency, ordered=ordered))

    def _mapped(self, codes: Iterable[str | bytes], batch: Batch) -> Generator[RunResult, None, None]:
        try:
            for code in codes:
                batch.add(self.of_caller(batch, code))
                while batch.is_full:
                    batch.wait()
                    yield batch.take()
            while batch:
                batch.wait()
                yield batch.take()
        finally:  # whoever leaves early wants no more of them
            batch.end()

    def kill(self, reason: str = "killed") -> None:
        """End every run, from any thread. The pool goes on."""
        with self._lock:
            for handle in self._running:
                handle.kill(reason)

    # --- what it has done ---

    def _count(self, result: RunResult) -> None:
        with self._lock:
            self._times.append(result.duration)
            self._outcomes[str(result.outcome)] = self._outcomes.get(str(result.outcome), 0) + 1

    def statistics(self) -> PoolStatistics:
        """What it has done so far, and what it has ready: nothing, if it is closed."""
        seen = {"waiting": 0, "running": 0, "queued": 0, "zygotes": 0}
        clones, stock = (None, None) if self._closed else (self._zygote_runs, self._sandbox_stock)
        if clones:
            try:
                seen = clones.statistics()
            except (BelljarError, OSError):
                if clones is self._zygote_runs and not self._closed:
                    raise
                # else they were let go of meanwhile, and there is nothing
        if stock:
            seen["waiting"] += stock.waiting
            seen["running"] += stock.running
            seen["queued"] += stock.queued
        with self._lock:
            times, outcomes = sorted(self._times), dict(self._outcomes)
        return PoolStatistics(
            runs=sum(outcomes.values()),
            by_outcome=outcomes,
            waiting=seen["waiting"],
            running=seen["running"],
            queued=seen["queued"],
            zygotes=seen["zygotes"],
            p50=times[len(times) // 2] if times else 0.0,
            p95=times[len(times) * 95 // 100] if times else 0.0,
        )

    def state(self) -> dict[str, Any]:
        """How many jars wait and run, for metrics; nothing if it is closed, or broken."""
        if self._closed:
            return {}
        try:
            seen = self.statistics()
        except (BelljarError, OSError):
            return {}
        told = {"backend": self.backend_name, "size": self._size, "waiting": seen.waiting, "running": seen.running}
        return {**told, "queued": seen.queued}

    def close(self) -> None:
        """End every run, and let go of every jar."""
        CONTROL.close_pool(id(self))
        with self._lock:
            self._closed = True
        self.kill("abandoned")
        if self._zygote_runs:
            self._zygote_runs.close()
        if self._sandbox_stock:
            self._sandbox_stock.close()


def _refuse_shared(policy: Policy) -> None:
    shared = [mount.path for mount in policy.fs.mounts if mount.source is not None and mount.rw]
    if shared:
        raise PolicyError(
            f"a pool's runs share nothing, so {shared[0]} can't be a directory of the host's that they write to",
            hint="leave the workspace out, or mount it read-only",
        )
    if policy.net.publish:
        raise PolicyError(
            "a pool's runs can't publish a port: there may be many at once, and there is one port",
            hint="use a Sandbox for a server",
        )


def _check_paths(files: Mapping[str, bytes]) -> None:
    for path in files:
        names = path.split("/")
        if not {"", ".", ".."}.isdisjoint(names) or "\0" in path or not has_bytes(path):
            raise UsageError(f"{path!r} is no path in the workspace", hint="give a relative one: data/input.csv")
        for depth in range(1, len(names)):
            if (above := "/".join(names[:depth])) in files:
                raise UsageError(f"{above!r} can't be a file and hold {path!r} as well", hint="rename one of them")


def _words(args: Sequence[str]) -> tuple[str, ...]:
    words = tuple(args)
    if isinstance(args, str) or not all(isinstance(word, str) and has_bytes(word) for word in words):
        raise UsageError("arguments are a list of words", hint="write str(…) around what is not text")
    if any("\0" in word for word in words):
        raise UsageError("an argument can't hold a NUL character")
    if sum(map(len, words)) > _MOST_WORDS:
        raise UsageError(f"the arguments are longer than {_MOST_WORDS} characters", hint="pass them in a file: files=")
    return words


__all__ = ["Pool", "PoolStatistics"]
