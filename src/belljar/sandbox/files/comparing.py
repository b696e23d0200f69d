"""What differs between two snapshots: what was added, changed and removed, with the text of what has some."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from belljar.backends.hostile_files import either_data
from belljar.errors import UsageError
from belljar.sandbox.files.snapshot_files import SnapshotFile, SnapshotFiles
from belljar.sandbox.files.text_diff import MAX_DIFF_BYTES, as_text, unified

MAX_SHOWN_BYTES = 8 << 20
"""Of text, in all: what differs beyond that is named, not shown."""

_PIECE = 1 << 20
_MOST_READ, _MOST_SECONDS = 512 << 20, 60.0
"""Bytes read and seconds taken to make texts: what differs beyond that is named, too."""

Kind = Literal["added", "changed", "removed"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that is not the same in both."""

    path: str
    kind: Kind
    before: SnapshotFile | None
    after: SnapshotFile | None
    text: str = ""
    """A unified diff, not escaped; empty where there is none to show."""
    note: str = ""
    """Why there is none, or what else is to know."""


def compare(first: SnapshotFiles, second: SnapshotFiles) -> Iterator[Difference]:
    """What differs in the second one, by path.

    Raises:
        UsageError: they can't be compared, because they hold the changes of different directories.
    """
    if first.base != second.base:
        raise UsageError(
            f"{first.path} holds {_words(first.base)}, and {second.path} holds {_words(second.base)}",
            hint="compare snapshots of the same workspace",
        )
    left, read = MAX_SHOWN_BYTES, _MOST_READ
    until = time.monotonic() + _MOST_SECONDS
    for path in sorted({*first.files, *second.files, *(first.deleted ^ second.deleted)}):
        shown = read > 0 and time.monotonic() < until
        if (found := _difference(path, first, second, left if shown else 0)) is not None:
            left -= len(found.text)
            read -= sum(min(kept.size, MAX_DIFF_BYTES) for kept in (found.before, found.after) if kept)
            yield found


def _words(base: str | None) -> str:
    return "all of its files" if base is None else f"changes of {base}"


def _difference(path: str, first: SnapshotFiles, second: SnapshotFiles, left: int) -> Difference | None:
    before, after = first.files.get(path), second.files.get(path)
    if before is not None and after is not None and _same(first, before, second, after):
        return None
    kind, note = _kind(path, first, second)
    if kind is None:
        return None
    text, why = _text(path, (first, before), (second, after), left)
    return Difference(path, kind, before, after, text, note or why)


def _kind(path: str, first: SnapshotFiles, second: SnapshotFiles) -> tuple[Kind | None, str]:
    """What became of it. One that is in neither list of a snapshot with a base is there as it is in the base."""
    has = [path in one.files for one in (first, second)]
    gone = [path in one.deleted and path not in one.files for one in (first, second)]
    if has == [True, True]:
        return "changed", ""
    if first.base is None:
        return ("removed" if has[0] else "added"), ""
    if gone == [True, True]:
        return None, ""
    if gone[1]:
        return "removed", "" if has[0] else f"it was as in {first.base}"
    if gone[0]:
        return "added", "" if has[1] else f"it is as in {first.base} again"
    which = "it was" if has[1] else "it is again"
    return "changed", f"{which} as in {first.base}, if that has it"


def _same(first: SnapshotFiles, before: SnapshotFile, second: SnapshotFiles, after: SnapshotFile) -> bool:
    if (before.kind, before.size, before.mode, before.target) != (after.kind, after.size, after.mode, after.target):
        return False
    pieces = (
        (at, min(_PIECE, end - at))
        for start, end in either_data(before.data, after.data)
        for at in range(start, end, _PIECE)
    )
    return all(first.read(before, size, at) == second.read(after, size, at) for at, size in pieces)


def _text(
    path: str,
    first: tuple[SnapshotFiles, SnapshotFile | None],
    second: tuple[SnapshotFiles, SnapshotFile | None],
    left: int,
) -> tuple[str, str]:
    """The diff, or why there is none."""
    if left <= 0:
        return "", "too much differs to show it all: not shown"
    texts = [_lines_of(*one) for one in (first, second)]
    if texts[0] is None or texts[1] is None:
        return "", "binary or large, not shown"
    name = path if path.isprintable() else repr(path)
    old = "/dev/null" if first[1] is None else f"a/{name}"
    new = "/dev/null" if second[1] is None else f"b/{name}"
    text = unified(texts[0], texts[1], old, new)
    if len(text) > left:
        return "", "too much differs to show it all: not shown"
    if not text and first[1] and second[1] and first[1].mode != second[1].mode:
        return "", f"mode {first[1].mode:04o}, then {second[1].mode:04o}"
    return text, ""


def _lines_of(files: SnapshotFiles, kept: SnapshotFile | None) -> str | None:
    if kept is None or kept.kind == "directory":
        return ""
    if kept.kind == "link":
        return f"link to {kept.target}\n"
    return as_text(files.read(kept, MAX_DIFF_BYTES + 1))


__all__ = ["Difference", "compare"]
