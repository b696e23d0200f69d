"""Files of a workspace, from outside: beneath it, through no link, bounded. What is in them is the guest's."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass

from belljar.backends.contract import Jar
from belljar.errors import UsageError
from belljar.policy.models import Policy

MAX_READ_BYTES = 256 << 20
MAX_ENTRIES = 100_000
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW


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

    def __init__(self, jar: Jar, policy: Policy) -> None:
        self._jar = jar
        self._policy = policy

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
    """Every entry beneath the directory `root`, following no link; breadth first, so that depth can't exhaust us.

    `own` says that the tree is the jar's and not the host's: then directories that the code closed are opened.
    """
    queue, seen = [""], 0
    for directory in queue:
        try:
            descriptor = open_beneath(root, directory, own=own)
        except OSError:
            continue
        try:
            for name in os.listdir(descriptor):
                seen += 1
                if seen > MAX_ENTRIES:
                    return
                status = os.lstat(name, dir_fd=descriptor)
                path = f"{directory}/{name}" if directory else name
                yield _entry(path, status)
                if recursive and stat.S_ISDIR(status.st_mode) and len(path) < 4000:
                    queue.append(path)
        finally:
            os.close(descriptor)


def open_beneath(root: int, path: str, flags: int = os.O_RDONLY | os.O_DIRECTORY, *, own: bool = False) -> int:
    """Open `path` beneath `root` one name at a time, through no link."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    current = os.dup(root)
    names = [name for name in path.split("/") if name]
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
        # Mode 000, left by the code. Not a link: O_NOFOLLOW would have said ELOOP, and a swap in between only fails.
        if not own or stat.S_ISLNK(os.lstat(name, dir_fd=directory).st_mode):
            raise
        os.chmod(name, 0o700, dir_fd=directory)
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)


def _entry(path: str, status: os.stat_result) -> Entry:
    kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
    kind = next((name for test, name in kinds if test(status.st_mode)), "other")
    return Entry(path, kind, status.st_size, stat.S_IMODE(status.st_mode), status.st_ctime_ns)
