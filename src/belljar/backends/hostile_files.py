"""Reading a tree that a guest made, from outside: beneath a descriptor, through no link, bounded."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from belljar.backends.contract import ChangedTree, Entry
from belljar.guest import tree
from belljar.guest.tree import open_beneath, parts

__all__ = [
    "MAX_DEPTH",
    "MAX_ENTRIES",
    "MAX_NAMES",
    "OpenedFiles",
    "Range",
    "bounds",
    "copy_content",
    "data_ranges",
    "either_data",
    "leaves",
    "open_beneath",
    "parts",
    "walk",
    "write_at",
]

MAX_ENTRIES = 100_000
MAX_DEPTH = 200
"""How many directories deep the host looks into what a guest made."""
MAX_NAMES = 16 << 20
"""Characters of all paths together."""


def bounds() -> tree.Bounds:
    """Return what the host looks at in one walk."""
    return tree.Bounds(depth=MAX_DEPTH, most=MAX_ENTRIES, names=MAX_NAMES)


class OpenedFiles:
    """A jar's files where the host can open them itself: the rest of the contract, by way of `open` and `changes`."""

    def open(self, mount: int, path: str, flags: int) -> int:
        """A descriptor for a regular file or directory beneath the mount, through no link."""
        raise NotImplementedError

    def mkdir(self, mount: int, path: str) -> None:
        """Make a directory and those above it."""
        raise NotImplementedError

    def layer(self, mount: int) -> tuple[int, bool]:
        """What runs changed in a mount: (descriptor, whether it is an upper layer and not the whole)."""
        raise NotImplementedError

    def read(self, mount: int, path: str, limit: int) -> bytes:
        """At most `limit` bytes of a file."""
        descriptor = self.open(mount, path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise IsADirectoryError(errno.EISDIR, "is a directory", path)
            content = bytearray()
            while len(content) < limit and (chunk := file.read(min(1 << 20, limit - len(content)))):
                content += chunk
        return bytes(content)

    def write(self, mount: int, path: str, content: bytes) -> int:
        """Write a file and make the directories above it; its time of change."""
        if "/" in path:
            self.mkdir(mount, path.rpartition("/")[0])
        descriptor = self.open(mount, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            return os.fstat(descriptor).st_ctime_ns

    def list(self, mount: int, path: str, *, recursive: bool) -> Iterator[Entry]:
        """The entries beneath a directory."""
        descriptor = self.open(mount, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield from walk(descriptor, recursive=recursive)
        finally:
            os.close(descriptor)

    def changed(self, mount: int) -> Iterator[Entry]:
        """What the jar itself holds of a mount."""
        descriptor, _layered = self.layer(mount)
        try:
            yield from walk(descriptor, own=True)
        finally:
            os.close(descriptor)

    def changes(self, mount: int, only: Sequence[str] | None = None) -> ChangedTree:  # noqa: ARG002 - nothing is copied
        """A descriptor on what runs changed."""
        descriptor, layered = self.layer(mount)
        return ChangedTree(descriptor, layered)


def walk(
    root: int, *, recursive: bool = True, own: bool = False, whole: bool = False, within: tree.Bounds | None = None
) -> Iterator[Entry]:
    """Every entry beneath the directory `root`, following no link, bounded in number, in depth and in names.

    `own` says that the tree is the jar's and not the host's: then directories that the code closed are opened.
    `whole` raises OSError (E2BIG) where names are too long for the rest, which is left out otherwise.
    `within` are the bounds, for a caller who asks afterwards whether they were reached.
    """
    within = within or bounds()
    for path, _directory, _name, status in tree.walk(root, within, recursive=recursive, own=own):
        yield Entry(path, tree.kind(status), status.st_size, stat.S_IMODE(status.st_mode), status.st_ctime_ns)
    if whole and within.cut == "names":
        raise OSError(errno.E2BIG, f"its paths have more than {MAX_NAMES} characters together")


Range = tuple[int, int]
"""From a byte of a file up to another, which is no part of it."""


def data_ranges(descriptor: int, size: int) -> Iterator[Range]:
    """Where a file has data, from start to end: all between is holes, and takes no time to skip."""
    position = 0
    while position < size:
        try:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            position = min(size, os.lseek(descriptor, start, os.SEEK_HOLE))
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # nothing but a hole up to the end
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                raise
            start, position = position, size  # a file system that does not tell
        if start >= size:
            return
        yield start, position


def either_data(first: Iterable[Range], second: Iterable[Range]) -> Iterator[Range]:
    """Where at least one of two files has data."""
    import heapq

    done = 0
    for start, end in heapq.merge(first, second):
        if end > done:
            yield max(start, done), end
            done = end


def write_at(descriptor: int, data: bytes, position: int) -> None:
    """Write all of it there."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest, position = rest[written:], position + written


def copy_content(source: int, target: int) -> None:
    """Copy a file's data and keep its holes: what was small in the jar is small on the host."""
    size = os.fstat(source).st_size
    for start, end in data_ranges(source, size):
        position = start
        while position < end and (chunk := os.pread(source, min(1 << 20, end - position), position)):
            write_at(target, chunk, position)
            position += len(chunk)
    os.ftruncate(target, size)


def leaves(path: str, target: str) -> bool:
    """Whether a link at `path` with this target may lead out of the workspace.

    Its text alone can tell only while every `..` stands at its beginning: after a name, `..` is relative to wherever
    that name leads, and the name may be a link.
    """
    if target.startswith("/"):
        return True
    names = [name for name in target.split("/") if name not in ("", ".")]
    upward = 0
    while upward < len(names) and names[upward] == "..":
        upward += 1
    return ".." in names[upward:] or upward > path.count("/")
