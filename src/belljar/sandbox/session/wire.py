"""Messages of a session's supervisor, taken apart. All of it is the guest's word: bounded and checked. Pure."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any

from belljar.guest.session.steps import DONE, FORK, SHOWN, STEP, UP
from belljar.guest.session.supervisor import END, FRAME, GONE, INTERRUPT, STDERR, STDOUT
from belljar.sandbox.session.step import Rich, Shown, StepError

__all__ = [
    "DONE",
    "END",
    "FORK",
    "GONE",
    "INTERRUPT",
    "SHOWN",
    "STDERR",
    "STDOUT",
    "STEP",
    "UP",
    "BrokenError",
    "SessionFrames",
]

_MOST_FORMS = 20
_MOST_MEMBERS = 64
_LONGEST_KIND = 100
_WORD = re.compile(r"(?:-?[0-9]{1,20}|true|false|null)(?![0-9.eE])").match
_SUFFIXES = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "text/html": "html",
    "text/markdown": "md",
    "text/latex": "tex",
    "application/json": "json",
    "application/pdf": "pdf",
}


class BrokenError(Exception):
    """What came is no frame: the supervisor is not what it was."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a step, as the interpreter tells it."""

    step: int
    value: str | None
    forms: tuple[Rich, ...]
    error: StepError | None
    exit_code: int | None
    interrupted: bool


class SessionFrames:
    """Cuts a stream of bytes into frames."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Each frame that is whole now: kind, interpreter, payload. Raises BrokenError."""
        self._held += data
        while len(self._held) >= FRAME.size:
            kind, number, length = FRAME.unpack_from(self._held)
            if kind not in (STDOUT, STDERR, SHOWN, DONE, GONE, UP) or length > self._longest:
                raise BrokenError
            if len(self._held) < FRAME.size + length:
                return
            with memoryview(self._held) as held:
                payload = bytes(held[FRAME.size : FRAME.size + length])
            del self._held[: FRAME.size + length]
            yield kind, number, payload


def encode(kind: bytes, number: int, payload: bytes) -> bytes:
    """A frame for the supervisor."""
    return FRAME.pack(kind, number, len(payload)) + payload


def done(payload: bytes, count: int) -> Done:
    """The end of a step; `count` things were shown before. Raises BrokenError."""
    told = _mapping(payload)
    error, status = told.get("error"), told.get("exit")
    return Done(
        step=_whole(told.get("step")),
        value=_text(told.get("value")),
        forms=_forms(told.get("bundle"), count),
        error=None if error is None else _error(error),
        exit_code=None if status is None else _whole(status) & 0xFF,
        interrupted=told.get("interrupted") is True,
    )


def shown(payload: bytes, count: int) -> Shown:
    """Something that was shown, the `count`th. Raises BrokenError."""
    told = _mapping(payload)
    return Shown(_text(told.get("text")) or "", _forms(told.get("bundle"), count))


def gone(payload: bytes) -> int | None:
    """The status with which an interpreter ended, negative for a signal, if anyone knows. Raises BrokenError."""
    status = _mapping(payload).get("status")
    return None if status is None else _whole(status)


def _mapping(payload: bytes) -> dict[str, Any]:
    """A JSON object of few texts, as an interpreter sends them: escaped to ASCII, without lists, at most two deep.

    Nothing else is parsed: `[[],[],…` becomes thirty times as large, and text that is not ASCII four times.
    """
    try:
        text = payload.decode("ascii")
        told, end = _value(text, 0, [_MOST_MEMBERS])
    except (ValueError, IndexError) as error:
        raise BrokenError from error
    if end != len(text) or not isinstance(told, dict):
        raise BrokenError
    return told


def _value(text: str, at: int, left: list[int], depth: int = 0) -> tuple[Any, int]:
    """The value there, and where it ends. Raises ValueError, IndexError."""
    if text[at] == '"':
        found: tuple[str, int] = scanstring(text, at + 1)
        return found
    if text[at] == "{":
        return _object(text, at + 1, left, depth)
    if (word := _WORD(text, at)) is None:
        raise BrokenError
    return json.loads(word[0]), word.end()


def _object(text: str, at: int, left: list[int], depth: int) -> tuple[dict[str, Any], int]:
    found: dict[str, Any] = {}
    at = _after_space(text, at)
    if text[at] == "}":
        return found, at + 1
    while True:
        left[0] -= 1
        if left[0] < 0 or depth > 1 or text[at] != '"':
            raise BrokenError
        name, at = scanstring(text, at + 1)
        at = _after_space(text, at)
        if text[at] != ":":
            raise BrokenError
        found[name], at = _value(text, _after_space(text, at + 1), left, depth + 1)
        at = _after_space(text, at)
        if text[at] == "}":
            return found, at + 1
        if text[at] != ",":
            raise BrokenError
        at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    """Where the next character is that is no space. More than one space is nothing that an interpreter sends."""
    return at + 1 if text[at] == " " else at


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > 1 << 62:
        raise BrokenError
    return value


def _text(value: object) -> str | None:
    """Text that can be encoded again; a lone surrogate is shown."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise BrokenError
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def _error(told: object) -> StepError:
    if not isinstance(told, dict):
        raise BrokenError
    return StepError(*(_text(told.get(name)) or "" for name in ("type", "message", "traceback")))


def _forms(told: object, count: int) -> tuple[Rich, ...]:
    if told is None:
        return ()
    if not isinstance(told, dict) or len(told) > _MOST_FORMS:
        raise BrokenError
    return tuple(_form(str(mime)[:_LONGEST_KIND], form, count) for mime, form in told.items())


def _form(mime: str, form: object, count: int) -> Rich:
    text = _text(form)
    if text is None:
        raise BrokenError
    mime = mime if mime.isascii() and mime.isprintable() else "application/octet-stream"
    kind = "figure" if mime.startswith("image/") else "result"
    name = f"{kind}-{count}.{_SUFFIXES.get(mime, 'bin')}"
    plain = Rich(mime, text.encode(), name)
    if plain.is_text:
        return plain
    try:
        return Rich(mime, base64.b64decode(text, validate=False), name)
    except (binascii.Error, ValueError) as error:
        raise BrokenError from error
