"""Two texts of the guest's as a unified diff, in bounded time: texts can be made over which a search for the smallest
difference takes hours. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher

MAX_DIFF_BYTES = 1 << 20
"""Larger files are named, not shown."""

_CONTEXT = 3
_MOST_SEARCHED = 2000
"""Lines that differ, on each side: of more, all of the old ones are shown, and then all of the new ones."""

Step = tuple[str, int, int, int, int]
"""As difflib has them: what, and the lines from where to where, before and after."""


def as_text(content: bytes) -> str | None:
    """What can be shown line by line; None for anything else."""
    return None if b"\0" in content or len(content) > MAX_DIFF_BYTES else content.decode(errors="replace")


def unified(before: str, after: str, old: str, new: str, *, search: bool = True) -> str:
    """The difference, as `diff -u` prints it; empty if there is none. It is not escaped.

    With `search=False` the lines that differ are one hunk: a search takes up to seconds for texts made to be slow.
    """
    first, second = _lines(before), _lines(after)
    text = "".join(_hunk(first, second, group) for group in _groups(first, second, search=search))
    return f"--- {old}\n+++ {new}\n{text}" if text else ""


def _lines(text: str) -> list[str]:
    """With their ends; only a line feed is one."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _groups(first: Sequence[str], second: Sequence[str], *, search: bool) -> Iterator[list[Step]]:
    """The steps from one to the other, in groups that lie together, each with some lines around it."""
    start = _common(first, second)
    end = min(_common(first[::-1], second[::-1]), len(first) - start, len(second) - start)
    old, new = first[start : len(first) - end], second[start : len(second) - end]
    if not old and not new:
        return
    found: Sequence[Step] = [("replace", 0, len(old), 0, len(new))]
    if search and max(len(old), len(new)) <= _MOST_SEARCHED:
        found = SequenceMatcher(None, old, new).get_opcodes()
    steps: list[Step] = [("equal", 0, start, 0, start)]
    steps += [(what, a + start, b + start, c + start, d + start) for what, a, b, c, d in found]
    steps += [("equal", len(first) - end, len(first), len(second) - end, len(second))]
    yield from _Known([step for step in steps if step[0] != "equal" or step[1] < step[2]]).get_grouped_opcodes(_CONTEXT)


class _Known(SequenceMatcher[str]):
    """Groups steps that were found before."""

    def __init__(self, steps: list[Step]) -> None:
        super().__init__()
        self._steps = steps

    def get_opcodes(self) -> list[Step]:  # type: ignore[override]
        return self._steps


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    """How many lines both begin with."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        count += 1
    return count


def _hunk(first: Sequence[str], second: Sequence[str], group: list[Step]) -> str:
    removed = _range(group[0][1], group[-1][2])
    added = _range(group[0][3], group[-1][4])
    lines = [f"@@ -{removed} +{added} @@\n"]
    for what, from_old, to_old, from_new, to_new in group:
        if what == "equal":
            lines += [f" {line}" for line in first[from_old:to_old]]
        else:
            lines += [f"-{line}" for line in first[from_old:to_old]]
            lines += [f"+{line}" for line in second[from_new:to_new]]
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def _range(start: int, stop: int) -> str:
    """As `diff -u` counts: from 1, the length only if it is not 1, and before an empty range the line above it."""
    length = stop - start
    if length == 1:
        return str(start + 1)
    return f"{start + 1 if length else start},{length}"


__all__ = ["MAX_DIFF_BYTES", "as_text", "unified"]
