"""Removing what a guest made: any depth, any mode, any number of links, without recursion and without following."""

from __future__ import annotations

import os
import stat


def remove_tree(parent: int, name: str) -> None:
    """Remove the directory `name` in the directory `parent` and all that is in it.

    Directories are moved up beside it as they are met, so that a tree 3,000 deep needs no more than two descriptors.
    The parent must be a directory that only belljar writes.
    """
    waiting, count = [name], 0
    while waiting:
        current = waiting.pop()
        descriptor = _enter(parent, current)
        try:
            for entry in os.listdir(descriptor):
                if not stat.S_ISDIR(os.lstat(entry, dir_fd=descriptor).st_mode):
                    os.unlink(entry, dir_fd=descriptor)
                    continue
                os.close(_enter(descriptor, entry))  # a directory that is closed can't be moved
                count += 1
                moved = f"{name}.{count}"
                os.rename(entry, moved, src_dir_fd=descriptor, dst_dir_fd=parent)
                waiting.append(moved)
        finally:
            os.close(descriptor)
        os.rmdir(current, dir_fd=parent)


def remove_in_place(parent: int, name: str) -> None:
    """The same where directories can't be moved (overlayfs): down by name, up by `..`, two descriptors at any depth.

    A guest that still runs may move what we stand in: going up is checked by inode, and a surprise ends it.
    """
    path = [(_identity(parent), name)]
    current = _enter(parent, name)
    waiting = [_clear(current)]
    while path:
        if waiting[-1]:
            child = waiting[-1].pop()
            path.append((_identity(current), child))
            current = _step(current, child)
            waiting.append(_clear(current))
            continue
        waiting.pop()
        above, name = path.pop()
        current = _step(current, "..") if path else _replace(current, os.dup(parent))
        if _identity(current) != above:
            os.close(current)
            raise OSError(16, "the directory was moved while it was being removed")
        os.rmdir(name, dir_fd=current)
    os.close(current)


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def _enter(directory: int, name: str) -> int:
    """Open a directory, whatever its mode. By handle: a link that takes its place is neither opened nor changed."""
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(handle)


def _step(directory: int, name: str) -> int:
    following = (
        os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory) if name == ".." else _enter(directory, name)
    )
    return _replace(directory, following)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


def _clear(directory: int) -> list[str]:
    """Remove what is no directory; the names of those that are."""
    directories = []
    for entry in os.listdir(directory):
        if stat.S_ISDIR(os.lstat(entry, dir_fd=directory).st_mode):
            directories.append(entry)
        else:
            os.unlink(entry, dir_fd=directory)
    return directories
