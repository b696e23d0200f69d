"""`Pool`: Python code in fresh jars that have been waiting for it."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from belljar.audit.state import state_directory
from belljar.backends.contract import EnforcementReport, Entry, LaunchPlan
from belljar.backends.hostile_files import open_beneath, walk
from belljar.errors import PolicyError, UsageError
from belljar.policy.models import Policy
from belljar.policy.records import dataclass
from belljar.sandbox.detect import open_best
from belljar.sandbox.events import Finished, Output
from belljar.sandbox.files import has_bytes
from belljar.sandbox.inputs import Input, opened_input
from belljar.sandbox.result import Artifact, RunResult
from belljar.sandbox.running import Watch, make_result, new_run_id, refused_result
from belljar.sandbox.sandbox import last, network_of, resolved
from belljar.sandbox.stream import Handle, Stream

if TYPE_CHECKING:
    from belljar.backends.bubblewrap.backend import BubblewrapBackend
    from belljar.egress.events import Event
    from belljar.sandbox.network import Network

PolicyLike = Policy | str | os.PathLike[str] | Mapping[str, Any] | None

_MOST_ARTIFACTS = 1000
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


class _Work(NamedTuple):
    """One run."""

    code: bytes
    name: str
    arguments: tuple[str, ...]
    files: Mapping[str, bytes]
    artifacts: str | None


class Pool:
    """Runs Python code, each time in a jar that nobody has used and nobody will use again.

    An interpreter is up before the code comes, with `preload` imported: a run starts in about a millisecond. Runs share
    nothing, no workspace either; files go in with `files=` and come out with `artifacts=`. For other languages, and for
    a workspace of the host's, there is `Sandbox`.

    Args:
        policy: As for `Sandbox`.
        size: How many jars are kept waiting.
        preload: Modules that are imported once, for all runs. They must start no threads.
        overrides: `key=value`, as `--set` takes them.
        timeout: Instead of the policy's, as `30s`.
        on_egress: Called with each decision of the egress proxy, as it is made, from a thread of belljar's.

    Raises:
        PolicyError: the policy can't be read, or asks for what runs of a pool can't have.
        PrerequisiteError: bubblewrap does not work on this host.
        SandboxUnavailableError: a module can't be preloaded.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        size: int = 4,
        preload: Sequence[str] = (),
        overrides: Sequence[str] = (),
        timeout: str | None = None,
        on_egress: Callable[[Event], None] | None = None,
    ) -> None:
        if not 1 <= size <= 2000:
            raise UsageError(f"size is {size}: a pool keeps 1 to 2000 jars waiting")
        self.policy = _resolved(policy, overrides, timeout)
        self._lock = threading.Lock()
        self._running: set[Handle] = set()
        self._times: deque[float] = deque(maxlen=_MOST_TIMES)
        self._outcomes: dict[str, int] = {}
        backend, _fallback = open_best(self.policy, state=state_directory())
        if backend.name != "bubblewrap":
            raise PolicyError(
                f"a pool needs bubblewrap, and the policy's backend is {backend.name}",
                hint="use a Sandbox, or backend: auto",
            )
        self._network = network_of(self.policy, on_egress)
        self._planted = _in_workspace(self.policy, self._network)
        trust = None
        if self._network:
            self._network.prepare()
            trust = self._network.trust
        self._plan, self._jars = cast("BubblewrapBackend", backend).open_pool(
            self.policy, size=size, preload=preload, trust=trust
        )
        self._report = EnforcementReport((*self._plan.report.clauses, *self._jars.shortfalls), self._plan.report.unseen)
        self._refused = self._report.refused_by(self.policy)

    @property
    def plan(self) -> LaunchPlan:
        """What each run's jar is made of, and how far each clause of the policy holds."""
        return self._plan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- running ---

    def run(
        self,
        code: str | bytes,
        *,
        name: str = "",
        args: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        stdin: Input = None,
        artifacts: str | os.PathLike[str] | None = None,
    ) -> RunResult:
        """Run code and wait for its end.

        Args:
            code: The program.
            name: What its file is called, for tracebacks.
            args: Its arguments.
            files: What it finds in its workspace: content by path.
            stdin: What it reads.
            artifacts: A directory into which the files are copied that it made.

        Raises:
            SandboxUnavailableError: the jar broke. What the code itself does wrong is in the result.
        """
        return last(self.stream(code, name=name, args=args, files=files, stdin=stdin, artifacts=artifacts))

    def stream(
        self,
        code: str | bytes,
        *,
        name: str = "",
        args: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        stdin: Input = None,
        artifacts: str | os.PathLike[str] | None = None,
    ) -> Stream:
        """Run code, and yield its output as it is produced; the last event is `Finished`. Leaving it ends the run."""
        if isinstance(args, str) or not all(
            isinstance(word, str) and has_bytes(word) and "\0" not in word for word in args
        ):
            raise UsageError("arguments are a list of words", hint="each of them text, without NUL characters")
        if sum(map(len, args)) > _MOST_WORDS:
            raise UsageError(
                f"the arguments are longer than {_MOST_WORDS} characters", hint="pass them in a file: files="
            )
        handle = Handle()
        content = {path: _bytes(text) for path, text in (files or {}).items()}
        for path in content:
            if not {"", ".", ".."}.isdisjoint(path.split("/")) or "\0" in path or not has_bytes(path):
                raise UsageError(f"{path!r} is no path in the workspace", hint="give a relative one: data/input.csv")
        run_id = new_run_id()
        if self._refused:
            result = refused_result(self.policy, self._plan, run_id, self._report, self._refused)
            return Stream(handle, iter((Finished(result),)))
        work = _Work(
            _bytes(code), _usable(name), tuple(args), content, None if artifacts is None else os.fspath(artifacts)
        )
        return Stream(handle, self._events(handle, run_id, work, stdin))

    def _events(self, handle: Handle, run_id: str, work: _Work, stdin: Input) -> Iterator[Output | Finished]:
        started = time.monotonic()
        with self._network.of_run(run_id, handle.kill) if self._network else contextlib.nullcontext() as network:
            with opened_input(stdin) as given:
                descriptor = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC) if given is None else given
                process = self._jars.start(
                    work.code,
                    name=work.name,
                    arguments=work.arguments,
                    files={**self._planted, **work.files},
                    stdin=descriptor,
                    timeout_seconds=self.policy.proc.timeout_seconds,
                )
                if given is None:
                    os.close(descriptor)
            with self._lock:
                self._running.add(handle)
            try:
                handle.started(process)
                if network:
                    network.serve(process)
                watch = Watch(process, self.policy.proc.output_bytes)
                yield from watch.events()
                end = process.end()
                if network:
                    network.close()
                    end = network.judged(end)
                result = make_result(
                    self.policy,
                    self._plan,
                    watch,
                    end,
                    run_id=run_id,
                    report=self._report,
                    started=started,
                    artifacts=_made(process.workspace, {**self._planted, **work.files}),
                    fallback_from=(),
                    traffic=network.traffic if network else None,
                )
                self._count(result)
                if work.artifacts is not None and result.artifacts:
                    from belljar.sandbox.artifacts import save

                    save(process.workspace, [artifact.path for artifact in result.artifacts], work.artifacts)
                yield Finished(result)
            finally:
                handle.ended()
                with self._lock:
                    self._running.discard(handle)
                process.close()

    def map(
        self, codes: Iterable[str | bytes], *, concurrency: int | None = None, ordered: bool = True
    ) -> Iterator[RunResult]:
        """Run many, some at a time, and yield their results: in order, or as they finish.

        No more of `codes` is taken than twice as many as run at a time: whoever makes them waits for whoever takes the
        results.
        """
        workers = concurrency or os.cpu_count() or 1
        with ThreadPoolExecutor(workers, thread_name_prefix="belljar-pool") as threads:
            pending: dict[Future[RunResult], Stream] = {}
            try:
                for code in codes:
                    stream = self.stream(code)
                    pending[threads.submit(last, stream)] = stream
                    while len(pending) >= 2 * workers:
                        yield _next(pending, ordered=ordered)
                while pending:
                    yield _next(pending, ordered=ordered)
            finally:  # whoever leaves early wants no more of them
                for future, stream in pending.items():
                    future.cancel()
                    stream.kill("abandoned")

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
        """What it has done so far, and what it has ready."""
        seen = self._jars.statistics()
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

    def close(self) -> None:
        """End every run, and let go of every jar."""
        self._jars.close()


def _next(pending: dict[Future[RunResult], Stream], *, ordered: bool) -> RunResult:
    done = next(iter(pending)) if ordered else next(iter(wait(pending, return_when=FIRST_COMPLETED).done))
    result = done.result()
    del pending[done]
    return result


def _resolved(policy: PolicyLike, overrides: Sequence[str], timeout: str | None) -> Policy:
    return resolved(policy, backend=None, workspace=None, live=False, overrides=overrides, timeout=timeout)


def _in_workspace(policy: Policy, network: Network | None) -> dict[str, bytes]:
    """The canary tokens, as files that every run is given."""
    planted = dict(network.planted) if network else {}
    top = f"{policy.fs.workdir.rstrip('/')}/"
    for path in planted:
        if not path.startswith(top):
            raise PolicyError(
                f"net.canary_files: {path} is not in the workspace of a pool's runs", hint=f"put it beneath {top}"
            )
    return {path[len(top) :]: content for path, content in planted.items()}


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _usable(name: str) -> str:
    name = os.path.basename(name)
    usable = name.isprintable() and len(os.fsencode(name)) < 200 and name not in ("", ".", "..")
    return name if usable else "main.py"


def _made(workspace: int, given: Mapping[str, bytes]) -> tuple[Artifact, ...]:
    """The files that the run made, or that it was given and changed."""
    if workspace < 0:
        return ()
    made = [
        Artifact(entry.path, entry.size)
        for entry in walk(workspace, own=True)
        if entry.kind == "file" and not _is_as_given(workspace, entry, given.get(entry.path))
    ]
    return tuple(sorted(made, key=lambda artifact: artifact.path)[:_MOST_ARTIFACTS])


def _is_as_given(workspace: int, entry: Entry, content: bytes | None) -> bool:
    if content is None or len(content) != entry.size:
        return False
    with os.fdopen(open_beneath(workspace, entry.path, os.O_RDONLY, own=True), "rb") as file:
        return file.read(len(content) + 1) == content


__all__ = ["Pool", "PoolStatistics"]
