"""The files in a snapshot, read on the host without writing any of them. All that is in it was the guest's.

The archive may be anybody's file: what it says about names, kinds and sizes is checked against what belljar writes, and
nothing is believed to be larger than the file itself.
"""

from __future__ import annotations

import os
import re
import tarfile
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import IO, Self

from belljar.backends.hostile_files import MAX_DEPTH, MAX_ENTRIES, MAX_NAMES, Range, parts
from belljar.errors import UsageError
from belljar.sandbox.files.snapshots import HOLES, LATEST, MOST_PIECES, Snapshot, opened, path_of, read_head, source

_PIECE = 1 << 20
_BLOCK = 512
_KINDS = {tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "link"}
_LONGEST_NAME = 65536
_NUMBER, _RANGE = (re.compile(form).fullmatch for form in ("[0-9]{1,18}", "[0-9]{1,18}-[0-9]{1,18}"))


@dataclass(frozen=True, slots=True)
class SnapshotFile:
    """One file of a snapshot."""

    path: str
    kind: str
    """`file`, `directory` or `link`."""
    size: int
    mode: int
    changed: float
    target: str = ""
    """Where a link leads."""
    data: tuple[Range, ...] = ()
    """Where the file has data: all between is holes."""
    offsets: tuple[int, ...] = ()
    """Where each of that is stored."""


class SnapshotFiles:
    """A snapshot, open for reading. Close it, or use it as a context.

    Raises:
        UsageError: it is no snapshot, or not as belljar writes them.
    """

    def __init__(self, name: str, *, start: int = 0, size: int | None = None) -> None:
        """By name, or by the path of a file; in that file from `start` on, if there is more in it."""
        self.path = name if os.sep in name else path_of(name)
        self._file: IO[bytes] = source(self.path)
        try:
            self._file.seek(start)
            head = read_head(self._file, self.path)
            self.base: str | None = head["base"]
            self.deleted = frozenset(head["deleted"])
            end = os.fstat(self._file.fileno()).st_size if size is None else start + size
            self.files: Mapping[str, SnapshotFile] = dict(self._members(end))
        except (tarfile.TarError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            self.close()
            raise UsageError(f"{self.path} is not a whole snapshot: {error}") from error
        except UsageError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it."""
        self._file.close()

    def _members(self, end: int) -> Iterator[tuple[str, SnapshotFile]]:
        seen: set[str] = set()
        room = MOST_PIECES + MAX_ENTRIES  # one for each file that has no hole
        names = MAX_NAMES
        with tarfile.open(fileobj=self._file, mode="r:", encoding="utf-8") as archive:
            for member in archive:
                kind = _KINDS.get(member.type)
                plain = kind is not None and member.sparse is None and len(member.name) < _LONGEST_NAME
                path = "/".join(parts(member.name))
                if not plain or kind is None or not path or path in seen or "\0" in path + member.linkname:
                    raise UsageError(f"{self.path} holds what no snapshot of belljar's does: {path!r}")
                if member.size < 0 or member.offset_data + member.size > end:
                    raise UsageError(f"{self.path} is cut off")
                if not abs(member.mtime) < LATEST:  # nor what is no number
                    raise UsageError(f"{self.path} holds a file of no known time: {path!r}")
                if len(seen) == MAX_ENTRIES:
                    raise UsageError(f"{self.path} holds more than {MAX_ENTRIES} files")
                names -= len(path)
                if path.count("/") > MAX_DEPTH or names < 0:
                    raise UsageError(f"{self.path} holds names that are too long, or too deep")
                seen.add(path)
                size, data = self._data(member) if kind == "file" else (0, ())
                room -= len(data)
                if room < 0:
                    raise UsageError(f"{self.path} holds files with too many holes")
                mode, changed = member.mode & 0o777, float(member.mtime)
                sizes = (end - start for start, end in data)
                offsets = tuple(accumulate(sizes, initial=member.offset_data))[:-1]
                yield path, SnapshotFile(path, kind, size, mode, changed, member.linkname, data, offsets)
                archive.members = []  # type: ignore[attr-defined]  # else it keeps them all
            # To tarfile, a header that is cut off or makes no sense is an end like any other.
            if os.pread(self._file.fileno(), _BLOCK, archive.offset) != bytes(_BLOCK):
                raise UsageError(f"{self.path} is cut off")

    def _data(self, member: tarfile.TarInfo) -> tuple[int, tuple[Range, ...]]:
        """The size of a file, and where it has data. Raises UsageError."""
        if (told := member.pax_headers.get(HOLES)) is None:
            return member.size, ((0, member.size),) if member.size else ()
        words = told.split(" ", MOST_PIECES + 1)
        if len(words) > MOST_PIECES + 1 or not all(map(_RANGE, words[1:])) or not _NUMBER(words[0]):
            raise UsageError(f"{self.path} holds a file whose holes make no sense: {member.name!r}")
        size = int(words[0])
        data = tuple((int(start), int(end)) for start, _, end in (word.partition("-") for word in words[1:]))
        places = [0, *(place for piece in data for place in piece), size]
        rises = all(before <= after for before, after in pairwise(places)) and all(start < end for start, end in data)
        if not rises or sum(end - start for start, end in data) != member.size:
            raise UsageError(f"{self.path} holds a file whose holes make no sense: {member.name!r}")
        return size, data

    def read(self, kept: SnapshotFile, most: int, at: int = 0) -> bytes:
        """At most `most` bytes of a file, from `at` on."""
        end = min(kept.size, at + most)
        found = bytearray(max(0, end - at))
        for index in range(max(0, bisect_right(kept.data, (at, kept.size + 1)) - 1), len(kept.data)):
            start, stop = kept.data[index]
            if start >= end:
                break
            low, high = max(start, at), min(stop, end)
            if low < high:
                found[low - at : high - at] = self._stored(kept.offsets[index] + low - start, high - low)
        return bytes(found)

    def _stored(self, offset: int, size: int) -> bytes:
        piece = os.pread(self._file.fileno(), size, offset)
        if len(piece) != size:
            raise UsageError(f"{self.path} is cut off")
        return piece

    def stored(self, kept: SnapshotFile) -> Iterator[tuple[int, bytes]]:
        """The data of a file, each piece with its place. What is between is holes."""
        for (start, end), offset in zip(kept.data, kept.offsets, strict=True):
            for at in range(start, end, _PIECE):
                yield at, self._stored(offset + at - start, min(_PIECE, end - at))

    def pieces(self, kept: SnapshotFile) -> Iterator[bytes]:
        """The whole of a file, with zeros for its holes."""
        position = 0
        for at, piece in self.stored(kept):
            yield from _zeros(at - position)
            yield piece
            position = at + len(piece)
        yield from _zeros(kept.size - position)


def _zeros(size: int) -> Iterator[bytes]:
    for at in range(0, size, _PIECE):
        yield bytes(min(_PIECE, size - at))


def every_snapshot() -> list[Snapshot]:
    """Those in the state directory, the oldest first; what is none is left out."""
    directory = os.path.dirname(path_of("x"))
    try:
        names = [name for name in os.listdir(directory) if name.endswith(".tar")]
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        try:
            found.append(opened(os.path.join(directory, name)))
        except UsageError:
            continue
    return sorted(found, key=lambda one: one.created)


__all__ = ["SnapshotFile", "SnapshotFiles", "every_snapshot"]
