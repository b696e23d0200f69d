"""Python on bubblewrap, in a pool: jars that are cloned from one interpreter, ahead of time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from belljar.backends.bubblewrap.pool_process import JarGoneError, PooledProcess, packed
from belljar.backends.contract import ChangedTree, End, EnforcementReport, Entry, Process
from belljar.backends.hostile_files import open_beneath, walk
from belljar.errors import PolicyError, UsageError
from belljar.guest.pooled_code import MAIN, MOST_INLINE
from belljar.policy.models import Policy
from belljar.sandbox import recording, redacting, tracing
from belljar.sandbox.control import CONTROL
from belljar.sandbox.events import Finished, Output
from belljar.sandbox.inputs import at_once, opened_input
from belljar.sandbox.result import Artifact, RunResult
from belljar.sandbox.running import GIVEN_UP, Watch, give_up, new_run_id, refused_result, settle
from belljar.sandbox.sandbox import network_of
from belljar.sandbox.stream import Access, Handle
from belljar.sandbox.work import Work

if TYPE_CHECKING:
    from belljar.backends.bubblewrap.backend import BubblewrapBackend
    from belljar.egress.events import Event
    from belljar.sandbox.network import Network
    from belljar.sandbox.pool_network import JarNetwork
    from belljar.sandbox.snapshots import Held

_MOST_ARTIFACTS = 1000
_MAY_WAKE = len(os.sched_getaffinity(0)) > 1
"""Whether a processor is left for a jar that waits awake while its caller writes down that it runs."""
_NOTHING = cast("Process", None)
"""What is watched of a run that never began."""


class Early:
    """A jar that has been given what to run before anybody waits for its output. It is one run's, or nobody's."""

    __slots__ = ("_jar", "_jars", "_owner")

    def __init__(self, jars: Clones, jar: PooledProcess) -> None:
        self._jars = jars
        self._jar = jar
        self._owner = os.getpid()
        jars.early.add(jar)

    def taken(self, jars: Clones) -> PooledProcess | None:
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


class Clones:
    """The jars that wait, and the runs that take them."""

    def __init__(
        self,
        backend: BubblewrapBackend,
        policy: Policy,
        size: int,
        preload: Sequence[str],
        on_egress: Callable[[Event], None] | None,
    ) -> None:
        self._policy = policy
        self._network = network_of(policy, on_egress)
        self._planted = _in_workspace(policy, self._network)
        if self._network:
            self._network.prepare()
        trust = self._network.trust if self._network else None
        prepare = None
        if self._network:
            from belljar.sandbox.pool_network import Serving

            prepare = Serving(self._network)
        self._plan, self._jars = backend.open_pool(policy, size=size, preload=preload, trust=trust, prepare=prepare)
        self._report = EnforcementReport((*self._plan.report.clauses, *self._jars.shortfalls), self._plan.report.unseen)
        self._refused = self._report.refused_by(policy)
        self._begun = recording.Begun(policy, self._plan)
        self._timeout = policy.proc.timeout_seconds
        self._running: set[PooledProcess] = set()
        self.early: set[PooledProcess] = set()
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

    def begun(self, code: bytes, name: str, arguments: Sequence[str]) -> Early | None:
        """A jar that gets ready for it from now on, for a run that is the only one: it begins in a moment.

        One that did not, and there were many, would keep jars from others.
        """
        if self._handles or self.early or self._refused or self._planted or not _MAY_WAKE:
            return None
        try:  # whatever is wrong, the run is told
            body = packed(code, _usable(name), arguments, {})
            jar = self._jars.take_ready() if len(body) <= MOST_INLINE else None
        except (UsageError, UnicodeError):
            return None
        if jar is None:
            return None
        try:
            jar.give_at_once(body)
        except (JarGoneError, OSError):
            self.let_go(jar)
            return None
        except BaseException:
            self.let_go(jar)
            raise
        return Early(self, jar)

    def events(
        self, handle: Handle, work: Work, early: Early | None = None
    ) -> Generator[Output | Finished, None, None]:
        """Run it in a jar that nobody has used and nobody will use again."""
        run_id, started = "", time.monotonic()
        files = {**self._planted, **work.files} if self._planted or work.files else {}
        spans: tracing.AnySpans = tracing.NONE
        jar: PooledProcess | None = None
        self._handles.add(handle)
        try:
            # Before all else: while it gets ready, there is time for the rest.
            jar = early.taken(self) if early else None
            if jar is None and not self._refused:
                jar = self._given(work, files)
            run_id = new_run_id()
            spans = tracing.start("belljar.run", run_id, since=started)
            details = recording.code_details(work.code, (), "python", work.arguments, work.name)
            if work.stdin is not None or work.files:
                work = work._replace(stdin=at_once(work.stdin))
                details |= recording.input_details(work.stdin, len(work.files))
            recording.begin(run_id, "pool", self._begun, self._plan, starts=not self._refused, **details)
            if self._refused:
                yield Finished(refused_result(self._policy, self._plan, run_id, self._report, self._refused))
                return
            told = {"backend": self._plan.backend, "policy": self._plan.policy_digest, "language": "python"}
            CONTROL.enter(run_id, handle, **told, **({"script": work.name} if work.name else {}))
            spans.phase("launch")
            given, jar = jar, None
            for event in self._run(handle, work, run_id, files, started, spans, given):
                if isinstance(event, Finished):
                    spans.result(event.result)
                yield event
        except BaseException as error:  # whatever it is: a run that has begun has an end
            if jar is not None:
                self.let_go(jar)
            recording.broke_off(run_id, error, self._policy)
            raise
        finally:
            spans.end()
            CONTROL.leave(run_id)
            self._handles.discard(handle)

    def _run(  # noqa: PLR0917 - what a run is made of
        self,
        handle: Handle,
        work: Work,
        run_id: str,
        files: Mapping[str, bytes],
        started: float,
        spans: tracing.AnySpans,
        jar: PooledProcess | None,
    ) -> Iterator[Output | Finished]:
        while True:
            process = self._started(handle, run_id, work, files, jar)
            jar = None
            if isinstance(process, End):
                yield Finished(self._result(handle, Watch(_NOTHING, 0), process, run_id, started))
                return
            network = _network(process)
            try:
                handle.access = Access(self._policy, self._plan, process, _held(process))
                handle.started(process)
                spans.phase("execute")
                watch = Watch(process, self._policy.proc.output_bytes, redacting.of_result(run_id, self._policy))
                handle.prints(watch.captured, self._policy)
                try:
                    yield from watch.events()
                except GIVEN_UP as error:
                    give_up(process, error, self._settling(handle, watch, run_id, started, files, network))
                    raise
                spans.phase("collect")
                if network:
                    network.end()
                end = self._jars.judged(process, process.end())
                artifacts = _made(process.workspace, files)
                if network:
                    network.close()
                    end = network.judged(end)
                result = self._result(handle, watch, end, run_id, started, artifacts, network)
                if work.artifacts is not None and result.artifacts:
                    from belljar.sandbox.artifacts import save

                    if isinstance(work.artifacts, str):
                        place = os.path.abspath(work.artifacts)
                        recording.files("save", run=run_id, directory=place, count=len(result.artifacts))
                    made = [artifact.path for artifact in result.artifacts]
                    saved = save(process.workspace, made, work.artifacts, self._policy, overwrite=work.overwrite)
                    if saved.refused:
                        result = result.but_not_saved(saved.refused)
                handle.ended()
                self._running.discard(process)
                self._jars.bury(process)
                yield Finished(result)
                return
            except JarGoneError:  # it died before it had begun: another one gets the run
                continue
            finally:
                if process in self._running:  # else it has ended, and is let go of when nobody waits
                    handle.ended()
                    self._running.discard(process)
                    self.let_go(process)

    def _given(self, work: Work, files: Mapping[str, bytes]) -> PooledProcess | None:
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

    def _started(
        self, handle: Handle, run_id: str, work: Work, files: Mapping[str, bytes], given: PooledProcess | None
    ) -> PooledProcess | End:
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
        work: Work,
        files: Mapping[str, bytes],
        given: PooledProcess | None,
    ) -> PooledProcess | End:
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

    def let_go(self, process: PooledProcess) -> None:
        """At once: if there is still something of it, that is ended."""
        process.close()
        self._jars.bury(process)

    def _settling(  # noqa: PLR0917 - what a result is made of
        self,
        handle: Handle,
        watch: Watch,
        run_id: str,
        started: float,
        files: Mapping[str, bytes],
        network: JarNetwork | None,
    ) -> Callable[[End, float], RunResult]:
        """What becomes of a run that was given up, when it has ended."""

        def settle(end: End, patience: float) -> RunResult:
            process = cast("PooledProcess", watch.process)
            end = self._jars.judged(process, end)
            artifacts = _made(process.workspace, files)
            if network:
                network.end()
                network.close()
                end = network.judged(end)
            return self._result(handle, watch, end, run_id, started, artifacts, network, patience)

        return settle

    def _result(  # noqa: PLR0917 - what a result is made of
        self,
        handle: Handle,
        watch: Watch,
        end: End,
        run_id: str,
        started: float,
        artifacts: tuple[Artifact, ...] = (),
        network: JarNetwork | None = None,
        patience: float | None = None,
    ) -> RunResult:
        return settle(
            self._policy,
            self._plan,
            watch,
            end,
            run_id=run_id,
            report=self._report,
            started=started,
            artifacts=artifacts,
            fallback_from=(),
            traffic=network.traffic if network else None,
            handle=handle,
            patience=patience,
        )


def _held(process: PooledProcess) -> Callable[[], Held]:
    """What a jar holds: its workspace is its own, and gone with it."""

    def held() -> Held:
        from belljar.sandbox.snapshots import Held

        return Held(ChangedTree(os.dup(process.workspace), layered=False), None, (), {})

    return held


def _network(jar: PooledProcess) -> JarNetwork | None:
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


__all__ = ["Clones"]
