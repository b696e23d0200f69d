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
        os.chmod(current, 0o700, dir_fd=parent)  # a name that we chose or moved: never a link
        descriptor = os.open(current, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            for entry in os.listdir(descriptor):
                if not stat.S_ISDIR(os.lstat(entry, dir_fd=descriptor).st_mode):
                    os.unlink(entry, dir_fd=descriptor)
                    continue
                os.chmod(entry, 0o700, dir_fd=descriptor)
                count += 1
                moved = f"{name}.{count}"
                os.rename(entry, moved, src_dir_fd=descriptor, dst_dir_fd=parent)
                waiting.append(moved)
        finally:
            os.close(descriptor)
        os.rmdir(current, dir_fd=parent)
