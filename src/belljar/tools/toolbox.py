"""`Toolbox`: the tools over jars, for whatever speaks to a model. Knows no SDK."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self

from belljar.errors import AuditError, BelljarError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.run.sandbox import PolicyLike, resolved
from belljar.sandbox.session.session import Session
from belljar.tools.answers import Maker, ToolAnswer, plain
from belljar.tools.arguments import Arguments
from belljar.tools.calls import Call
from belljar.tools.cleaning import Cleaner, Cleaners
from belljar.tools.definitions import BY_NAME, MOST_LISTED, MOST_READ, TOOLS
from belljar.tools.handle_store import PREFIX, HandleStore, StoredFile, mime_of
from belljar.tools.jars import Found, Jars, ToolProgram

if TYPE_CHECKING:
    from belljar.policy.keys.units import Duration

_MAIN = "main"
"""The session that is meant where one is needed and none is named."""
_MOST_TIGHTER = 4
"""Policies of single calls whose jars are kept for the next."""
_LARGEST_READ = 32 << 20
_PATIENCE_SECONDS = 5.0
"""How long calls that were under way may take to end, once their jars have."""


class Toolbox:
    """Answers calls of the tools `run`, `exec`, `read_file`, `write_file`, `list_files` and `reset`.

    Args:
        policy: As for `Sandbox`; so are `workspace`, `live`, `overrides`, `backend` and `timeout`.
        stateful: Let `run` and `exec` use the session `main` when none is named, instead of a fresh jar.
        pool_size: How many fresh jars are kept waiting.
        redact: Whether what the policy names (`logging.redact`) becomes tokens in answers, too.

    Raises:
        PolicyError: the policy can't be read, or asks for more than the managed one allows.
    """

    def __init__(
        self,
        policy: PolicyLike = None,
        *,
        workspace: str | os.PathLike[str] | None = None,
        live: bool = False,
        overrides: Sequence[str] = (),
        backend: str | None = None,
        timeout: Duration | None = None,
        stateful: bool = False,
        pool_size: int = 2,
        redact: bool = True,
    ) -> None:
        self.policy = resolved(
            policy, backend=backend, workspace=workspace, live=live, overrides=overrides, timeout=timeout
        )
        self._workspace, self._live = workspace, live
        self.handles = HandleStore()
        self._stateful = stateful
        self._jars = Jars(self.policy, pool_size=pool_size)
        self._tighter: OrderedDict[str, Jars] = OrderedDict()
        self._lock = threading.Lock()
        self._under_way: set[Call] = set()
        self._idle = threading.Condition(self._lock)
        self._cleaners = Cleaners(redact=redact)
        self._handlers: dict[str, Callable[[Arguments, Call, Jars], ToolAnswer]] = {
            "run": self._run,
            "exec": self._exec,
            "read_file": self._read_file,
            "write_file": self._write_file,
            "list_files": self._list_files,
            "reset": self._reset,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def warm(self) -> None:
        """Have jars wait for the first call. Raises PrerequisiteError where no backend works."""
        self._jars.warm()

    def under(self, policy: PolicyLike) -> Policy:
        """Another policy for a single call, with the workspace of this toolbox. Raises PolicyError."""
        return resolved(policy, backend=None, workspace=self._workspace, live=self._live, overrides=(), timeout=None)

    def call(self, name: str, given: object, call: Call) -> ToolAnswer:
        """Answer a call, and wait for that. It is in the audit log before anything happens.

        What goes wrong is an answer, too: whoever calls is a model, and reads words.
        """
        with self._lock:
            self._under_way.add(call)
        try:
            return self._call(name, given, call)
        finally:
            with self._lock:
                self._under_way.discard(call)
                self._idle.notify_all()

    def _call(self, name: str, given: object, call: Call) -> ToolAnswer:
        try:
            answer = self._answered(name, given, call)
        except UsageError as error:
            answer = _fault(error, "usage")
        except BelljarError as error:
            answer = _fault(error, "refused")
        except OSError as error:
            answer = ToolAnswer(
                f"[{error.strerror}: {plain(str(error.filename or ''))}]", is_error=True, outcome="failed"
            )
        if call.is_recorded:
            try:
                call.record_answer(run=answer.run_id, outcome=answer.outcome, is_error=answer.is_error)
            except AuditError as error:
                return _fault(error, "refused")
        return answer

    def _answered(self, name: str, given: object, call: Call) -> ToolAnswer:
        if not call.is_recorded:
            known = name in self._handlers
            call.record(call.policy or self.policy, name, given, denied="" if known else "there is no such tool")
        if name not in self._handlers:
            known_names = ", ".join(tool.name for tool in TOOLS)
            raise UsageError(f"there is no tool {plain(name)!r}", hint=f"there are {known_names}")
        if call.cancelled:
            raise UsageError("the call was cancelled before it began")
        return self._handlers[name](Arguments(BY_NAME[name], given), call, self._jars_for(call))

    def _jars_for(self, call: Call) -> Jars:
        """Those of the policy; a tighter one of a single call has jars of its own, and no pool."""
        policy = call.policy
        if policy is None or policy == self.policy:
            return self._jars
        with self._lock:
            found = self._tighter.pop(policy.digest, None) or Jars(policy, pool_size=0)
            self._tighter[policy.digest] = found
            old = self._tighter.popitem(last=False)[1] if len(self._tighter) > _MOST_TIGHTER else None
        if old is not None:
            old.close()
        return found

    def end_scope(self, scope: str) -> None:
        """End the jars of a client that has gone, and let go of what was kept for it."""
        with self._lock:
            every = [self._jars, *self._tighter.values()]
            calls = [call for call in self._under_way if call.scope == scope]
        for call in calls:
            call.cancel("abandoned")
        for jars in every:
            jars.end_scope(scope)
        self.handles.forget(scope)

    def close(self) -> None:
        """End every jar. Calls that are under way end, and are recorded so, before this returns."""
        with self._lock:
            calls = list(self._under_way)
        for call in calls:
            call.cancel("abandoned")
        self._close_jars()
        with self._lock:
            self._idle.wait_for(lambda: not self._under_way, _PATIENCE_SECONDS)
        self._close_jars()  # what a call made that was just about to

    def _close_jars(self) -> None:
        with self._lock:
            tighter, self._tighter = list(self._tighter.values()), OrderedDict()
        for jars in (self._jars, *tighter):
            jars.close()

    # --- the tools ---

    def _run(self, given: Arguments, call: Call, jars: Jars) -> ToolAnswer:
        program = ToolProgram(
            code=given.text("code"),
            language=given.text("language", "python"),
            files=given.files("files"),
            timeout=given.seconds("timeout"),
        )
        return self._ran(given, program, call, jars)

    def _exec(self, given: Arguments, call: Call, jars: Jars) -> ToolAnswer:
        program = ToolProgram(
            argv=tuple(given.words("command")), stdin=given.text("stdin") or None, timeout=given.seconds("timeout")
        )
        return self._ran(given, program, call, jars)

    def _ran(self, given: Arguments, program: ToolProgram, call: Call, jars: Jars) -> ToolAnswer:
        name = given.text("session", _MAIN if self._stateful else "")
        if not name:
            result, content = jars.run_fresh(program, call)
            return self._maker(call).of_run(result, self._put(result.run_id, content, call))
        session, note = jars.session(call.scope, name)
        for path, text in program.files.items():
            with _naming(path):
                session.files.write(path, text)
        return _noted(note, self._ran_in(session, name, program, call, jars))

    def _ran_in(self, session: Session, name: str, program: ToolProgram, call: Call, jars: Jars) -> ToolAnswer:
        if program.code is not None and program.language == "python":
            step, content = jars.step(session, program, call)
            kept = self._put(f"{step.run_id}/{step.step}", content, call)
            return self._maker(call).of_step(step, kept, session=name)
        result, content = jars.beside(session, program, call)
        return self._maker(call).of_run(result, self._put(result.run_id, content, call), session=name)

    def _clean(self, call: Call) -> Cleaner:
        return self._cleaners.of(call.policy or self.policy, call.scope)

    def _maker(self, call: Call) -> Maker:
        return Maker(partial(self.handles.put_output, scope=call.scope), self._clean(call))

    def _put(self, run_id: str, content: Mapping[str, bytes], call: Call) -> list[StoredFile]:
        return self.handles.put(run_id, content, scope=call.scope, clean=self._clean(call).text)

    def _read_file(self, given: Arguments, call: Call, jars: Jars) -> ToolAnswer:
        path, start = given.text("path"), given.whole("start")
        if (whole := self.handles.output(path, scope=call.scope)) is not None:
            return self._part(path, whole, start)
        clean, note = self._clean(call).text, ""
        if path.startswith(PREFIX):
            kept = self.handles.get(path, scope=call.scope)
            if kept is None:
                raise UsageError(f"{plain(path)} is not kept any more", hint="run it again")
            data, clean = kept.data, _both(clean, kept.clean)
        else:
            session, note = self._existing(given, call, jars)
            with _naming(path):
                data = session.files.read(path, limit=_LARGEST_READ)
        if mime_of(data) == "text/plain":
            return _noted(note, self._part(path, clean(data.decode()), start))
        return _noted(note, _no_text(path, data))

    def _part(self, path: str, text: str, start: int) -> ToolAnswer:
        part = text[start : start + MOST_READ]
        after = len(text) - start - len(part)
        told = {"path": plain(path), "text": part, "start": start, "characters": len(text), "mime": "text/plain"}
        more = f"\n[{after:,} more characters: start={start + len(part)}]" if after > 0 else ""
        return ToolAnswer(part + more, told)

    def _existing(self, given: Arguments, call: Call, jars: Jars) -> Found:
        name = given.text("session", _MAIN)
        if not jars.has_session(call.scope, name):
            raise UsageError(
                f"there is no session {name!r} yet",
                hint=f"call run or write_file with session={name!r} first, or read a handle of an earlier result",
            )
        return jars.session(call.scope, name)

    def _write_file(self, given: Arguments, call: Call, jars: Jars) -> ToolAnswer:
        name, path, content = given.text("session", _MAIN), given.text("path"), given.text("content")
        session, note = jars.session(call.scope, name)
        with _naming(path):
            session.files.write(path, content)
        size = len(content.encode())
        seen = "" if self._stateful and name == _MAIN else f"; run and exec see it with session={name!r}"
        told = {"path": plain(path), "bytes": size, "session": name}
        return _noted(note, ToolAnswer(f"wrote {size:,} bytes to {plain(path)}{seen}", told))

    def _list_files(self, given: Arguments, call: Call, jars: Jars) -> ToolAnswer:
        name = given.text("session", _MAIN)
        session, note = self._existing(given, call, jars)
        path = given.text("path", ".")
        with _naming(path):
            entries = session.files.list(path, recursive=given.flag("recursive"))
        clean = self._clean(call).text
        shown = [
            {"path": clean(plain(entry.path)), "kind": entry.kind, "size": entry.size}
            for entry in entries[:MOST_LISTED]
        ]
        left_out = len(entries) - len(shown)
        lines = [f"{entry['path']}{'/' if entry['kind'] == 'directory' else ''}\t{entry['size']}" for entry in shown]
        lines += [f"[and {left_out} more]"] if left_out else []
        told = {"files": shown, "left_out": left_out, "session": name}
        return _noted(note, ToolAnswer("\n".join(lines) or "(empty)", told))

    def _reset(self, given: Arguments, call: Call, jars: Jars) -> ToolAnswer:
        name = given.text("session", _MAIN)
        existed = jars.end_session(call.scope, name)
        words = f"the session {name!r} has ended" if existed else f"there was no session {name!r}"
        return ToolAnswer(words, {"session": name, "existed": existed})


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """What goes wrong with a file of the jar's, with the name that the model knows it by."""
    try:
        yield
    except OSError as error:
        words = "no links are followed" if error.errno == errno.ELOOP else error.strerror
        raise OSError(error.errno, words, path or ".") from None


def _no_text(path: str, data: bytes) -> ToolAnswer:
    mime = mime_of(data)
    told = {"path": plain(path), "mime": mime, "bytes": len(data)}
    if mime.startswith("image/") and len(data) <= 1 << 20:
        return ToolAnswer(f"{plain(path)}: {mime}, {len(data):,} bytes", told, images=((mime, data),))
    return ToolAnswer(f"[{plain(path)} is no text: {mime}, {len(data):,} bytes; look at it with code]", told)


def _noted(note: str, answer: ToolAnswer) -> ToolAnswer:
    """With what has to be said about the session first."""
    if not note:
        return answer
    return answer._replace(text=f"{note}\n{answer.text}", structured={**(answer.structured or {}), "note": note})


def _both(first: Callable[[str], str], second: Callable[[str], str]) -> Callable[[str], str]:
    """What was made under one policy and is read under another: nothing is shown that either hides."""
    if first == second or second is str:
        return first
    return second if first is str else lambda text: first(second(text))


def _fault(error: BelljarError, outcome: str) -> ToolAnswer:
    hint = f" Hint: {error.hint}" if error.hint else ""
    return ToolAnswer(f"[{error.message}.{hint}]", is_error=True, outcome=outcome)
