"""From the result of a run to what a model gets: a bounded part of the output, images, handles, and advice. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from belljar.redaction.slices import cut
from belljar.sandbox.record.result import Artifact, Denial, Outcome, RunResult
from belljar.sandbox.session.step import StepResult
from belljar.tools.cleaning import Cleaner
from belljar.tools.handle_store import StoredFile

_SHOWN_CHARACTERS = 16_000
_MOST_IMAGES = 4
_LARGEST_IMAGE = 1 << 20
_MOST_FILES = 50
_MOST_DENIALS = 10
_LONGEST_NAME = 200


class ToolAnswer(NamedTuple):
    """What a tool answers."""

    text: str
    structured: dict[str, Any] | None = None
    images: tuple[tuple[str, bytes], ...] = ()
    """Kind and bytes of each."""
    links: tuple[StoredFile, ...] = ()
    is_error: bool = False
    run_id: str = ""
    outcome: str = "ok"


class Maker:
    """Makes the answers of one call: `clean` redacts, `keep` takes what is too long to show, with its handle."""

    def __init__(self, keep: Callable[[str, str], None], clean: Cleaner) -> None:
        self._keep, self._clean = keep, clean

    def of_run(self, result: RunResult, kept: Sequence[StoredFile], *, session: str = "") -> ToolAnswer:
        """Of a program that ran to its end, or was ended."""
        told = _Told(result.run_id, "", result.outcome, result.exit_code, result.reason, result.duration, session)
        if result.signal and result.outcome is Outcome.FAILED:
            told = told._replace(reason=f"it was ended by {result.signal}")
        return self._answer(told, result.stdout, result.stderr, None, result.artifacts, kept, result.denials, ())

    def of_step(self, result: StepResult, kept: Sequence[StoredFile], *, session: str) -> ToolAnswer:
        """Of a step of a session."""
        step = f"/{result.step}"
        told = _Told(result.run_id, step, result.outcome, result.exit_code, result.reason, result.duration, session)
        stderr = result.stderr + (result.error.traceback if result.error else "")
        images = tuple((rich.mime, rich.data) for rich in result.results if rich.mime.startswith("image/"))
        value = result.value
        return self._answer(told, result.stdout, stderr, value, result.artifacts, kept, result.denials, images)

    def _answer(  # noqa: PLR0917 - what an answer is made of
        self,
        told: _Told,
        stdout: str,
        stderr: str,
        value: str | None,
        artifacts: Sequence[Artifact],
        kept: Sequence[StoredFile],
        denials: Sequence[Denial],
        shown: Sequence[tuple[str, bytes]],
    ) -> ToolAnswer:
        handles: dict[str, str] = {}
        told = told._replace(reason=self._clean.text(told.reason))
        out = self._slice(told, "stdout", stdout, handles)
        err = self._slice(told, "stderr", stderr, handles)
        shown_value = None if value is None else self._slice(told, "value", value, handles)
        by_path = {file.path: file for file in kept}
        files = [_file(artifact, by_path.get(artifact.path)) for artifact in artifacts[:_MOST_FILES]]
        refused = [_refused(denial) for denial in denials[:_MOST_DENIALS]]
        for entry in (*files, *refused):
            for key in ("path", "what", "advice"):
                if key in entry:
                    entry[key] = self._clean.text(entry[key])
        ok = told.outcome is Outcome.OK
        structured = {
            "ok": ok,
            "outcome": str(told.outcome),
            "exit_code": told.exit_code,
            "stdout": out,
            "stderr": err,
            "value": shown_value,
            "reason": told.reason,
            "seconds": round(told.seconds, 3),
            "run_id": told.run_id,
            "session": told.session,
            "files": files,
            "refused": refused,
            "handles": handles,
        }
        parts = [part for part in (out, shown_value) if part]
        parts += [f"stderr:\n{err}"] if err else []
        parts += [] if ok else [_ending(told)]
        parts += [_files_told(files, len(artifacts))] if files else []
        parts += [_refused_told(refused, len(denials))] if refused else []
        text = "\n".join(part.rstrip("\n") for part in parts) or "(no output)"
        images = _images([*shown, *((file.mime, file.data) for file in kept if file.is_image)])
        return ToolAnswer(text, structured, images, tuple(kept[:_MOST_FILES]), not ok, told.run_id, str(told.outcome))

    def _slice(self, told: _Told, name: str, text: str, handles: dict[str, str]) -> str:
        """As `RunResult.slice`, with tokens. The handle is the same: `belljar logs` knows it too, if it was stored."""
        clean, handle = self._clean.output(text), f"{told.run_id}{told.step}/{name}"
        part = cut(clean, characters=_SHOWN_CHARACTERS, handle=handle)
        if not part.whole:
            self._keep(clean, handle)
            handles[name] = handle
        return str(part)


class _Told(NamedTuple):
    run_id: str
    step: str
    outcome: Outcome
    exit_code: int | None
    reason: str
    seconds: float
    session: str


def plain(text: str, most: int = _LONGEST_NAME) -> str:
    """A name that code chose, on one line."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:most])
    return shown if len(text) <= most else f"{shown}…"


def _ending(told: _Told) -> str:
    if told.outcome is Outcome.FAILED:
        code = "" if told.exit_code is None else f"exit code {told.exit_code}"
        return f"[{'; '.join(part for part in (code, told.reason) if part) or 'it failed'}]"
    return f"[{told.outcome}: {told.reason or 'it did not run to its end'}]"


def _file(artifact: Artifact, kept: StoredFile | None) -> dict[str, Any]:
    told: dict[str, Any] = {"path": plain(artifact.path), "size": artifact.size}
    return {**told, "handle": kept.handle} if kept else told


def _files_told(files: Sequence[dict[str, Any]], total: int) -> str:
    lines = [f"  {file['path']} ({file['size']:,} bytes, {file.get('handle', 'too large to keep')})" for file in files]
    more = [f"  and {total - len(files)} more"] if total > len(files) else []
    return "\n".join(["[files it made:", *lines, *more]) + "]"


def _refused(denial: Denial) -> dict[str, Any]:
    times = f" ({denial.count} times)" if denial.count > 1 else ""
    return {"what": plain(denial.target) + times, "rule": denial.rule, "advice": _advice(denial)}


def _advice(denial: Denial) -> str:
    """What a model can do about it: not the same again."""
    ask = f"or tell the user that the policy would have to say: {plain(denial.allow, 400)}"
    if denial.kind == "network":
        return f"Trying again will not help. Do without this connection, {ask}"
    if denial.kind == "file":
        return f"Use files beneath the working directory or /tmp, or pass what is needed in `files`, {ask}"
    if denial.kind == "syscall":
        return "No policy allows this: do it without that system call."
    return f"Do it in less (smaller input, fewer processes, in parts), {ask}"


def _refused_told(refused: Sequence[dict[str, Any]], total: int) -> str:
    lines = [f"  {entry['what']}: by {entry['rule']}. {entry['advice']}" for entry in refused]
    more = [f"  and {total - len(refused)} more"] if total > len(refused) else []
    return "\n".join(["[refused by the sandbox:", *lines, *more]) + "]"


def _images(found: Sequence[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
    """Those that a model can be shown: of a kind that it knows by its first bytes, small, few, each once."""
    from belljar.tools.handle_store import mime_of

    fit = [(mime_of(data), data) for _claimed, data in found if len(data) <= _LARGEST_IMAGE]
    return tuple(dict.fromkeys(pair for pair in fit if pair[0].startswith("image/")))[:_MOST_IMAGES]
