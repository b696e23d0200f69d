"""A tree that hostile code made, walked and removed: beneath a descriptor, one name at a time, through no link.

Names, links, modes and depths are the code's, which may still be running and change them meanwhile. Used by the volume
server in its container, and by the host where it can open a jar's files itself.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Iterator

READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 20
_KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
_moves = itertools.count(1)

Found = tuple[str, int, str, os.stat_result]
"""An entry: its path, the directory that it is in, its name there, and its status."""


def parts(path: str) -> list[str]:
    """The names of a relative path. Raises OSError for one that climbs."""
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names or path.startswith("/"):
        raise OSError(errno.EINVAL, "not a path beneath the workspace", path)
    return names


def kind(status: os.stat_result) -> str:
    """What an entry is: `file`, `directory`, `link` or `other`."""
    return next((name for test, name in _KINDS if test(status.st_mode)), "other")


# --- opening ---------------------------------------------------------------------------------------------------------


def open_beneath(root: int, path: str, flags: int = os.O_RDONLY | os.O_DIRECTORY, *, own: bool = False) -> int:
    """Open `path` beneath `root`; `own` says that the tree is the jar's: then what the code closed is opened."""
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    names = parts(path)
    current = os.dup(root)
    try:
        for position, name in enumerate(names):
            wanted = flags if position == len(names) - 1 else READ if own else _STEP
            following = open_name(current, name, wanted, own=own)
            os.close(current)
            current = following
        if not names:
            return os.open(".", flags, dir_fd=current)
        result, current = current, -1
        return result
    finally:
        if current >= 0:
            os.close(current)


def open_name(directory: int, name: str, flags: int, *, own: bool) -> int:
    """Open a name in a directory; with `own`, one of mode 000 too."""
    try:
        return os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)
    except PermissionError:
        if not own:
            raise
    # Changed by handle, so that a link which takes its place is not followed.
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            raise PermissionError(errno.EACCES, "a link", name)
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)
    return os.open(name, flags | os.O_CLOEXEC, dir_fd=directory)


def make_directories(root: int, path: str) -> int:
    """The directory `path`, made with those above it as far as they are missing."""
    names = parts(path)
    current = os.dup(root)
    for name in names:
        try:
            try:
                os.mkdir(name, 0o755, dir_fd=current)
            except FileExistsError:
                pass
            following = os.open(name, READ, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def enter(directory: int, name: str) -> int:
    """Open a directory, whatever its mode. By handle: a link that takes its place is neither opened nor changed."""
    handle = os.open(name, _STEP, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


# --- walking ---------------------------------------------------------------------------------------------------------


class Bounds:
    """How much of a tree is walked, and whether that was all of it."""

    def __init__(self, *, depth: int, most: int, names: int) -> None:
        self.depth = depth
        """Directories below each other."""
        self.most = most
        """Entries."""
        self.names = names
        """Characters of all paths together: in the deepest directory each path may have fifty thousand."""
        self.cut = ""
        """What there was too much of, `entries` or `names`; empty if nothing was left out for that."""

    def takes(self, path: str) -> bool:
        """Count an entry. Return False if it is beyond the bounds."""
        self.most -= 1
        self.names -= len(path)
        self.cut = "entries" if self.most < 0 else "names" if self.names < 0 else ""
        return not self.cut


def walk(root: int, bounds: Bounds, *, recursive: bool = True, own: bool = False) -> Iterator[Found]:
    """Everything beneath the directory `root`, within bounds.

    Each directory is opened once, from the one above it, so that a tree made to be slow to walk is not.
    """
    stack: list[tuple[int, str, list[str] | None]] = [(os.open(".", READ, dir_fd=root), "", None)]
    try:
        while stack:
            directory, prefix, waiting = stack[-1]
            if waiting is None:
                waiting = []
                stack[-1] = (directory, prefix, waiting)
                for found in _entries(directory, prefix):
                    if not bounds.takes(found[0]):
                        return
                    yield found
                    if recursive and stat.S_ISDIR(found[3].st_mode) and len(stack) < bounds.depth:
                        waiting.append(found[2])
            elif waiting:
                name = waiting.pop()
                try:
                    stack.append((open_name(directory, name, READ, own=own), f"{prefix}{name}/", None))
                except OSError:
                    continue  # gone, or no directory any more
            else:
                os.close(stack.pop()[0])
    finally:
        for directory, _prefix, _waiting in stack:
            os.close(directory)


def _entries(directory: int, prefix: str) -> Iterator[Found]:
    for name in os.listdir(directory):
        try:
            status = os.lstat(name, dir_fd=directory)
        except FileNotFoundError:  # the code still runs
            continue
        yield f"{prefix}{name}", directory, name, status


# --- removing --------------------------------------------------------------------------------------------------------


def remove_tree(parent: int, name: str) -> list[str]:
    """Remove the directory `name` and all that is in it, at any depth, with two descriptors.

    Directories are moved up beside it as they are met. Nobody but belljar writes in `parent`; but the code may stand in
    what is removed and go on writing there. What can't be emptied for that is told: names in `parent`.
    """
    waiting, stubborn = [name], []
    while waiting:
        current = waiting.pop()
        for _ in range(_TRIES):
            waiting += _emptied(parent, current, name)
            try:
                os.rmdir(current, dir_fd=parent)
                break
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
        else:
            stubborn.append(current)
    return stubborn


def _emptied(parent: int, name: str, prefix: str) -> list[str]:
    """Remove what is in a directory, but move the directories in it up into `parent`: their names there."""
    moved = []
    descriptor = enter(parent, name)
    try:
        for entry in os.listdir(descriptor):
            try:
                if not stat.S_ISDIR(os.lstat(entry, dir_fd=descriptor).st_mode):
                    os.unlink(entry, dir_fd=descriptor)
                    continue
                os.close(enter(descriptor, entry))  # a directory that is closed can't be moved
                above = f"{prefix}.{next(_moves)}"
                os.rename(entry, above, src_dir_fd=descriptor, dst_dir_fd=parent)
                moved.append(above)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                continue  # the code was there first
    finally:
        os.close(descriptor)
    return moved
