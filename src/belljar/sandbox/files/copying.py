"""Copies single files of a hostile tree into another one: bounded, holes stay holes, with a digest of the content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from dataclasses import dataclass
from typing import Self

from belljar.backends.hostile_files import data_ranges, open_beneath, write_at
from belljar.guest.tree import kind, make_directories

MAX_DIGESTED = 256 << 20
"""Bytes of a file whose digest is made, holes included."""
MOST_DIGESTED = 16 << 30
"""Bytes of all files of a run whose digests are made: holes take no room, and still time."""
MOST_RECORDED = 200
"""Paths that an audit record lists."""
_PIECE = 1 << 20


@dataclass(frozen=True)
class PathState:
    """What one side has at a path."""

    what: str
    """`file`, `directory`, `link` or `other`."""
    mode: int = 0
    size: int = 0
    digest: str = ""
    """SHA-256 of the content; empty if there is none, or the files are large."""
    link: str = ""
    missing: str = ""
    """Why the content was not copied; empty if it was."""
    identity: tuple[int, ...] = ()
    """Inode, ctime and size."""


class Room:
    """Bytes that may still be copied, and bytes whose digest may still be made."""

    def __init__(self, left: int, digested: int = MOST_DIGESTED) -> None:
        self.left = left
        self.digested = digested


class Copier:
    """Copies from one directory to another. Paths in order are quick: the last directory is kept open."""

    def __init__(self, source: int, target: str, room: Room, *, own: bool = False) -> None:
        self._source = source
        self._target = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._room = room
        self._own = own
        self._last: tuple[str, int, int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._forget()
        os.close(self._target)

    def copy(self, path: str, status: os.stat_result | None = None) -> PathState:
        """Copy a file or a link. What can't be copied is told in `missing`."""
        directory, _, name = path.rpartition("/")
        try:
            source, target = self._directories(directory)
            status = os.lstat(name, dir_fd=source)
            what = kind(status)
            side = PathState(what, stat.S_IMODE(status.st_mode), status.st_size, identity=identity(status))
            if what == "link":
                text = os.readlink(name, dir_fd=source)
                os.symlink(text, name, dir_fd=target)
                return PathState(what, link=text, identity=side.identity)
            dense = status.st_blocks * 512 >= status.st_size
            return self._copy_file(source, target, name, side, dense=dense) if what == "file" else side
        except OSError as error:
            what = "file" if status is None else kind(status)
            return PathState(what, missing=error.strerror or str(error))

    def write(self, path: str, content: bytes, mode: int) -> PathState:
        """Write a file that is not in the tree."""
        directory, _, name = path.rpartition("/")
        parent = make_directories(self._target, directory)
        try:
            fresh = _new(parent, name)
            try:
                write_at(fresh, content, 0)
            finally:
                os.close(fresh)
        finally:
            os.close(parent)
        return PathState("file", mode, len(content), hashlib.sha256(content).hexdigest())

    def _copy_file(self, source: int, target: int, name: str, side: PathState, *, dense: bool) -> PathState:
        """Copy a file; `dense` says that it has no holes to look for."""
        opened = open_beneath(source, name, os.O_RDONLY, own=self._own)
        try:
            needed = side.size if dense else sum(end - start for start, end in data_ranges(opened, side.size))
            missing = "" if needed <= self._room.left else "the work of this run is larger than what is kept"
            digests = side.size <= min(MAX_DIGESTED, self._room.digested)
            self._room.digested -= side.size if digests else 0
            digest = hashlib.sha256() if digests else None
            if digests or not missing:
                fresh = -1 if missing else _new(target, name)
                try:
                    _copy(opened, fresh, side.size, digest, dense=dense)
                except OSError:
                    if fresh >= 0:
                        os.unlink(name, dir_fd=target)
                    raise
                finally:
                    if fresh >= 0:
                        os.close(fresh)
                self._room.left -= 0 if missing else needed
        finally:
            os.close(opened)
        told = digest.hexdigest() if digest is not None else ""
        return PathState("file", side.mode, side.size, told, missing=missing, identity=side.identity)

    def _directories(self, directory: str) -> tuple[int, int]:
        if self._last is None or self._last[0] != directory:
            self._forget()
            source = open_beneath(self._source, directory, own=self._own)
            try:
                self._last = (directory, source, make_directories(self._target, directory))
            except BaseException:
                os.close(source)
                raise
        return self._last[1:]

    def _forget(self) -> None:
        if self._last is not None:
            for descriptor in self._last[1:]:
                os.close(descriptor)
            self._last = None


def identity(status: os.stat_result) -> tuple[int, ...]:
    """What tells whether a file is the same one, unchanged."""
    return status.st_ino, status.st_ctime_ns, status.st_size


def digest_of(descriptor: int) -> str:
    """The SHA-256 of a file's content; empty if it is large."""
    size = os.fstat(descriptor).st_size
    if size > MAX_DIGESTED:
        return ""
    digest = hashlib.sha256()
    _copy(descriptor, -1, size, digest)
    return digest.hexdigest()


def digest_beneath(root: int, path: str) -> str:
    """The SHA-256 of a plain file beneath the jar's directory `root`; empty for anything else."""
    try:
        descriptor = open_beneath(root, path, os.O_RDONLY, own=True)
    except OSError:
        return ""
    try:
        return digest_of(descriptor) if stat.S_ISREG(os.fstat(descriptor).st_mode) else ""
    finally:
        os.close(descriptor)


def _new(directory: int, name: str) -> int:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(name, flags, 0o600, dir_fd=directory)


def _copy(source: int, target: int, size: int, digest: hashlib._Hash | None, *, dense: bool = False) -> None:
    """Copy the data of a file, unless `target` is negative. Add all of its content to the digest, if there is one."""
    done = position = 0
    for start, end in [(0, size)] if dense else data_ranges(source, size):
        if digest is not None:
            _add_zeros(digest, start - done)
        position = start
        while position < end and (piece := os.pread(source, min(_PIECE, end - position), position)):
            if digest is not None:
                digest.update(piece)
            if target >= 0:
                write_at(target, piece, position)
            position += len(piece)
        done = end
    if digest is not None:
        _add_zeros(digest, size - done)
    if target >= 0 and position != size:
        os.ftruncate(target, size)


def _add_zeros(digest: hashlib._Hash, count: int) -> None:
    while count > 0:
        digest.update(bytes(min(count, _PIECE)))
        count -= _PIECE


def read_file(root: int, path: str, most: int) -> bytes | None:
    """The content of a plain file beneath a directory; None if there is none, or it is larger than `most`."""
    try:
        descriptor = open_beneath(root, path, os.O_RDONLY)
    except OSError:
        return None
    with contextlib.closing(os.fdopen(descriptor, "rb")) as file:
        status = os.fstat(descriptor)
        return file.read(most) if stat.S_ISREG(status.st_mode) and status.st_size <= most else None


__all__ = [
    "MAX_DIGESTED",
    "MOST_RECORDED",
    "Copier",
    "PathState",
    "Room",
    "digest_beneath",
    "digest_of",
    "identity",
    "read_file",
]
