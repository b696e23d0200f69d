"""Writes single files of a jar into a directory of the host's: beneath it, through no link, each file at once or not at
all. A file that is there already is replaced, never written to: another name of it keeps what it had.

`kept/journal.py` writes many of them, all or none.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable

from belljar.backends.hostile_files import open_beneath


def parent_of(root: int, path: str, *, make: bool = False) -> tuple[int, str]:
    """The directory that a path is in, opened beneath `root` through no link, and its name there."""
    directory, _, name = path.rpartition("/")
    if make and directory:
        make_directories(root, directory)
    return open_beneath(root, directory), name


def status_beneath(root: int, path: str) -> os.stat_result | None:
    """The status of a path beneath a directory, through no link; None if it is not there."""
    try:
        parent, name = parent_of(root, path)
    except OSError:
        return None
    try:
        return os.lstat(name, dir_fd=parent)
    except OSError:
        return None
    finally:
        os.close(parent)


def link_beneath(root: int, path: str) -> str | None:
    """The target of a link beneath a directory, reached through no other link; None if there is no link."""
    try:
        parent, name = parent_of(root, path)
    except OSError:
        return None
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError:
        return None
    finally:
        os.close(parent)


def make_directories(root: int, path: str) -> None:
    """Make a directory and those above it."""
    names = path.split("/")
    for depth in range(1, len(names) + 1):
        parent, name = parent_of(root, "/".join(names[:depth]))
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
            give_to_owner(parent, name)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=parent).st_mode):
                raise
        finally:
            os.close(parent)


def give_to_owner(parent: int, name: str) -> None:
    """Started by root, what is new belongs to whoever owns the directory it is in."""
    if os.geteuid() == 0:
        owner = os.fstat(parent)
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=parent, follow_symlinks=False)


def write_link(directory: int, name: str, text: str) -> None:
    """Make a link of this text. Raises FileExistsError if something is there."""
    os.symlink(text, name, dir_fd=directory)
    give_to_owner(directory, name)


def write_file(
    target: int, path: str, fill: Callable[[int], None], *, mode: int | None = None, replace: bool = True
) -> os.stat_result:
    """Write a file beneath `target`: as an unnamed file first, so that a reader sees the old one or the new one.

    Args:
        target: the host's directory.
        path: where, beneath it. Directories that are missing are made.
        fill: writes the content to the descriptor that it gets.
        mode: the permissions; those of any new file unless given.
        replace: whether the file may take the place of one that is there.

    Raises:
        FileExistsError: there is a file, and `replace` is false.
        OSError: it can't be written. Then nothing is left of it.
    """
    directory, name = parent_of(target, path, make=True)
    fresh, temporary = -1, ""
    try:
        fresh, temporary = _new_file(directory, 0o644 if mode is None else 0o600)
        fill(fresh)
        if mode is not None:
            os.fchmod(fresh, mode)
        temporary = _name_it(fresh, directory, name, temporary, replace=replace)
        return os.fstat(fresh)
    finally:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
        if fresh >= 0:
            os.close(fresh)
        os.close(directory)


def _new_file(directory: int, mode: int) -> tuple[int, str]:
    """A file without a name; on a file system that has none, one with a name that nobody knows, and that name."""
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, mode, dir_fd=directory), ""
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    temporary = _unknown_name()
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(temporary, flags, mode, dir_fd=directory), temporary


def _name_it(fresh: int, directory: int, name: str, temporary: str, *, replace: bool) -> str:
    """Give a new file its name. Return the temporary name that is left, which is none unless something failed."""
    if os.geteuid() == 0:
        owner = os.fstat(directory)
        os.fchown(fresh, owner.st_uid, owner.st_gid)
    if not temporary:
        unnamed = f"/proc/self/fd/{fresh}"
        try:
            os.link(unnamed, name, dst_dir_fd=directory, follow_symlinks=True)
            return ""
        except FileExistsError:
            if not replace:
                raise
        temporary = _unknown_name()
        os.link(unnamed, temporary, dst_dir_fd=directory, follow_symlinks=True)
    try:
        if not replace:  # made by us alone, so that the rename takes the place of nothing else
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(name, flags, 0o600, dir_fd=directory))
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(temporary, dir_fd=directory)
        raise
    return ""


def _unknown_name() -> str:
    return f".belljar-{os.urandom(6).hex()}"
