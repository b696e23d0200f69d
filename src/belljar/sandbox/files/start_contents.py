"""Content of the host's files from before a run, as far as git does not have it: of files not committed or staged so.

It is the base to merge with if both the agent and the user change such a file. It is bounded and in memory: some files
that somebody is working on. If there are many, those that were changed last are read.
"""

from __future__ import annotations

import heapq
import os
import stat
import struct
from collections.abc import Iterator, Mapping

from belljar.sandbox.files.git_settings import repository_of

MOST_FILES = 1000
MOST_BYTES = 16 << 20
MOST_FILE_BYTES = 1 << 20
"""As large as a file may be to be merged."""
_LARGEST_INDEX = 64 << 20
_LOW = 0xFFFFFFFF
"""The index has the low 32 bits of inodes and sizes."""
Identity = tuple[int, int, int]
"""Inode, ctime in nanoseconds, and size."""


def read_contents(directory: str, files: Mapping[str, Identity]) -> dict[str, tuple[bytes, int]]:
    """Read the files of a directory that git's index does not have as they are. Return content and mode by path.

    A file that is not any more what `files` says is left out.
    """
    known, written = _known(directory)
    unknown = [
        path
        for path, (inode, changed, size) in files.items()
        if changed >= written or (inode & _LOW, *divmod(changed, 1_000_000_000), size & _LOW) not in known
    ]
    contents: dict[str, tuple[bytes, int]] = {}
    room = MOST_BYTES
    for path in heapq.nlargest(MOST_FILES, unknown, key=lambda path: files[path][1]):
        if files[path][2] <= min(room, MOST_FILE_BYTES) and (read := _read(f"{directory}/{path}", files[path])):
            contents[path] = read
            room -= len(read[0])
    return contents


def _read(path: str, expected: Identity) -> tuple[bytes, int] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = file.read(expected[2] + 1)
        status = os.fstat(descriptor)
    if (status.st_ino, status.st_ctime_ns, status.st_size) != expected or len(content) != expected[2]:
        return None
    return content, stat.S_IMODE(status.st_mode)


def _known(directory: str) -> tuple[set[tuple[int, ...]], int]:
    """Return inode, ctime and size of all files in the index, and when it was written.

    Of a file that is as new as the index, git itself does not believe these.
    """
    repository = repository_of(os.path.realpath(directory))
    if repository is None:
        return set(), 0
    try:
        with open(os.path.join(repository.directory, "index"), "rb") as file:
            index, written = file.read(_LARGEST_INDEX), os.fstat(file.fileno()).st_mtime_ns
        with open(os.path.join(repository.common, "config"), "rb") as file:
            length = 32 if b"sha256" in file.read(1 << 16).lower() else 20
        return set(_identities(index, length)), written
    except (OSError, ValueError, IndexError, struct.error):
        return set(), 0  # then git has none of the files


def _identities(index: bytes, length: int) -> Iterator[tuple[int, ...]]:
    """Yield inode, ctime (seconds, nanoseconds) and size of each entry. `length` is that of an id, in bytes.

    These are versions 2 to 4 of git's format: 40 bytes of numbers, the id, 2 or 4 bytes of flags, and the name.
    """
    if index[:4] != b"DIRC":
        return
    version, count = int.from_bytes(index[4:8]), int.from_bytes(index[8:12])
    fields = struct.Struct(f">LL12xL12xL{length}xH").unpack_from
    at, fixed = 12, 42 + length
    for _ in range(count):
        seconds, nanoseconds, inode, size, flags = fields(index, at)
        name = at + fixed + (2 if flags & 0x4000 else 0)
        if version == 4:  # before the name it says how much of the last one it replaces
            while index[name] & 0x80:
                name += 1
            at = index.index(0, name + 1) + 1
        else:
            long = flags & 0xFFF
            end = index.index(0, name) if long == 0xFFF else name + long  # or it is longer
            at += (end - at + 8) & ~7
        yield inode, seconds, nanoseconds, size


__all__ = ["read_contents"]
