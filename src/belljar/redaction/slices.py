"""A bounded slice of output for whoever reads it, and a handle to the whole.

A model that gets a megabyte of output reads none of it. It gets the first and last lines, or the first rows, with what
was left out in numbers, and a handle by which it can ask for the rest.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

Row = TypeVar("Row")
_MOST_KEPT = 32 * 1024 * 1024


class Slice(NamedTuple):
    """The part of an output that is shown."""

    head: str
    tail: str
    handle: str
    lines: int
    characters: int
    left_out_lines: int
    left_out_characters: int

    @property
    def whole(self) -> bool:
        """Whether nothing was left out."""
        return self.left_out_characters == 0

    def __str__(self) -> str:
        if self.whole:
            return self.head
        note = f"[{self.left_out_characters:,} of {self.characters:,} characters left out"
        note += f", {self.left_out_lines:,} of {self.lines:,} lines" if self.left_out_lines else ""
        before = "" if not self.head or self.head.endswith("\n") else "\n"
        return f"{self.head}{before}{note}; the whole is {self.handle}]\n{self.tail}"


class Rows(NamedTuple, Generic[Row]):
    """The first rows of a table."""

    first: Sequence[Row]
    handle: str
    total: int
    left_out: int


def handle_of(text: str) -> str:
    """The name of an output: the same for the same text."""
    return "out-" + hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=10).hexdigest()


def cut(text: str, *, head: int = 40, tail: int = 20, characters: int = 16_000, handle: str | None = None) -> Slice:
    """The first `head` and the last `tail` lines, no more than `characters` of them together."""
    lines = text.splitlines(keepends=True)
    if len(lines) <= head + tail and len(text) <= characters:
        return Slice(text, "", handle or handle_of(text), len(lines), len(text), 0, 0)
    share = characters * head // max(1, head + tail)
    first = "".join(lines[:head])[:share]
    last = "".join(lines[max(head, len(lines) - tail) :]) if tail else ""
    last = last[max(0, len(last) - (characters - share)) :]
    shown = first.count("\n") + last.count("\n")
    left_out = len(text) - len(first) - len(last)
    return Slice(first, last, handle or handle_of(text), len(lines), len(text), max(0, len(lines) - shown), left_out)


def first_rows(rows: Sequence[Row], most: int = 20, *, handle: str) -> Rows[Row]:
    """The first rows of a table, and how many there are."""
    return Rows(rows[:most], handle, len(rows), max(0, len(rows) - most))


class OutputStore:
    """Whole outputs, by handle, while there is room; the oldest go first. Any thread may use it."""

    def __init__(self, *, most_characters: int = _MOST_KEPT) -> None:
        self._most = most_characters
        self._size = 0
        self._kept: OrderedDict[str, str] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, text: str, handle: str | None = None) -> str:
        """Keep an output; returns its handle. One that is larger than all the room is not kept."""
        handle = handle or handle_of(text)
        with self._lock:
            if handle not in self._kept and len(text) <= self._most:
                self._kept[handle] = text
                self._size += len(text)
                while self._size > self._most:
                    self._size -= len(self._kept.popitem(last=False)[1])
        return handle

    def get(self, handle: str, start: int = 0, characters: int | None = 16_000) -> str | None:
        """A part of an output; None if it is not kept, or no longer."""
        with self._lock:
            text = self._kept.get(handle)
        return None if text is None else text[start : None if characters is None else start + characters]
