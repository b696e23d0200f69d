"""What is denied in a directory of the host's, found by walking it. Follows no link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from belljar.policy.globs import DenyGlobs


class Denied:
    """What a walk found, as paths relative to where it began."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.sockets: list[str] = []
        """Sockets and named pipes: who opens one talks to a process of the host's."""
        self.directories: list[str] = []
        """Every directory that stays visible, the nearest to the top first."""
        self.names = 0
        """How many names the walk saw."""


def find_denied(root: str, host_root: str, jar_root: str, globs: DenyGlobs, start: str = "") -> Denied:
    """Walk `root` (`host_root` on the host, `jar_root` in the jar) from `start` on, and list what is denied in it."""
    found = Denied()
    queue = [start]
    for relative in queue:  # grows while it is walked: breadth first, with no recursion to exhaust
        found.directories.append(relative)
        try:
            entries = list(os.scandir(os.path.join(root, relative)))
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise
            continue  # what the stage can't list, the guest can't either: they are the same user
        found.names += len(entries)
        for entry in entries:
            below = f"{relative}/{entry.name}" if relative else entry.name
            if globs.may_end_at(entry.name) and globs.denies(f"{host_root}/{below}", f"{jar_root}/{below}") is not None:
                found.paths.append(below)
            elif entry.is_dir(follow_symlinks=False):
                queue.append(below)
            elif not entry.is_file(follow_symlinks=False) and _is_door(entry):
                found.sockets.append(below)
    found.paths.extend(_other_names(root, found))
    return found


def _is_door(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _other_names(root: str, found: Denied) -> Iterator[str]:
    """Hard links: further names of denied files."""
    wanted = set()
    for path in found.paths:
        try:
            status = os.lstat(os.path.join(root, path))
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            wanted.add((status.st_dev, status.st_ino))
    if not wanted:
        return
    denied = set(found.paths)
    for directory in found.directories:
        try:
            entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(f"{root}/{directory}")]
        except OSError:  # closed to us and so to the guest, or gone
            continue
        for name, status in entries:
            below = f"{directory}/{name}" if directory else name
            if below not in denied and (status.st_dev, status.st_ino) in wanted:
                yield below
