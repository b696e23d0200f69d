"""The jars of one policy: fresh ones that wait in a pool, and sessions by name."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from belljar.errors import SandboxUnavailableError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.files.kept_files import KeptFiles
from belljar.sandbox.pool.pool import Pool
from belljar.sandbox.record.events import Finished, Output
from belljar.sandbox.record.result import Outcome, RunResult
from belljar.sandbox.record.stream import Stream
from belljar.sandbox.run.sandbox import Sandbox
from belljar.sandbox.session.open_sessions import kept_path
from belljar.sandbox.session.session import Session
from belljar.sandbox.session.step import StepFinished, StepResult
from belljar.tools.calls import Call

_KEPT_BYTES = 16 << 20
"""Of the files that one run made."""
_GRACE_SECONDS = 2.0
"""How long a step that was interrupted may go on, before its interpreter is ended."""
_AS_COMMAND = 'exec -- "$@"'
_MOST_ENDED = 1000
"""Scopes that are remembered to have ended: a call that was under way then must not make a jar for them."""


class ToolProgram(NamedTuple):
    """What to run: code in a language, or a command."""

    code: str | None = None
    language: str = "python"
    argv: tuple[str, ...] = ()
    stdin: str | None = None
    files: Mapping[str, str] = {}
    timeout: float | None = None


class Found(NamedTuple):
    """A session, and what has to be said about it."""

    session: Session
    note: str = ""


class Jars:
    """Those of one policy. A pool is made when it is first needed, if the policy is one that a pool can have."""

    def __init__(self, policy: Policy, *, pool_size: int) -> None:
        self.policy = policy
        self._pool_size = pool_size if _can_be_pooled(policy) else 0
        self._pool: Pool | None = None
        self._sessions: dict[tuple[str, str], Session] = {}
        self._ended_scopes: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()
        self._taking_up = threading.Lock()

    def warm(self) -> None:
        """Have jars wait for the first call."""
        if self._pool_size:
            self._pooled()

    def _pooled(self) -> Pool:
        with self._lock:
            if self._pool is None:
                self._pool = Pool(self.policy, size=self._pool_size)
            return self._pool

    # --- fresh jars ---

    def run_fresh(self, program: ToolProgram, call: Call) -> tuple[RunResult, Mapping[str, bytes]]:
        """Run it where nothing has run before. Its result, and the files that it made."""
        kept = KeptFiles(_KEPT_BYTES)
        with ExitStack() as stack:
            if self._pool_size:
                return _followed(self._pooled_stream(program, kept), call, program.timeout), kept.content
            jar = stack.enter_context(Sandbox(self.policy, one_shot=True))
            for path, content in program.files.items():
                jar.files.write(path, content)
            argv = program.argv or None
            stream = jar.stream(program.code, argv=argv, language=program.language, stdin=program.stdin)
            result = _followed(stream, call, program.timeout)
            jar.save_artifacts(result, kept)
            return result, kept.content

    def _pooled_stream(self, program: ToolProgram, kept: KeptFiles) -> Stream:
        if program.code is None:
            return self._pooled().stream(
                _AS_COMMAND, language="bash", args=program.argv, stdin=program.stdin, artifacts=kept
            )
        return self._pooled().stream(
            program.code, language=program.language, files=program.files, stdin=program.stdin, artifacts=kept
        )

    # --- sessions ---

    def session(self, scope: str, name: str) -> Found:
        """The session of that name, made when it is first asked for, and taken up again if it was ended meanwhile.

        Raises:
            SandboxUnavailableError: there are as many as there may be.
            UsageError: its scope has ended.
        """
        with self._lock:
            if scope in self._ended_scopes:
                raise UsageError("the connection that this session belongs to has ended")
            found = self._sessions.get((scope, name))
            if found is None or found.state == "closed":
                self._sessions[scope, name] = made = _made(self.policy)
                note = f"[the session {name!r} was ended from outside, and starts anew]" if found is not None else ""
                return Found(made, note)
        return Found(found, self._taken_up(found, name))

    def _taken_up(self, session: Session, name: str) -> str:
        """What to say of a session that was ended for being idle, old or in the way; it is there again."""
        with self._taking_up:
            if session.state != "evicted":
                return ""
            was_kept = os.path.exists(kept_path(session.id))
            with _told_to_a_model():
                session.restart()
        why = "it was not used for long, was too old, or another needed its place"
        what = "its files are back, its variables are gone" if was_kept else "it starts anew, with nothing"
        return f"[the session {name!r} was ended meanwhile: {why}; {what}]"

    def has_session(self, scope: str, name: str) -> bool:
        """Whether there is one."""
        with self._lock:
            return (scope, name) in self._sessions

    def end_session(self, scope: str, name: str) -> bool:
        """End it; False if there is none."""
        with self._lock:
            session = self._sessions.pop((scope, name), None)
        if session is not None:
            _end(session)
        return session is not None

    def end_scope(self, scope: str) -> None:
        """End all of a scope's; it gets no new ones."""
        with self._lock:
            self._ended_scopes[scope] = None
            while len(self._ended_scopes) > _MOST_ENDED:
                self._ended_scopes.popitem(last=False)
            sessions = [self._sessions.pop(key) for key in list(self._sessions) if key[0] == scope]
        for session in sessions:
            _end(session)

    def step(self, session: Session, program: ToolProgram, call: Call) -> tuple[StepResult, Mapping[str, bytes]]:
        """Run Python in the session's interpreter."""
        with _ended_by(call, session):
            for event in session.stream(program.code or "", stdin=program.stdin, timeout=program.timeout):
                if isinstance(event, StepFinished):
                    return event.result, _kept(session, [file.path for file in event.result.artifacts])
                call.output_bytes += len(event.data) if isinstance(event, Output) else 0
        raise AssertionError("a step ends with StepFinished")

    def beside(self, session: Session, program: ToolProgram, call: Call) -> tuple[RunResult, Mapping[str, bytes]]:
        """Run anything else in the session's jar, on its files."""
        argv = program.argv or None
        stream = session.stream_beside(program.code, argv=argv, language=program.language, stdin=program.stdin)
        result = _followed(stream, call, program.timeout)
        return result, _kept(session, [file.path for file in result.artifacts])

    def close(self) -> None:
        """End everything."""
        with self._lock:
            sessions, self._sessions = list(self._sessions.values()), {}
            pool, self._pool = self._pool, None
        for session in sessions:
            _end(session)
        if pool is not None:
            pool.close()


def _made(policy: Policy) -> Session:
    with _told_to_a_model():
        return Session(policy, restart=True)


@contextmanager
def _told_to_a_model() -> Iterator[None]:
    """That there is no room for a session, with what a model can do about it."""
    try:
        yield
    except SandboxUnavailableError as error:
        if "session.max_sessions" not in (error.hint or ""):
            raise
        hint = "end one that you do not need any more with `reset`, or do it without a session"
        raise SandboxUnavailableError(error.message, hint=hint) from None


def _end(session: Session) -> None:
    """For good: of one that was ended before, files may lie there that nobody will ask for any more."""
    session.close()
    with suppress(FileNotFoundError):
        os.unlink(kept_path(session.id))


def _can_be_pooled(policy: Policy) -> bool:
    """Not what runs would share, nor a port of which there is one."""
    shared = any(mount.source is not None and mount.rw for mount in policy.fs.mounts)
    return not shared and not policy.net.publish


def _kept(session: Session, paths: Sequence[str]) -> Mapping[str, bytes]:
    kept = KeptFiles(_KEPT_BYTES)
    if paths:
        session.keep_files(paths, kept)
    return kept.content


def _followed(stream: Stream, call: Call, timeout: float | None) -> RunResult:
    """The result at its end. The call's own time, if it has one, ends it sooner than the policy's."""
    out_of_time = threading.Event()

    def end() -> None:
        out_of_time.set()
        stream.kill("out of its time")

    timer = threading.Timer(timeout, end) if timeout is not None else None
    call.watch(stream.kill)
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        result = _last(stream, call)
    finally:
        call.watch(None)
        if timer is not None:
            timer.cancel()
    if out_of_time.is_set() and result.outcome is Outcome.KILLED:
        return replace(result, outcome=Outcome.TIMEOUT, reason=f"it ran longer than {timeout:g} s, as the call asked")
    return result


def _last(stream: Stream, call: Call) -> RunResult:
    with stream:
        for event in stream:
            if isinstance(event, Finished):
                return event.result
            call.output_bytes += len(event.data)
    raise AssertionError("a stream ends with Finished")


@contextmanager
def _ended_by(call: Call, session: Session) -> Iterator[None]:
    """A step is interrupted first, so that the variables stay; if it goes on, its interpreter is ended."""
    timers: list[threading.Timer] = []

    def end(_reason: str) -> None:
        session.interrupt()
        timer = threading.Timer(_GRACE_SECONDS, session.restart)
        timer.daemon = True
        timers.append(timer)
        timer.start()

    call.watch(end)
    try:
        yield
    finally:
        call.watch(None)
        for timer in timers:
            timer.cancel()
