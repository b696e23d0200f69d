"""The files in a snapshot, read on the host without writing any of them. All that is in it was the guest's.

The archive may be anybody's file: what it says about names, kinds and sizes is checked against what belljar writes, and
nothing is believed to be larger than the file itself.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator, Mapping
from typing import IO, Self

from belljar.backends.hostile_files import MAX_ENTRIES, parts
from belljar.errors import UsageError
from belljar.policy.records import dataclass
from belljar.sandbox.snapshots import LATEST, Snapshot, opened, path_of, read_head, source

_PIECE = 1 << 20
_BLOCK = 512
_KINDS = {tarfile.REGTYPE: "file", tarfile.AREGTYPE: "file", tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "link"}
_LONGEST_NAME = 65536


@dataclass(frozen=True, slots=True)
class Kept:
    """One file of a snapshot."""

    path: str
    kind: str
    """`file`, `directory` or `link`."""
    size: int
    mode: int
    changed: float
    target: str = ""
    """Where a link leads."""
    offset: int = 0


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
            self.files: Mapping[str, Kept] = dict(self._members(end))
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

    def _members(self, end: int) -> Iterator[tuple[str, Kept]]:
        seen: set[str] = set()
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
                seen.add(path)
                size = member.size if kind == "file" else 0
                mode, changed = member.mode & 0o777, float(member.mtime)
                yield path, Kept(path, kind, size, mode, changed, member.linkname, member.offset_data)
                archive.members = []  # type: ignore[attr-defined]  # else it keeps them all
            # To tarfile, a header that is cut off or makes no sense is an end like any other.
            if os.pread(self._file.fileno(), _BLOCK, archive.offset) != bytes(_BLOCK):
                raise UsageError(f"{self.path} is cut off")

    def read(self, kept: Kept, most: int) -> bytes:
        """At most `most` bytes of a file."""
        return os.pread(self._file.fileno(), min(kept.size, most), kept.offset)

    def pieces(self, kept: Kept) -> Iterator[bytes]:
        """The whole of a file."""
        position, end = kept.offset, kept.offset + kept.size
        while position < end:
            piece = os.pread(self._file.fileno(), min(_PIECE, end - position), position)
            if not piece:
                raise UsageError(f"{self.path} is cut off")
            position += len(piece)
            yield piece


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


__all__ = ["Kept", "SnapshotFiles", "every_snapshot"]
