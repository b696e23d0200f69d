"""Python in a pool, where the backend has jars wait: they are cloned from one interpreter, ahead of time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from belljar.backends.contract import ChangedTree, Clause, End, EnforcementReport, Entry, JarGoneError
from belljar.backends.hostile_files import open_beneath, walk
from belljar.backends.pool_contract import PoolBackend, PooledJar
from belljar.errors import PolicyError, UsageError
from belljar.guest.pool.pooled_code import MAIN
from belljar.policy.models import Policy
from belljar.sandbox.pool.work import PoolWork
from belljar.sandbox.record import recording, tracing
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.inputs import at_once, opened_input
from belljar.sandbox.record.result import Artifact, RunResult
from belljar.sandbox.record.stream import Access, Handle, new_run_id
from belljar.sandbox.run.lifecycle import Acquired, Life
from belljar.sandbox.run.sandbox import network_of

if TYPE_CHECKING:
    from belljar.egress.events import Event
    from belljar.sandbox.files.snapshots import Held
    from belljar.sandbox.network.network import Network
    from belljar.sandbox.pool.pool_network import JarNetwork

_MOST_ARTIFACTS = 1000
_MAY_WAKE = len(os.sched_getaffinity(0)) > 1
"""Whether a processor is left for a jar that waits awake while its caller writes down that it runs."""


class Primed:
    """A jar that has been given what to run before anybody waits for its output. It is one run's, or nobody's."""

    __slots__ = ("_jar", "_jars", "_owner")

    def __init__(self, jars: ZygoteRuns, jar: PooledJar) -> None:
        self._jars = jars
        self._jar = jar
        self._owner = os.getpid()
        jars.early.add(jar)

    def taken(self, jars: ZygoteRuns) -> PooledJar | None:
        """The jar, once, if it is one of these, and of this process: one that was forked has a copy of everything."""
        if self._owner != os.getpid():
            return None
        try:
            jars.early.remove(self._jar)
        except KeyError:
            return None
        return self._jar

    def __del__(self) -> None:
        if self._owner != os.getpid() or self.taken(self._jars):  # nobody here ever asked for its output
            self._jars.let_go(self._jar)


class ZygoteRuns:
    """The jars that wait, and the runs that take them."""

    def __init__(
        self,
        backend: PoolBackend,
        policy: Policy,
        size: int,
        preload: Sequence[str],
        on_egress: Callable[[Event], None] | None,
    ) -> None:
        self.policy = policy
        self._network = network_of(policy, on_egress)
        self.planted = _in_workspace(policy, self._network)
        if self._network:
            self._network.prepare()
        trust = self._network.trust if self._network else None
        prepare = None
        if self._network:
            from belljar.sandbox.pool.pool_network import Serving

            prepare = Serving(self._network)
        self.plan, self._jars = backend.open_pool(policy, size=size, preload=preload, trust=trust, prepare=prepare)
        self.report = EnforcementReport((*self.plan.report.clauses, *self._jars.shortfalls), self.plan.report.unseen)
        self.refused = self.report.refused_by(policy)
        self.same = recording.Begun(policy, self.plan)
        self._timeout = policy.proc.timeout_seconds
        self._running: set[PooledJar] = set()
        self.early: set[PooledJar] = set()
        """Those that have been given something before it was asked for."""
        self._handles: set[Handle] = set()
        """Of all that was asked for and has not ended, whether there is a jar for it or not."""

    def statistics(self) -> dict[str, int]:
        """How many jars wait and run, how many runs wait for one, and how many interpreters there have been."""
        return {**self._jars.statistics(), "running": len(self._running)}

    def close(self) -> None:
        """End every run, and let go of every jar."""
        while True:
            try:
                jar = self.early.pop()
            except KeyError:
                break
            self.let_go(jar)
        self._jars.close()

    def begun(self, code: bytes, name: str, arguments: Sequence[str]) -> Primed | None:
        """A jar that gets ready for it from now on, for a run that is the only one: it begins in a moment.

        One that did not, and there were many, would keep jars from others.
        """
        if self._handles or self.early or self.refused or self.planted or not _MAY_WAKE:
            return None
        try:  # whatever is wrong, the run is told
            body = self._jars.packed(code, _usable(name), arguments)
            jar = self._jars.take_ready() if body is not None else None
        except (UsageError, UnicodeError):
            return None
        if jar is None or body is None:
            return None
        try:
            jar.give_at_once(body)
        except (JarGoneError, OSError):
            self.let_go(jar)
            return None
        except BaseException:
            self.let_go(jar)
            raise
        return Primed(self, jar)

    def events(
        self, handle: Handle, work: PoolWork, early: Primed | None = None
    ) -> Generator[Output | Finished, None, None]:
        """Run it in a jar that nobody has used and nobody will use again."""
        started = time.monotonic()
        self._handles.add(handle)
        run = _ZygoteRun(self, work)
        try:
            run.hand_over(early)  # before all else: while the jar gets ready, there is time for the rest
            run_id = new_run_id()
            spans = tracing.start("belljar.run", run_id, since=started)
            yield from Life(run, handle, run_id, started=started, spans=spans).events()
        finally:
            run.close()
            self._handles.discard(handle)

    def given(self, work: PoolWork, files: Mapping[str, bytes]) -> PooledJar | None:
        """A jar that gets ready for it while it is written down that it is to run; if one waits, and it is quick."""
        if work.stdin is not None or (jar := self._jars.take_ready()) is None:
            return None
        try:
            jar.give(work.code, _usable(work.name), work.arguments, files, None)
        except JarGoneError:
            self.let_go(jar)
            return None
        except BaseException:
            self.let_go(jar)
            raise
        return jar

    def start(
        self, handle: Handle, run_id: str, work: PoolWork, files: Mapping[str, bytes], given: PooledJar | None
    ) -> PooledJar | End:
        """The run, in a jar; or its end, if it came to none. A jar that died while it waited is no reason to fail."""
        if work.stdin is None:
            return self._started_with(None, handle, run_id, work, files, given)
        with opened_input(work.stdin) as stdin:
            return self._started_with(stdin, handle, run_id, work, files, given)

    def _started_with(  # noqa: PLR0917 - what a run is made of
        self,
        stdin: int | None,
        handle: Handle,
        run_id: str,
        work: PoolWork,
        files: Mapping[str, bytes],
        given: PooledJar | None,
    ) -> PooledJar | End:
        while True:
            jar = given or self._jars.take(handle.started, work.caller)
            if isinstance(jar, End):
                return jar
            try:
                if given is None:
                    jar.give(work.code, _usable(work.name), work.arguments, files, stdin)
                if (network := _network(jar)) and (end := network.begin(run_id, handle)):
                    self.let_go(jar)
                    return end
                jar.start(self._timeout)
            except JarGoneError:
                self.let_go(jar)
                given = None
            except BaseException:
                self.let_go(jar)
                raise
            else:
                self._running.add(jar)
                return jar

    def judged(self, jar: PooledJar, end: End) -> End:
        """Return the run's end: a jar that died with its zygote was lost."""
        return self._jars.judged(jar, end)

    def ended(self, jar: PooledJar, *, at_once: bool) -> None:
        """Forget a run that is over. Its jar is closed when nobody waits, or `at_once` if it may still live."""
        self._running.discard(jar)
        if at_once:
            self.let_go(jar)
        else:
            self._jars.bury(jar)

    def let_go(self, process: PooledJar) -> None:
        """At once: if there is still something of it, that is ended."""
        process.close()
        self._jars.bury(process)


class _ZygoteRun:
    """A run in a cloned jar: how it is recorded, and how its jar is acquired."""

    def __init__(self, runs: ZygoteRuns, work: PoolWork) -> None:
        self._runs = runs
        self._work = work
        self._files = {**runs.planted, **work.files} if runs.planted or work.files else {}
        self._given: PooledJar | None = None
        """A jar that has the code already, and waits to be let go."""
        self._handle: Handle | None = None
        """While the run is in its jar."""
        self.policy = runs.policy
        self.plan = runs.plan
        self.fallback_from: tuple[str, ...] = ()

    def hand_over(self, early: Primed | None) -> None:
        """Hand the code to a jar that waits, if there is one. It does not start before the run is recorded."""
        self._given = early.taken(self._runs) if early else None
        if self._given is None and not self._runs.refused:
            self._given = self._runs.given(self._work, self._files)

    def record(self, run_id: str) -> bool:
        """Record the run, and that its code starts, unless the policy refuses it."""
        work, runs = self._work, self._runs
        details = recording.code_details(work.code, (), "python", work.arguments, work.name)
        if work.stdin is not None or work.files:
            work = self._work = work._replace(stdin=at_once(work.stdin))
            details |= recording.input_details(work.stdin, len(work.files))
        recording.begin(run_id, "pool", runs.same, self.plan, starts=not runs.refused, **details)
        return True

    def open(self) -> tuple[EnforcementReport, tuple[Clause, ...]]:
        """Return how far each clause holds in the pool's jars, which are open."""
        return self._runs.report, self._runs.refused

    @contextmanager
    def acquire(self, life: Life) -> Iterator[Acquired | End]:
        """Take a jar, and let the code start in it."""
        runs, work, handle = self._runs, self._work, life.handle
        told = {"backend": self.plan.backend, "policy": self.plan.policy_digest, "language": "python"}
        CONTROL.enter(life.run_id, handle, **told, **({"script": work.name} if work.name else {}))
        try:
            given, self._given = self._given, None
            jar = runs.start(handle, life.run_id, work, self._files, given)
            if isinstance(jar, End):
                yield jar
                return
            self._handle = handle
            try:
                handle.access = Access(self.policy, self.plan, jar, _held(jar))
                handle.started(jar)
                yield _AcquiredJar(jar, _network(jar), runs)
            finally:
                self._leave(jar, at_once=True)
        finally:
            CONTROL.leave(life.run_id)

    def made(self, acquired: Acquired) -> tuple[Artifact, ...]:
        """Return the files that the run made, or that it was given and changed."""
        return _made(cast("PooledJar", acquired.process).workspace, self._files)

    def settled(self, acquired: Acquired, result: RunResult) -> RunResult:
        """Save the files that the run made, if that is wanted: they are gone with the jar."""
        work = self._work
        if work.artifacts is not None and result.artifacts:
            from belljar.sandbox.files.artifacts import save

            if isinstance(work.artifacts, str):
                place = os.path.abspath(work.artifacts)
                recording.files("save", run=result.run_id, directory=place, count=len(result.artifacts))
            made = [artifact.path for artifact in result.artifacts]
            workspace = cast("PooledJar", acquired.process).workspace
            saved = save(workspace, made, work.artifacts, self.policy, overwrite=work.overwrite)
            if saved.refused:
                result = result.but_not_saved(saved.refused)
        self._leave(cast("PooledJar", acquired.process), at_once=False)
        return result

    def _leave(self, jar: PooledJar, *, at_once: bool) -> None:
        """Forget the run, once: when it is settled, or when something went wrong before."""
        if self._handle is not None:
            self._handle.ended()
            self._handle = None
            self._runs.ended(jar, at_once=at_once)

    def close(self) -> None:
        """Close the jar that has the code, if the run never came to it."""
        if self._given is not None:
            self._runs.let_go(self._given)
            self._given = None


class _AcquiredJar(Acquired):
    """A jar of the pool's, for one run."""

    __slots__ = ("_runs",)

    def __init__(self, jar: PooledJar, network: JarNetwork | None, runs: ZygoteRuns) -> None:
        super().__init__(jar, network)
        self._runs = runs

    def end(self) -> End:
        """Wait for the end, and look whether the zygote died as well."""
        return self._runs.judged(cast("PooledJar", self.process), super().end())


def _held(process: PooledJar) -> Callable[[], Held]:
    """What a jar holds: its workspace is its own, and gone with it."""

    def held() -> Held:
        from belljar.sandbox.files.snapshots import Held

        return Held(ChangedTree(os.dup(process.workspace), layered=False), None, (), {})

    return held


def _network(jar: PooledJar) -> JarNetwork | None:
    return cast("JarNetwork | None", jar.prepared)


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


def _usable(name: str) -> str:
    if not name:
        return MAIN
    name = os.path.basename(name)
    usable = name.isprintable() and len(os.fsencode(name)) < 200 and name not in ("", ".", "..")
    return name if usable else MAIN


def _made(workspace: int, given: Mapping[str, bytes]) -> tuple[Artifact, ...]:
    """The files that the run made, or that it was given and changed."""
    if not os.listdir(workspace):
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


__all__ = ["ZygoteRuns"]
