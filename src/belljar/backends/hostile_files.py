"""Reading a tree that a guest made, from outside: beneath a descriptor, through no link, bounded."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence

from belljar.backends.contract import ChangedTree, Entry

MAX_ENTRIES = 100_000
MAX_DEPTH = 200
"""How many directories deep the host looks into what a guest made."""

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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


def walk(root: int, *, recursive: bool = True, own: bool = False) -> Iterator[Entry]:
    """Every entry beneath the directory `root`, following no link, bounded in number and in depth.

    `own` says that the tree is the jar's and not the host's: then directories that the code closed are opened. Each
    directory is opened once, from the one above it, so that a tree made to be slow to walk is not.
    """
    count = 0
    stack = [_Level(os.open(".", _READ, dir_fd=root), "")]
    try:
        while stack:
            level = stack[-1]
            if level.waiting is None:
                level.waiting = []
                for entry in _entries(level.directory, level.prefix):
                    count += 1
                    if count > MAX_ENTRIES:
                        return
                    yield entry
                    if entry.kind == "directory" and recursive and len(stack) < MAX_DEPTH:
                        level.waiting.append(entry.path)
            elif level.waiting:
                path = level.waiting.pop()
                with contextlib.suppress(OSError):  # gone, or no directory any more
                    name = path.rpartition("/")[2]
                    stack.append(_Level(_open_name(level.directory, name, _READ, own=own), f"{path}/"))
            else:
                os.close(stack.pop().directory)
    finally:
        for level in stack:
            os.close(level.directory)


class _Level:
    """A directory that is being walked, and those below it that are still to come."""

    __slots__ = ("directory", "prefix", "waiting")

    def __init__(self, directory: int, prefix: str) -> None:
        self.directory = directory
        self.prefix = prefix
        self.waiting: list[str] | None = None


def _entries(directory: int, prefix: str) -> Iterator[Entry]:
    for name in os.listdir(directory):
        try:
            status = os.lstat(name, dir_fd=directory)
        except FileNotFoundError:  # the code still runs
            continue
        yield _entry(f"{prefix}{name}", status)


def parts(path: str) -> list[str]:
    """The names of a relative path. Raises OSError for one that climbs."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names or path.startswith("/"):
        raise OSError(errno.EINVAL, "not a path beneath the workspace", path)
    return names


def open_beneath(root: int, path: str, flags: int = os.O_RDONLY | os.O_DIRECTORY, *, own: bool = False) -> int:
    """Open `path` beneath `root` one name at a time, through no link."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    names = parts(path)
    current = os.dup(root)
    try:
        for position, name in enumerate(names):
            last = position == len(names) - 1
            following = _open_name(current, name, flags if last else _STEP, own=own)
            os.close(current)
            current = following
        if not names:
            return os.open(".", flags, dir_fd=current)
        result, current = current, -1
        return result
    finally:
        if current >= 0:
            os.close(current)


def _open_name(directory: int, name: str, flags: int, *, own: bool) -> int:
    try:
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)
    except PermissionError:
        if not own:
            raise
    # Mode 000, left by the code. Changed by handle, so that a link which takes its place is not followed.
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise PermissionError(13, "a link", name)
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
    return os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)


def copy_content(source: int, target: int) -> None:
    """Copy a file's data and keep its holes: what was small in the jar is small on the host."""
    size = os.fstat(source).st_size
    position = 0
    while position < size:
        try:
            position = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # nothing but a hole up to the end
        hole = os.lseek(source, position, os.SEEK_HOLE)
        while position < hole and (chunk := os.pread(source, min(1 << 20, hole - position), position)):
            position += os.pwrite(target, chunk, position)
    os.ftruncate(target, size)


def _entry(path: str, status: os.stat_result) -> Entry:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((name for test, name in kinds if test(status.st_mode)), "other")
    return Entry(path, kind, status.st_size, stat.S_IMODE(status.st_mode), status.st_ctime_ns)


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
