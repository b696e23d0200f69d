"""`Sandbox`: one policy, one workspace, any number of runs."""

# A Sandbox and its runs share this file, and each other's state.
# ruff: noqa: SLF001

from __future__ import annotations

import contextlib
import os
import time
from _thread import RLock  # `threading` takes a millisecond to import
from collections.abc import Callable, Iterator, Mapping, Sequence

from belljar.backends.contract import Clause, EnforcementReport, Entry, Jar, LaunchPlan, RunRequest
from belljar.backends.runtimes import language_named
from belljar.errors import BelljarError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.record import recording, tracing
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.events import Finished
from belljar.sandbox.record.inputs import Fed, Input, at_once, opened_input
from belljar.sandbox.record.result import Artifact, RunResult
from belljar.sandbox.record.stream import Access, Handle, Stream, new_run_id
from belljar.sandbox.run.backend_choice import open_best
from belljar.sandbox.run.lifecycle import Acquired, Life
from belljar.sandbox.run.watch import refused_result
from belljar.state import private_directory, state_directory

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any, Self

    from belljar.backends.contract import ChangedTree
    from belljar.egress.events import Event
    from belljar.policy.keys.units import Duration
    from belljar.sandbox.files.artifacts import Own, Saved
    from belljar.sandbox.files.changes import Changes
    from belljar.sandbox.files.host_files import HostFiles
    from belljar.sandbox.files.kept_files import KeptFiles
    from belljar.sandbox.files.snapshots import Held
    from belljar.sandbox.files.workspace_files import Files
    from belljar.sandbox.network.network import Network


def _carry_out(order: dict[str, Any], handle: Handle | None, home: Any) -> dict[str, Any]:
    """Do to a run what another process asked for. Imported when somebody does."""
    from belljar.sandbox.incident.orders import carry_out

    return carry_out(order, handle, home)


CONTROL.carry_out = _carry_out

PolicyLike = Policy | str | os.PathLike[str] | Mapping[str, "Any"] | None

MAX_ARTIFACTS = 1000
_CLOCK_TICK_NS = 5_000_000
"""File times are those of the last clock tick, up to 4 ms before the moment they stand for."""


class Sandbox:
    """A jar with a workspace. Each run is a fresh process tree in it; the workspace lives as long as the Sandbox.

    Args:
        policy: A preset's name, a file's path, a mapping of keys over the default preset, or a resolved `Policy`.
        backend: Which backend to use, instead of the policy's.
        workspace: A directory of the host's, shown copy-on-write at /workspace: it is never changed.
        live: Show `workspace` itself instead: changes are made in it at once.
        overrides: `key=value`, as `--set` takes them.
        timeout: Instead of the policy's: seconds, a `timedelta`, or text such as `30s`.
        one_shot: There will be one run only, so that no jar is kept waiting for the next.
        on_egress: Called with each decision of the egress proxy, as it is made, from a thread of belljar's.

    Raises:
        PolicyError: the policy can't be read, or asks for more than the managed one allows.
        PrerequisiteError: no backend that the policy allows works on this host.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        backend: str | None = None,
        workspace: str | os.PathLike[str] | None = None,
        live: bool = False,
        overrides: Sequence[str] = (),
        timeout: Duration | None = None,
        one_shot: bool = False,
        on_egress: Callable[[Event], None] | None = None,
    ) -> None:
        self.policy = resolved(
            policy, backend=backend, workspace=workspace, live=live, overrides=overrides, timeout=timeout
        )
        self._lock = RLock()
        self._jar: Jar | None = None
        self._running: set[Handle] = set()
        self._closed = False
        self._one_shot = one_shot
        self._opened_ns = time.time_ns()
        self._last_end_ns = 0
        self._last_run = ""
        self._written: dict[tuple[int, str], int] = {}
        """What the host wrote, and when: those are no artifacts."""
        self._applied: dict[str, int] = {}
        self._host_files: dict[str, HostFiles] = {}
        self._saved: Own = {}
        self._backend, self.fallback_from = open_best(self.policy, state=state_directory())
        self._network = None if self._backend.name == "unconfined" else network_of(self.policy, on_egress)

    @property
    def backend_name(self) -> str:
        """The backend in use."""
        return self._backend.name

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
        stdin: Input = None,
        explain_denials: bool = False,
    ) -> RunResult:
        """Run code and wait for its end.

        Raises:
            SandboxUnavailableError: the jar broke. What the code itself does wrong is in the result.
        """
        events = self.stream(
            code, language=language, name=name, args=args, stdin=stdin, explain_denials=explain_denials
        )
        return last(events)

    def exec(self, argv: Sequence[str], *, stdin: Input = None, explain_denials: bool = False) -> RunResult:
        """Run a command and wait for its end."""
        return last(self.stream(argv=argv, stdin=stdin, explain_denials=explain_denials))

    def stream(
        self,
        code: str | bytes | None = None,
        *,
        argv: Sequence[str] | None = None,
        language: str = "python",
        name: str = "",
        args: Sequence[str] = (),
        stdin: Input = None,
        explain_denials: bool = False,
    ) -> Stream:
        """Run code or a command, and yield its output as it is produced; the last event is `Finished`.

        Leaving the loop early ends the run. The stream has `kill()`, which any thread may call.
        """
        run_id = new_run_id()
        spans = tracing.start("belljar.run", run_id)
        spans.phase("plan")
        request = self._request(code, argv, language, name, args, explain_denials=explain_denials)
        run = SandboxRun(self, self._backend.compile(self.policy, request), request, stdin)
        handle = Handle()
        if refused := run.plan.report.refused_by(self.policy):
            try:
                run.record(run_id)
                result = refused_result(self.policy, run.plan, run_id, run.plan.report, refused)
                spans.result(result)
            finally:
                spans.end()
            return Stream(handle, iter((Finished(result),)))
        return Stream(handle, Life(run, handle, run_id, spans=spans).events())

    def prepare(self, *, language: str = "python") -> None:
        """Have a jar wait for the next run, in this language, which then starts sooner."""
        request = self._request(b"", None, language, "", (), explain_denials=False)
        plan = self._backend.compile(self.policy, request)
        self._open(plan).prepare(plan, request)

    def plan(
        self,
        code: str | bytes | None = None,
        *,
        argv: Sequence[str] | None = None,
        language: str = "python",
        name: str = "",
        args: Sequence[str] = (),
        explain_denials: bool = False,
    ) -> LaunchPlan:
        """What a run would do, and how far each clause of the policy would hold. Starts nothing."""
        request = self._request(code, argv, language, name, args, explain_denials=explain_denials)
        return self._backend.compile(self.policy, request)

    def _request(
        self,
        code: str | bytes | None,
        argv: Sequence[str] | None,
        language: str,
        name: str,
        args: Sequence[str],
        *,
        explain_denials: bool,
    ) -> RunRequest:
        if (code is None) == (argv is None):
            raise UsageError("give either code or argv")
        if argv is not None or args != ():
            _check_words(argv, args)
        return RunRequest(
            argv=tuple(argv or ()),
            code=None if code is None else code_bytes(code),
            language=language_named(language),
            script_name=name,
            arguments=tuple(args),
            env=dict(os.environ) if self.policy.env.pass_ or self._backend.name == "unconfined" else {},
            explain_denials=explain_denials,
            trust=self._network.trust if self._network else None,
        )

    def source(self, code: bytes, name: str, policy: Policy, stdin: Input) -> SandboxRun:
        """Return a run of Python code in this jar, under limits of its own. For belljar itself."""
        request = self._request(code, None, "python", name, (), explain_denials=False)
        return SandboxRun(self, self._backend.compile(policy, request), request, stdin, kind="session")

    def kill(self, reason: str = "killed") -> None:
        """End every run of this Sandbox, from any thread. The workspace stays."""
        with self._lock:
            for handle in self._running:
                handle.kill(reason)

    # --- files ---

    @property
    def files(self) -> Files:
        """The files of the workspace."""
        from belljar.sandbox.files.workspace_files import Files

        return Files(self._open(), self.policy, self._written)

    def remember_host_files(self, path: str | None = None) -> None:
        """Look at the directories that the jar gets copies of, before it is made: `changes` then asks no clock.

        A thread looks while the jar is made, and the first run waits for it. `path` is where the jar has the only
        directory that is looked at; all of them unless given.
        """
        from belljar.sandbox.files.host_files import HostFiles

        for mount in self.policy.fs.mounts:
            if mount.source is not None and mount.cow and self._jar is None and path in (None, mount.path):
                self._host_files[mount.path] = HostFiles(mount.source)

    def changes(self, path: str | None = None, *, merges: bool = False) -> Changes:
        """What the runs so far changed in the copy-on-write workspace, or in the mount at `path`.

        Args:
            path: where the mount lies in the jar; the first that is a copy-on-write view unless given.
            merges: whether the caller merges files that were changed on the host, too: then those are not refused.

        Raises:
            UsageError: the workspace is not a copy-on-write view of a directory.
        """
        from belljar.sandbox.files.changes import Changes

        for index, mount in enumerate(self.policy.fs.mounts):
            if mount.source is not None and mount.cow and path in (None, mount.path):
                return Changes(
                    self._open().changes(index),
                    mount.source,
                    mount.path,
                    self.policy.fs.deny_globs,
                    since_ns=self._opened_ns,
                    applied=self._applied if path is None else {},
                    run=self._last_run,
                    host_files=self._host_files.get(mount.path),
                    merges=merges,
                )
        raise UsageError(
            "there is no copy-on-write workspace", hint="pass workspace=DIR (--workspace DIR), without live"
        )

    def changed_tree(self, path: str) -> ChangedTree:
        """What the runs so far wrote in the mount at `path`. The caller must close its descriptor.

        Raises:
            UsageError: there is no such mount.
        """
        for index, mount in enumerate(self.policy.fs.mounts):
            if mount.path == path:
                return self._open().changes(index)
        raise UsageError(f"{path} is no mount of the jar")

    @property
    def last_run(self) -> str:
        """The id of the run that was started last; empty if there was none."""
        return self._last_run

    def save_artifacts(
        self,
        result: RunResult,
        directory: str | os.PathLike[str] | KeptFiles,
        *,
        overwrite: bool = False,
        protected: bool = False,
    ) -> Saved:
        """Copy the files that the run made or changed into a directory of the host's.

        Args:
            result: of the run.
            directory: where to.
            overwrite: whether to replace files that are there. Files that this Sandbox wrote there itself are replaced.
            protected: whether to write what a tool on the host would act on by itself, such as `.vscode/tasks.json`.

        Returns:
            The paths that were written; `refused` of it has the files that were not, each with the reason.

        Raises:
            UsageError: the directory can't be written to.
            AuditError: it can't be recorded, so nothing was written.

        """
        target = os.fspath(directory) if isinstance(directory, str | os.PathLike) else directory
        made = [artifact.path for artifact in result.artifacts]
        return self.save_files(made, target, run=result.run_id, overwrite=overwrite, protected=protected)

    def save_files(
        self,
        paths: Sequence[str],
        directory: str | KeptFiles,
        *,
        run: str = "",
        data: Mapping[str, bytes] | None = None,
        overwrite: bool = False,
        protected: bool = False,
    ) -> Saved:
        """Copy files of the workspace into a directory of the host's, as `save_artifacts`, and write `data` there."""
        from belljar.sandbox.files.artifacts import Saved, save

        index = self._workspace_index()
        paths = paths if index is not None else ()
        if not paths and not data:
            return Saved()
        if isinstance(directory, str):
            count = len(paths) + len(data or ())
            recording.files("save", run=run, directory=os.path.abspath(directory), count=count)
        changed = self._open().changes(index, only=paths).descriptor if index is not None and paths else None
        try:
            return save(
                changed,
                paths,
                directory,
                self.policy,
                data=data,
                overwrite=overwrite,
                protected=protected,
                own=self._saved,
            )
        finally:
            if changed is not None:
                os.close(changed)

    @property
    def keeps_files(self) -> bool:
        """Whether what the code writes in its workspace is the jar's own, and gone with it."""
        return self._workspace_index() is not None

    @property
    def workspace_base(self) -> str | None:
        """The host's directory of which the jar holds the changes, if there is one."""
        index = self._workspace_index()
        return None if index is None else self.policy.fs.mounts[index].source

    def held_files(self) -> Held:
        """What the jar holds of its workspace, for a snapshot.

        Raises:
            UsageError: the workspace is a directory of the host's, shown live.
        """
        from belljar.sandbox.files.snapshots import Held

        index = self._workspace_index()
        if index is None:
            raise UsageError("the workspace is the host's own directory: there is nothing that the jar keeps")
        deleted: tuple[str, ...] = ()
        if self.workspace_base is not None:
            with self.changes() as changes:
                deleted = tuple(change.path for change in changes if change.kind == "deleted")
        jar = self._open()
        modes = {entry.path: entry.mode for entry in jar.changed(index)}
        return Held(jar.changes(index), self.workspace_base, deleted, modes)

    def _workspace_index(self) -> int | None:
        """The mount that the code works in, if what it writes there is the jar's own."""
        for index, mount in enumerate(self.policy.fs.mounts):
            if mount.path == self.policy.fs.workdir and mount.rw and (mount.source is None or mount.cow):
                return index
        return None

    def _artifacts(self, since_ns: int) -> tuple[Artifact, ...]:
        """The files that runs made or changed since then; the first thousand."""
        made = [Artifact(entry.path, entry.size) for entry in self.made_files() if entry.changed_ns >= since_ns]
        return tuple(sorted(made, key=lambda artifact: artifact.path)[:MAX_ARTIFACTS])

    def made_files(self) -> list[Entry]:
        """The files of the workspace that runs made or changed, and that the host did not write itself."""
        index = self._workspace_index()
        if index is None:
            return []
        try:
            return [
                entry
                for entry in self._open().changed(index)
                if entry.kind == "file" and self._written.get((index, entry.path)) != entry.changed_ns
            ]
        except (BelljarError, OSError):
            if self._closed:  # by another thread, meanwhile: the workspace is gone, the result is not
                return []
            raise

    def step_ended(self) -> None:
        """What was made until now was a session's step: the next run, however soon, did not make it."""
        self._last_end_ns = time.time_ns()

    # --- the jar ---

    def _open(self, plan: LaunchPlan | None = None) -> Jar:
        """The jar, made when it is first needed."""
        with self._lock:
            if self._closed:
                raise UsageError("this Sandbox is closed")
            if self._jar is None:
                plan = plan or self.plan(argv=["true"])
                if self._network:
                    self._network.prepare()
                _remember_live(self.policy)
                self._jar = self._backend.open(self.policy, plan)
                self._opened_ns = time.time_ns()
                if self._network:
                    self._network.plant(self._jar)
            return self._jar

    def close(self) -> None:
        """End every run and let go of the workspace and all that is in it."""
        with self._lock:
            self._closed = True
            if self._jar is not None:
                self._jar.close()
                self._jar = None


class SandboxRun:
    """A run in a Sandbox's jar: how it is recorded, and how its process is acquired."""

    def __init__(
        self, sandbox: Sandbox, plan: LaunchPlan, request: RunRequest, stdin: Input, *, kind: str = "run"
    ) -> None:
        self._sandbox = sandbox
        self._request = request
        self._stdin = stdin
        self._kind = kind
        self._since_ns = 0
        self.policy = sandbox.policy
        self.plan = plan
        self.fallback_from = sandbox.fallback_from

    def record(self, run_id: str) -> bool:
        """Record the run before anything is made for it. Input that can be read before it runs is read now."""
        request, written = self._request, self._sandbox._written
        details: dict[str, Any] = {"language": "python"}
        given: tuple[str, ...] = ()
        if self._kind == "run":
            given = (*request.argv, *request.arguments)
            details = recording.code_details(
                request.code,
                request.argv,
                request.language,
                request.arguments,
                request.script_name,
                explains=request.explain_denials,
            )
            if self._stdin is not None or written:
                self._stdin = at_once(self._stdin)
                details |= recording.input_details(self._stdin, len(written))
        begun = recording.Begun(self.policy, self.plan, run_id, given)
        recording.begin(run_id, self._kind, begun, self.plan, starts=False, **details)
        if self._kind == "run":
            self._sandbox._last_run = run_id
        return False

    def open(self) -> tuple[EnforcementReport, tuple[Clause, ...]]:
        """Open the jar. Return the plan's report, with what was found out on the real directories."""
        jar = self._sandbox._open(self.plan)
        report = EnforcementReport((*self.plan.report.clauses, *jar.shortfalls), self.plan.report.unseen)
        return report, report.refused_by(self.policy)

    @contextlib.contextmanager
    def acquire(self, life: Life) -> Iterator[Acquired]:
        """Launch the process, and serve its network."""
        sandbox, handle, plan, request = self._sandbox, life.handle, self.plan, self._request
        self._since_ns = max(time.time_ns() - _CLOCK_TICK_NS, sandbox._last_end_ns)
        jar, network = sandbox._open(plan), sandbox._network
        with contextlib.nullcontext() if network is None else network.of_run(life.run_id, handle) as served:
            for files in sandbox._host_files.values():
                files.wait()
            with opened_input(self._stdin) as descriptor:
                process = jar.launch(plan, request, stdin=descriptor, prepare=not sandbox._one_shot)
            for files in sandbox._host_files.values():
                files.read_contents()
            with sandbox._lock:
                sandbox._running.add(handle)
            script = recording.script_name(request.script_name, request.argv)
            details = {
                **({"session": handle.session} if handle.session else {}),
                **({"script": script} if script else {}),
            }
            handle.access = Access(self.policy, plan, process, sandbox.held_files)
            told = {"backend": plan.backend, "policy": plan.policy_digest, "language": request.language}
            CONTROL.enter(life.run_id, handle, **told, **details)
            try:
                handle.started(process)
                if served:
                    served.serve(process)
                yield Acquired(process, served, self._stdin if isinstance(self._stdin, Fed) else None)
            finally:
                CONTROL.leave(life.run_id)
                handle.ended()
                with sandbox._lock:
                    sandbox._running.discard(handle)
                process.close()

    def made(self, _acquired: Acquired) -> tuple[Artifact, ...]:
        """Return the files that were made or changed since the run began; the first thousand."""
        made = self._sandbox._artifacts(self._since_ns)
        self._sandbox._last_end_ns = time.time_ns()
        return made

    def settled(self, _acquired: Acquired, result: RunResult) -> RunResult:
        """Return the result: what the run made stays in the workspace."""
        return result


def _check_words(argv: Sequence[str] | None, args: Sequence[str]) -> None:
    from belljar.sandbox.files.workspace_files import has_bytes

    if isinstance(argv, str) or isinstance(args, str):
        raise UsageError("arguments are a list of words, not one string", hint="use ['sh', '-c', '…'] for a shell")
    words = (*(argv or ()), *args)
    if not all(isinstance(word, str) for word in words):
        raise UsageError("an argument is not text", hint="write str(…) around it")
    if any("\0" in word for word in words):
        raise UsageError("an argument can't hold a NUL character")
    if not all(has_bytes(word) for word in words):
        raise UsageError("an argument can't hold a lone surrogate")


def code_bytes(code: str | bytes) -> bytes:
    """Return a program, or the content of a file, as bytes.

    Raises:
        UsageError: it is neither text nor bytes.
    """
    if isinstance(code, str):
        return code.encode()
    if isinstance(code, bytes):
        return code
    raise UsageError(
        f"code and files are text or bytes, and this is {type(code).__name__}", hint="for a file: path.read_bytes()"
    )


def run(code: str | bytes, policy: PolicyLike = None, *, language: str = "python", **options: Any) -> RunResult:
    """Run code once, in a jar of its own: `belljar.run("print(1)").stdout`. Options are those of `Sandbox`."""
    with Sandbox(policy, one_shot=True, **options) as jar:
        return jar.run(code, language=language)


def resolved(
    policy: PolicyLike,
    *,
    backend: str | None,
    workspace: str | os.PathLike[str] | None,
    live: bool,
    overrides: Sequence[str],
    timeout: Duration | None,
) -> Policy:
    """The policy that these make, with the managed ceiling over it."""
    from belljar.policy.load.resolve import resolve

    if isinstance(overrides, str):
        raise UsageError("overrides is a list of settings, not one string", hint=f"write overrides=[{overrides!r}]")
    if isinstance(policy, Policy):
        if backend or workspace or live or overrides or timeout:
            raise UsageError(
                "a resolved Policy is final", hint="pass the options to belljar.policy.load.resolve instead"
            )
        return policy
    layers = [policy] if isinstance(policy, Mapping) else []
    return resolve(
        None if isinstance(policy, Mapping) else policy,
        overrides=overrides,
        layers=layers,
        workspace=None if workspace is None else os.fspath(workspace),
        live=live,
        backend=backend,
        timeout=timeout,
    )


def _remember_live(policy: Policy) -> None:
    live = [mount.source for mount in policy.fs.mounts if mount.source and mount.rw and not mount.cow]
    if live:
        from belljar.policy.live_places import remember

        private_directory(state_directory())
        remember(live)


def network_of(policy: Policy, on_egress: Callable[[Event], None] | None) -> Network | None:
    """Its network, if the policy opens one. Nothing of it is imported otherwise."""
    if not (policy.net.enabled or policy.net.publish):
        return None
    from belljar.sandbox.network.network import Network

    return Network(policy, on_egress)


def last(stream: Stream) -> RunResult:
    """The result at a stream's end."""
    result: RunResult | None = None
    with stream:  # an interrupt in between ends the run
        for event in stream:  # to its end: a stream that is left is one that was given up
            if isinstance(event, Finished):
                result = event.result
    assert result is not None, "a stream ends with Finished"
    return result


__all__ = ["Sandbox", "run"]
