"""Redaction of text that comes in pieces: however it is cut, the result is that of the whole.

Whole lines are scanned as they come. Of a line that is not yet whole everything is held back but words that can't be
the beginning of anything. A line longer than `WINDOW` is worked off in windows, a private key held until it ends:
so what is held back has a bound, and where the cuts are depends on the text alone, never on the pieces.
"""

from __future__ import annotations

import codecs
import re
from typing import TYPE_CHECKING

from belljar.redaction.finders.keyblocks import LONGEST, blocks
from belljar.redaction.kinds import Kind, Span

if TYPE_CHECKING:
    from belljar.redaction.redactor import Redactor

WINDOW = 64 * 1024
_EDGE = 8 * 1024
"""How much of a window's end is looked at again with what follows."""
_BESIDE = 160
"""How far a value may be from the name that tells what it is."""
_EARLY = 512
"""Up to here a line that is not yet whole is looked at for words that can go out."""
_KEY_ENDS = re.compile(r"-----|[a-z] [a-z]")
_CALM = re.compile(r"(?:[A-Za-z]*[a-z]{2}[,.;!?)]?[ ])+")
_RESTLESS = re.compile(
    r"pass|pwd|secret|token|key|cred|auth|bearer|basic|session|sig|phone|tel|mobil|fax|what|cell|call|sms|handy|contact|"
    r"steuer|idnr|tax|tin|bsn|burger|pesel|nhs|ssn|social|ver|release|build|rev|[^\x20-\x7e]",
    re.IGNORECASE,
)


class StreamRedactor:
    """Text in pieces in, text with tokens out as soon as it is certain."""

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._keys = Kind.PRIVATE_KEY in redactor.kinds
        self._pieces: list[str] = []
        self._size = 0
        self._inside = False
        self._in_key = False
        self._gone = 0
        """How much of the line that is not yet whole has gone out."""

    @property
    def held(self) -> int:
        """How many characters are held back."""
        return self._size

    def feed(self, text: str) -> str:
        """Take the next piece; what comes back is final."""
        self._pieces.append(text)
        self._size += len(text)
        if self._in_key and self._size < LONGEST and not _KEY_ENDS.search(self._tail(len(text) + 8)):
            return ""
        result = ""
        if self._in_key or "\n" in text or "\r" in text or self._gone + self._size >= WINDOW:
            result = self._work(last=False)
        return result + self._early() if self._size <= _EARLY else result

    def finish(self) -> str:
        """There is no more: the rest comes out."""
        result = self._work(last=True)
        self._inside = False
        return result

    def _tail(self, length: int) -> str:
        tail = ""
        for piece in reversed(self._pieces):
            tail = piece[-length:] + tail
            if len(tail) >= length:
                break
        return tail

    def _hold(self, text: str) -> None:
        self._pieces = [text] if text else []
        self._size = len(text)

    def _early(self) -> str:
        """Words at the beginning of an unfinished line that are plain prose; a prompt is seen before its answer."""
        if self._inside or self._in_key or self._redactor.detects_names or self._gone > _EARLY:
            return ""
        text = "".join(self._pieces)
        calm = _CALM.match(text)
        if calm is None or _RESTLESS.search(calm[0]):
            self._hold(text)
            return ""
        self._hold(text[calm.end() :])
        self._gone += calm.end()
        return calm[0]

    # --- whole lines, and windows of long ones -----------------------------------------------------------------------

    def _work(self, *, last: bool) -> str:
        text = "".join(self._pieces)
        self._in_key = False
        parts: list[str] = []
        place = 0
        while place < len(text):
            end = _whole_lines(text, place, self._gone)
            whole = len(text) - end < WINDOW - (self._gone if end == place else 0)
            if last and whole:
                end = len(text)
            if end > place:
                done = self._lines(text[place:end], parts, more=whole and not last)
                self._gone = 0 if done or last else self._gone
                place += done
                if place < end or whole:
                    break
            else:
                if whole:
                    break
                place += self._window(text[place : place + WINDOW - self._gone], parts)
        self._hold(text[place:])
        return "".join(parts)

    def _lines(self, text: str, parts: list[str], *, more: bool) -> int:
        """Whole lines; returns how far they were done: up to a key that is not yet all there, if `more` may come."""
        end = len(text)
        keys: list[Span] = []
        goes_on, self._inside = self._inside, False
        for first, last, state in blocks(text, inside=goes_on) if self._keys else ():
            if state == "open" and more:
                self._inside, self._in_key = goes_on, True
                end = first
                break
            if last > first:
                keys.append(Span(first, last, Kind.PRIVATE_KEY))
            goes_on = state == "full"
        text = text[:end]
        parts.append(self._redactor.replaced(text, self._spans(text, keys)))
        return end

    def _window(self, text: str, parts: list[str]) -> int:
        """The beginning of a line that is longer than a window; returns how much of it was done."""
        found = list(blocks(text, inside=self._inside)) if self._keys else []
        self._inside = any(first == 0 and last == len(text) and state != "closed" for first, last, state in found)
        keys = [Span(first, last, Kind.PRIVATE_KEY) for first, last, _ in found if last > first]
        spans = self._spans(text, keys)
        cut = _cut(text, spans)
        parts.append(self._redactor.replaced(text[:cut], [span for span in spans if span.end <= cut]))
        self._gone = 0
        return cut

    def _spans(self, text: str, keys: list[Span]) -> list[Span]:
        """What is found, keys and all else. Where a key is, the others see line breaks: nothing is found across it."""
        if not keys:
            return self._redactor.scan(text) if text else []
        parts: list[str] = []
        place = 0
        for start, end, _ in keys:
            parts += (text[place:start], "\n" * (end - start))
            place = end
        parts.append(text[place:])
        return sorted(self._redactor.scan("".join(parts)) + keys)


def _whole_lines(text: str, place: int, gone: int) -> int:
    """Where the last whole line ends before one that is longer than a window, or before the text's end."""
    room = WINDOW - gone
    while True:
        limit = place + room
        end = max(text.rfind("\n", place, limit), text.rfind("\r", place, limit)) + 1
        if not end:
            return place
        place, room = end, WINDOW


def _cut(text: str, spans: list[Span]) -> int:
    """Where to cut a window: after a separator near its end, through nothing, and not between a name and its value."""
    middle = max(1, len(text) - _EDGE)
    cut = max(text.rfind(separator, middle - 2048 if middle > 2048 else 0, middle) for separator in " ,;") + 1 or middle
    for start, end, _ in spans:
        if start < cut + _BESIDE and end > cut:
            if end < len(text) - _BESIDE:
                cut = end
            elif 0 < start < cut:
                return start
            elif start == 0:
                return end
    return cut


class ByteStreamRedactor:
    """Bytes in pieces in, bytes out: UTF-8, with what is not UTF-8 left as it is."""

    def __init__(self, stream: StreamRedactor) -> None:
        self._stream = stream
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")

    def feed(self, data: bytes) -> bytes:
        """Take the next piece; what comes back is final."""
        return _encoded(self._stream.feed(self._decoder.decode(data)))

    def finish(self) -> bytes:
        """There is no more: the rest comes out."""
        rest = self._decoder.decode(b"", final=True)
        return _encoded(self._stream.feed(rest) + self._stream.finish())


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
