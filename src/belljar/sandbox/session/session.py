"""`Session`: a jar that lives for many steps, with an interpreter whose variables stay."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

from belljar.errors import UsageError
from belljar.policy.keys.units import seconds
from belljar.policy.models import Policy
from belljar.sandbox.files.snapshots import Snapshot
from belljar.sandbox.files.workspace_files import Files, has_bytes
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.inputs import Input
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.record.stream import Stream, new_run_id
from belljar.sandbox.session.home import Home
from belljar.sandbox.session.step import Shown, StepFinished, StepResult
from belljar.sandbox.session.step_watch import StepWatch

if TYPE_CHECKING:
    from belljar.egress.events import Event
    from belljar.policy.keys.units import Duration
    from belljar.sandbox.files.artifacts import Saved
    from belljar.sandbox.files.changes import Changes
    from belljar.sandbox.files.kept_files import KeptFiles
    from belljar.sandbox.run.sandbox import PolicyLike

StepEvent = Output | Shown | StepFinished
_PATIENCE_SECONDS = 10.0
"""How long a fork, or the end of an interpreter, may take."""


class Session:
    """A jar with a Python interpreter that keeps its variables from one step to the next.

    Args:
        policy: As for `Sandbox`. `proc.timeout_ms` and `proc.output_mb` are for each step; `session` says how long it
            may be idle, how old it may get, and how many there may be.
        backend: As for `Sandbox`; so are `workspace`, `live` and `overrides`.
        timeout: Time for a step, instead of the policy's: seconds, a `timedelta`, or text such as `30s`.
        restart: Start a new interpreter, without variables, for the next step after one has crashed.
        files: A snapshot whose files it begins with.
        on_egress: Called with each decision of the egress proxy, as it is made, from a thread of belljar's.

    Raises:
        PolicyError: the policy can't be read, or asks for more than the managed one allows.
        PrerequisiteError: no backend that the policy allows works on this host.
        SandboxUnavailableError: there are as many sessions as there may be.
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
        restart: bool = False,
        files: Snapshot | str | None = None,
        on_egress: Callable[[Event], None] | None = None,
    ) -> None:
        options = {
            "backend": backend,
            "workspace": workspace,
            "live": live,
            "overrides": overrides,
            "timeout": timeout,
        }
        self._begin(Home(new_run_id(), policy, options, files=files, on_egress=on_egress), restart=restart)

    def _begin(self, home: Home, *, restart: bool, number: int = 0, parent: str = "") -> None:
        self._home = home
        self._restart = restart
        self._number = number
        self.id = home.id if not number else f"{home.id}.{number}"
        """Its name, for `Session.resume` and for people."""
        self.shares_jar_with = parent
        """For a fork of an interpreter's state: the session in whose jar it lives. Their files and limits are one."""
        self._turn = threading.Lock()
        self._steps = 0
        self._closed = False
        self._current: StepWatch | None = None

    @classmethod
    def resume(cls, session_id: str, policy: PolicyLike = None, **options: Any) -> Session:
        """A new session with the files of one that was ended for being idle or old. Its variables are gone.

        Raises:
            UsageError: nothing of it is kept.
        """
        from belljar.sandbox.session.open_sessions import kept_path, sweep

        sweep()
        return cls(policy, files=kept_path(_plain(session_id)), **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        fork = f", a fork in the jar of {self.shares_jar_with}: files and limits are shared" if self._number else ""
        return f"<Session {self.id}: {self.state}{fork}>"

    @property
    def policy(self) -> Policy:
        """The resolved policy."""
        return self._home.policy

    @property
    def backend_name(self) -> str:
        """The backend in use."""
        return self._home.sandbox.backend_name

    @property
    def state(self) -> str:
        """`new`, `running`, `idle`, `crashed`, `evicted` or `closed`."""
        if self._closed:
            return "closed"
        return "running" if self._current is not None else self._home.state(self._number)

    # --- steps ---

    def run(self, code: str, *, stdin: str | None = None, timeout: Duration | None = None) -> StepResult:
        """Run code in the interpreter and wait for its end.

        Args:
            code: Python. Its variables stay for the next step; the value of its last expression comes back.
            stdin: What `input()` reads; nothing without.
            timeout: Instead of the policy's time for a step, and never more than that: seconds, a `timedelta`, or text
                such as `30s`.

        Raises:
            SandboxUnavailableError: the jar broke. What the code itself does wrong is in the result.
            UsageError: the session is closed, or its interpreter has ended and `restart` was not asked for.
        """
        for event in self.stream(code, stdin=stdin, timeout=timeout):
            if isinstance(event, StepFinished):
                return event.result
        raise AssertionError("a step ends with StepFinished")

    def stream(self, code: str, *, stdin: str | None = None, timeout: Duration | None = None) -> Iterator[StepEvent]:
        """Run code, and yield what it prints and shows as it comes; the last event is `StepFinished`.

        Leaving the loop early interrupts the step.
        """
        if not isinstance(code, str) or not has_bytes(code):
            raise UsageError("code is text", hint="decode it first; a lone surrogate can't be in it")
        if stdin is not None and not (isinstance(stdin, str) and has_bytes(stdin)):
            raise UsageError("stdin is text")
        return self._events(code, stdin, None if timeout is None else seconds(timeout))

    def _events(self, code: str, stdin: str | None, timeout: float | None) -> Iterator[StepEvent]:
        with self._turn:
            if self._closed:
                raise UsageError("this session is closed")
            live = self._home.enter(self._number, restart=self._restart)
            self._steps += 1
            longest = self.policy.proc.timeout_seconds
            allowed = longest if timeout is None else min(timeout, longest)
            watch = self._current = StepWatch(self._home, live, self.id, number=self._number, seconds=allowed)
            try:
                yield from watch.events(code, stdin)
            finally:
                self._current = None
                try:
                    watch.leave()
                finally:
                    self._home.leave()

    def interrupt(self) -> bool:
        """Interrupt the step that is running, as Ctrl-C would, from any thread. False if none is.

        The interpreter and its variables stay, if the code lets itself be interrupted.
        """
        watch = self._current
        return watch is not None and watch.interrupt()

    def restart(self) -> None:
        """End the interpreter and all its processes; the next step has a new one, without variables. Files stay."""
        if self._number:
            raise UsageError("a fork can't be started again", hint="fork the session that it came from once more")
        self._home.restart()

    # --- commands and files ---

    def exec(self, argv: Sequence[str], **options: Any) -> RunResult:
        """Run a command beside the interpreter, in a process tree of its own, on the same files."""
        with self._home.in_use() as sandbox:
            try:
                return sandbox.exec(argv, **options)
            finally:
                self._home.new_files()  # those are its artifacts, not the next step's

    def stream_beside(
        self,
        code: str | None = None,
        *,
        argv: Sequence[str] | None = None,
        language: str = "python",
        stdin: Input = None,
    ) -> Stream:
        """A command, or a program in any language, beside the interpreter, as `Sandbox.stream`: it can be ended."""
        with self._home.in_use() as sandbox:
            stream = sandbox.stream(code, argv=argv, language=language, stdin=stdin)
        return Stream(stream.handle, self._beside(stream))

    def _beside(self, stream: Stream) -> Iterator[Output | Finished]:
        with self._home.in_use():
            try:
                with stream:
                    yield from stream
            finally:
                self._home.new_files()

    @property
    def files(self) -> Files:
        """The files of the workspace."""
        return self._home.files

    def keep_files(self, paths: Sequence[str], kept: KeptFiles) -> None:
        """Read files of the workspace into memory."""
        with self._home.in_use() as sandbox:
            sandbox.save_files(paths, kept)

    def changes(self) -> Changes:
        """What the steps so far changed in the copy-on-write workspace."""
        with self._home.in_use() as sandbox:
            return sandbox.changes()

    def save_results(
        self,
        result: StepResult,
        directory: str | os.PathLike[str],
        *,
        overwrite: bool = False,
        protected: bool = False,
    ) -> Saved:
        """Write what a step showed, and the files that it made, into a directory; see `Sandbox.save_artifacts`."""
        from belljar.sandbox.session.step_files import save

        with self._home.in_use() as sandbox:
            return save(sandbox, result, os.fspath(directory), overwrite=overwrite, protected=protected)

    # --- snapshots and forks ---

    def snapshot(self, name: str | None = None) -> Snapshot:
        """Keep the files of the workspace as they are now, until the snapshot is removed. Variables are not part of it.

        Raises:
            UsageError: there is a snapshot of that name, or the files are too many or too large.
        """
        return self._home.snapshot(name)

    def restore(self, snapshot: Snapshot | str) -> None:
        """Have the files of a snapshot, and nothing else, in a jar made anew; variables are gone, processes ended."""
        if self._number:
            raise UsageError("a fork shares its files with the session that it came from", hint="restore that one")
        self._home.restore(snapshot)

    def fork(self, *, state: bool = False) -> Session:
        """Another session that goes on from this one.

        Args:
            state: False: in a jar of its own, with a copy of the files; its interpreter is new. True: in *this* jar,
                with a copy of the interpreter, all its variables in it; files, limits and the jar's end are shared.
                Threads are not copied.
        """
        made = object.__new__(Session)
        if not state:
            made._begin(self._home.fork(), restart=self._restart)
            return made
        with self._turn:
            if self._closed:
                raise UsageError("this session is closed")
            number = self._home.fork_state(self._number, time.monotonic() + _PATIENCE_SECONDS)
        made._begin(self._home, restart=False, number=number, parent=self.id)
        return made

    # --- the end ---

    def close(self) -> RunResult | None:
        """End it and let go of its files. How the interpreter's run went, if there was one."""
        self._closed = True
        if self._number:
            self._home.end_branch(self._number)
            return None
        return self._home.close()


def _plain(session_id: str) -> str:
    if not all(letter.isalnum() or letter == "-" for letter in session_id):
        raise UsageError(f"no session is called {session_id!r}")
    return session_id


__all__ = ["Session"]
