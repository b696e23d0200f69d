r"""Text with its escapes undone, and where each character came from: what is found there is found in the text. Pure.

A secret that `grep --color` printed has escape sequences in or around it, in JSON it follows `\n` or holds `\"`, and in
a URL it holds `%40`: to a pattern it is another text. Only lines that hold an escape are looked at once more.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

_COLOUR = r"\x1b(?:\[[0-?]{0,40}[ -/]{0,4}[@-~]|\][^\x07\x1b\r\n]{0,500}(?:\x07|\x1b\\)|[@-Z\\^_])"
_ESCAPE = re.compile(
    rf"{_COLOUR}|\\{{1,8}}(?:u[0-9a-fA-F]{{4}}|x[0-9a-fA-F]{{2}}|[nrtbf\"'/])|%(?:25){{0,3}}[0-9a-fA-F]{{2}}"
)
_LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": " ", "f": " "}
_UNKNOWN = "\ufffd"


class Unescaped:
    """Some lines of a text with their escapes undone."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._size = 0
        self._starts: list[int] = []
        self._origins: list[tuple[int, int]] = []
        """Of each piece: where it begins here, and from where to where it was."""

    @property
    def text(self) -> str:
        """The text."""
        return "".join(self._pieces)

    def add(self, piece: str, start: int, end: int) -> None:
        """Add what stood from `start` to `end`: as it was, or one character for all of it."""
        if piece:
            self._starts.append(self._size)
            self._origins.append((start, end))
            self._pieces.append(piece)
            self._size += len(piece)

    def origin(self, start: int, end: int) -> tuple[int, int]:
        """Where a part of this text was."""
        return self._place(start)[0], self._place(end - 1)[1]

    def _place(self, at: int) -> tuple[int, int]:
        index = bisect_right(self._starts, at) - 1
        start, end = self._origins[index]
        if len(self._pieces[index]) == 1:
            return start, end
        place = start + at - self._starts[index]
        return place, place + 1


def unescaped(text: str) -> Iterator[Unescaped]:
    """The lines with escapes, undone; with colours a second time, since they may stand in a word or between two."""
    if "\\" not in text and "%" not in text and "\x1b" not in text:
        return
    lines = list(_lines(text))
    if lines:
        yield _undone(text, lines, "")
        if any(text.find("\x1b", start, end) >= 0 for start, end, _found in lines):
            yield _undone(text, lines, " ")


def _lines(text: str) -> Iterator[tuple[int, int, list[re.Match[str]]]]:
    """Each line that has an escape: from where to where, and its escapes."""
    found: list[re.Match[str]] = []
    start = end = 0
    for escape in _ESCAPE.finditer(text):
        if escape.start() >= end:
            if found:
                yield start, end, found
            found = []
            start = text.rfind("\n", 0, escape.start()) + 1
            after = text.find("\n", escape.start())
            end = len(text) if after < 0 else after
        found.append(escape)
    if found:
        yield start, end, found


def _undone(text: str, lines: list[tuple[int, int, list[re.Match[str]]]], colour: str) -> Unescaped:
    result = Unescaped()
    for start, end, escapes in lines:
        place = start
        for escape in escapes:
            result.add(text[place : escape.start()], place, escape.start())
            result.add(_character(escape[0], colour), escape.start(), escape.end())
            place = escape.end()
        result.add(text[place:end], place, end)
        result.add("\n", end, end + 1)
    return result


def _character(escape: str, colour: str) -> str:
    if escape[0] == "\x1b":
        return colour
    if escape[0] == "%":
        code = int(escape[-2:], 16)
    else:
        letter = escape.lstrip("\\")
        if letter[0] not in "ux" or len(letter) == 1:
            return _LETTERS.get(letter, letter)
        code = int(letter[1:], 16)
    return chr(code) if code < 0x80 or (code > 0xFF and not 0xD800 <= code < 0xE000) else _UNKNOWN
