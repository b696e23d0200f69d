"""Kept work as a patch that `git apply` takes: text, binary files, links, modes and deletions."""

from __future__ import annotations

import base64
import hashlib
import os
import time
import zlib
from collections.abc import Collection, Iterator

from belljar.backends.hostile_files import open_beneath
from belljar.sandbox.files.copying import PathState
from belljar.sandbox.files.text_diff import MAX_DIFF_BYTES, unified
from belljar.sandbox.kept.store import KeptWork, Row

MAX_IN_PATCH = 64 << 20
"""Bytes of a file in a patch: all of it is in memory."""
_MOST_SEARCH_SECONDS = 20.0
"""Seconds to search for small differences. Later files are all old lines, and then all new ones."""
_NOTHING = "0" * 40
_LINE = 52
"""Bytes in one line of a binary patch."""
_QUOTED = {0x22: b'\\"', 0x5C: b"\\\\", 0x07: b"\\a", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0B: b"\\v"} | {
    0x0C: b"\\f",
    0x0D: b"\\r",
}


class Patch:
    """The patch of some paths, piece by piece. `left_out` has what is not in it, each with the reason."""

    def __init__(self, work: KeptWork, paths: Collection[str]) -> None:
        self._work = work
        self._paths = paths
        self.left_out: dict[str, str] = {}
        self._until = time.monotonic() + _MOST_SEARCH_SECONDS

    def __iter__(self) -> Iterator[bytes]:
        after, before = self._work.open("after"), self._work.open("before")
        try:
            for path, row in self._work.rows.items():
                if path in self._paths:
                    yield from self._one(row, after, before)
        finally:
            os.close(after)
            os.close(before)

    def _one(self, row: Row, after: int, before: int) -> Iterator[bytes]:
        path = row.change.path
        for name, side in row.within.items():  # a directory that goes
            yield from self._file(name, side, before, None, after)
        if row.change.kind != "deleted" and row.change.what == "directory":
            return  # git knows no directories
        old = row.before if row.before is not None and row.before.what in ("file", "link") else None
        if not row.known:
            self.left_out[path] = "it was changed on the host while the run went on, and what it was is not known"
        elif old is not None and row.after is not None and old.what != row.after.what:
            yield from self._file(path, old, before, None, after)
            yield from self._file(path, None, before, row.after, after)
        elif old is not None or row.after is not None:
            yield from self._file(path, old, before, row.after, after)

    def _file(
        self, path: str, old: PathState | None, before: int, new: PathState | None, after: int
    ) -> Iterator[bytes]:
        try:
            first = None if old is None else _content(before, path, old)
            second = None if new is None else _content(after, path, new)
        except OSError as error:
            self.left_out[path] = error.strerror or str(error)
            return
        yield _header(path, old, new, first, second)
        if first != second:
            yield from _body(path, first, second, search=time.monotonic() < self._until)


def _content(root: int, path: str, side: PathState) -> bytes:
    if side.missing:
        raise OSError(0, side.missing)
    if side.what == "link":
        return os.fsencode(side.link)
    if side.size > MAX_IN_PATCH:
        raise OSError(0, f"it is larger than {MAX_IN_PATCH >> 20} MiB")
    with os.fdopen(open_beneath(root, path, os.O_RDONLY), "rb") as file:
        return file.read(MAX_IN_PATCH)


def _header(
    path: str, old: PathState | None, new: PathState | None, first: bytes | None, second: bytes | None
) -> bytes:
    lines = [b"diff --git " + _quoted(b"a/", path) + b" " + _quoted(b"b/", path)]
    modes = [None if side is None else _mode(side) for side in (old, new)]
    if modes[0] is None:
        lines.append(b"new file mode %s" % modes[1])
    elif modes[1] is None:
        lines.append(b"deleted file mode %s" % modes[0])
    elif modes[0] != modes[1]:
        lines += [b"old mode %s" % modes[0], b"new mode %s" % modes[1]]
    if first != second:
        same_mode = b" %s" % modes[0] if modes[0] == modes[1] and modes[0] is not None else b""
        lines.append(f"index {_blob(first)}..{_blob(second)}".encode() + same_mode)
    return b"\n".join(lines) + b"\n"


def _mode(side: PathState) -> bytes:
    """As git has it: a link, or a file that may be executed or not."""
    return b"120000" if side.what == "link" else b"100755" if side.mode & 0o100 else b"100644"


def _blob(content: bytes | None) -> str:
    """The name that git gives to the content."""
    if content is None:
        return _NOTHING
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _body(path: str, first: bytes | None, second: bytes | None, *, search: bool) -> Iterator[bytes]:
    old, new = first or b"", second or b""
    if b"\0" in old or b"\0" in new or max(len(old), len(new)) > MAX_DIFF_BYTES:
        yield b"GIT binary patch\n" + _literal(new) + _literal(old)
        return
    # One character for each byte, so that no byte is lost whatever the text's encoding is.
    text = unified(old.decode("latin-1"), new.decode("latin-1"), "OLD", "NEW", search=search)
    hunks = text.partition("\n")[2].partition("\n")[2].encode("latin-1")
    if hunks:
        name = b"--- %s\n+++ %s\n"
        yield name % (_named(b"a/", path, first), _named(b"b/", path, second)) + hunks


def _named(prefix: bytes, path: str, content: bytes | None) -> bytes:
    if content is None:
        return b"/dev/null"
    quoted = _quoted(prefix, path)
    return quoted + b"\t" if b" " in quoted and not quoted.startswith(b'"') else quoted


def _quoted(prefix: bytes, path: str) -> bytes:
    """A name as git writes it: in quotes if it holds anything but printable ASCII."""
    name = prefix + os.fsencode(path)
    if all(0x20 <= byte < 0x7F and byte not in (0x22, 0x5C) for byte in name):
        return name
    return b'"' + b"".join(_QUOTED.get(byte) or _byte(byte) for byte in name) + b'"'


def _byte(byte: int) -> bytes:
    return bytes([byte]) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


def _literal(content: bytes) -> bytes:
    """A file's content as git's binary patches have it: deflated, in lines that begin with their length."""
    packed = zlib.compress(content)
    lines = [b"literal %d\n" % len(content)]
    for start in range(0, len(packed), _LINE):
        piece = packed[start : start + _LINE]
        length = len(piece) + (ord("A") - 1 if len(piece) <= 26 else ord("a") - 27)
        lines.append(bytes([length]) + base64.b85encode(piece, pad=True) + b"\n")
    return b"".join(lines) + b"\n"


__all__ = ["MAX_IN_PATCH", "Patch"]
