"""Removing what a guest made where directories can't be moved (overlayfs): any depth, any mode, following no link."""

from __future__ import annotations

import os
import stat

from belljar.guest.tree import enter


def remove_in_place(parent: int, name: str) -> None:
    """Remove the directory `name` in the directory `parent`: down by name, up by `..`, two descriptors at any depth.

    A guest that still runs may move what we stand in: going up is checked by inode, and a surprise ends it.
    """
    path = [(_identity(parent), name)]
    current = enter(parent, name)
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


def _step(directory: int, name: str) -> int:
    following = (
        os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory) if name == ".." else enter(directory, name)
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
