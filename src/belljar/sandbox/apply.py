"""Bringing one change back into the host's directory: beneath it, through no link, each file at once or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from belljar.backends.hostile_files import copy_content, leaves, open_beneath
from belljar.sandbox.git_data import BELIEVED, MOST_BYTES

if TYPE_CHECKING:
    from belljar.sandbox.changes import Change

Spared = Callable[[str, os.stat_result], str]
"""Why a file of the host's must stay, whatever the code did to the directory it is in; empty if it need not."""

Refused = Callable[[str | bytes], str]
"""Why a link of this text, or a file that begins so, must not be written; empty if it may."""


def apply_change(change: Change, changed: int, target: int, spared: Spared, refused: Refused) -> str:
    """Make the host's directory `target` have this change. Why not, if it could not be done."""
    try:
        if change.kind == "deleted":
            return _delete(target, change.path, spared)
        _make_room(target, change, spared)
        if change.what == "directory":
            make_directories(target, change.path)
        elif change.what == "link":
            _copy_link(changed, target, change.path, refused)
        else:
            _copy_file(changed, target, change, refused)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def parent_of(root: int, path: str, *, make: bool = False) -> tuple[int, str]:
    """The directory that a path is in, opened beneath `root` through no link, and its name there."""
    directory, _, name = path.rpartition("/")
    if make and directory:
        make_directories(root, directory)
    return open_beneath(root, directory), name


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


def _make_room(target: int, change: Change, spared: Spared) -> None:
    """A file that became a directory, or the other way round: the old one goes first."""
    parent, name = parent_of(target, change.path, make=True)
    try:
        status = os.lstat(name, dir_fd=parent)
    except FileNotFoundError:
        return
    finally:
        os.close(parent)
    if stat.S_ISDIR(status.st_mode) != (change.what == "directory"):
        why = _delete(target, change.path, spared)
        if why:
            raise OSError(errno.ENOTEMPTY, why)


def _delete(target: int, path: str, spared: Spared) -> str:
    """Delete a file or a tree, sparing what the code could not see and what is newer: it can't have meant those."""
    parent, name = parent_of(target, path)
    try:
        status = os.lstat(name, dir_fd=parent)
        if not stat.S_ISDIR(status.st_mode):
            if not (why := spared(path, status)):
                os.unlink(name, dir_fd=parent)
            return why
    finally:
        os.close(parent)
    if why := spared(path, status):
        return why
    directory = open_beneath(target, path)
    try:
        reasons = [why for entry in os.listdir(directory) if (why := _delete(target, f"{path}/{entry}", spared))]
    finally:
        os.close(directory)
    if reasons:
        return f"something in it stays: {reasons[0]}"
    parent, name = parent_of(target, path)
    try:
        os.rmdir(name, dir_fd=parent)
    finally:
        os.close(parent)
    return ""


def _copy_link(changed: int, target: int, path: str, refused: Refused) -> None:
    source, name = parent_of(changed, path)
    destination, _name = parent_of(target, path)
    try:
        text = os.readlink(name, dir_fd=source)
        if leaves(path, text):  # it was another one when it was judged: code still runs
            raise OSError(errno.EPERM, "it is a link that leads out of the workspace")
        if why := refused(text):
            raise OSError(errno.EPERM, why)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=destination)
        os.symlink(text, name, dir_fd=destination)
        give_to_owner(destination, name)
    finally:
        os.close(source)
        os.close(destination)


def _copy_file(changed: int, target: int, change: Change, refused: Refused) -> None:
    """Write an unnamed file, then give it its name: a reader sees the old one or the new one, never a half."""
    destination, name = parent_of(target, change.path)
    source = open_beneath(changed, change.path, os.O_RDONLY, own=True)
    try:
        fresh = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=destination)
        try:
            copy_content(source, fresh)
            if name in BELIEVED and (why := refused(_content(fresh))):
                raise OSError(errno.EPERM, why)
            os.fchmod(fresh, change.mode & 0o777)
            name_it(fresh, destination, name)
        finally:
            os.close(fresh)
    finally:
        os.close(source)
        os.close(destination)


def _content(descriptor: int) -> bytes:
    """One byte more than what is looked at tells that there is more."""
    with os.fdopen(os.dup(descriptor), "rb") as file:
        file.seek(0)
        return file.read(MOST_BYTES + 1)


def name_it(fresh: int, directory: int, name: str) -> None:
    """Give a file that has no name one, in place of what has it."""
    if os.geteuid() == 0:
        owner = os.fstat(directory)
        os.fchown(fresh, owner.st_uid, owner.st_gid)
    unnamed = f"/proc/self/fd/{fresh}"
    try:
        os.link(unnamed, name, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        temporary = f".belljar-{os.urandom(6).hex()}"
        os.link(unnamed, temporary, dst_dir_fd=directory, follow_symlinks=True)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
