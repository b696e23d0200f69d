"""Files of a workspace, from outside: beneath it, through no link, bounded. What is in them is the guest's."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from belljar.backends.contract import Jar
from belljar.errors import UsageError
from belljar.policy.models import Policy
from belljar.policy.records import dataclass

MAX_READ_BYTES = 256 << 20
MAX_ENTRIES = 100_000
MAX_DEPTH = 200
"""How many directories deep the host looks into what a guest made."""

_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the workspace. `kind` is `file`, `directory`, `link` or `other`."""

    path: str
    kind: str
    size: int
    mode: int = 0
    changed_ns: int = 0


class Files:
    """Reads and writes files of a Sandbox's workspace. Paths are relative to it, or absolute inside the jar."""

    def __init__(self, jar: Jar, policy: Policy, written: dict[tuple[int, str], int]) -> None:
        self._jar = jar
        self._policy = policy
        self._written = written

    def read(self, path: str, *, limit: int = MAX_READ_BYTES) -> bytes:
        """The content of a file. Raises UsageError if it is larger than `limit`, OSError as `open` would."""
        descriptor = self._open(path, os.O_RDONLY)
        with os.fdopen(descriptor, "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise IsADirectoryError(21, "is a directory", path)
            content = bytearray()
            while chunk := file.read(min(1 << 20, limit + 1 - len(content))):
                content += chunk
                if len(content) > limit:
                    raise UsageError(f"{path} is larger than {limit} bytes", hint="pass a higher `limit`")
        return bytes(content)

    def write(self, path: str, content: bytes | str) -> None:
        """Write a file, and make the directories above it."""
        mount, relative = self._locate(path)
        if "/" in relative:
            self._jar.mkdir(mount, relative.rpartition("/")[0])
        data = content.encode() if isinstance(content, str) else content
        descriptor = self._jar.open(mount, relative, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            self._written[mount, relative] = os.fstat(descriptor).st_ctime_ns

    def list(self, path: str = ".", *, recursive: bool = False) -> list[Entry]:
        """The entries of a directory, sorted by path; at most 100,000."""
        descriptor = self._open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            return sorted(walk(descriptor, recursive=recursive), key=lambda entry: entry.path)
        finally:
            os.close(descriptor)

    def remove(self, path: str) -> None:
        """Remove a file, a link itself, or a directory with all that is in it."""
        self._jar.remove(*self._locate(path))

    def _open(self, path: str, flags: int) -> int:
        return self._jar.open(*self._locate(path), flags)

    def _locate(self, path: str) -> tuple[int, str]:
        """Which mount a path is in, and where there."""
        if "\0" in path:
            raise UsageError("a path can't hold a NUL character")
        absolute = os.path.normpath(os.path.join(self._policy.fs.workdir, path))
        best = (-1, "")
        for index, mount in enumerate(self._policy.fs.mounts):
            if (absolute == mount.path or absolute.startswith(f"{mount.path}/")) and len(mount.path) > len(best[1]):
                best = (index, mount.path)
        if best[0] < 0:
            paths = ", ".join(mount.path for mount in self._policy.fs.mounts)
            raise UsageError(f"{path} lies in no mount of the jar", hint=f"the mounts are {paths}")
        return best[0], absolute[len(best[1]) + 1 :] or "."


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
