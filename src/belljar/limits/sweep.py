"""Groups that a launcher left behind when it was killed: found by their names, removed if they are empty.

Runs in a new launcher, with its privilege. It looks only beneath the groups in which this launcher makes its own.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from belljar.errors import SandboxUnavailableError
from belljar.limits import groupfs
from belljar.limits.detect import CgroupSupport
from belljar.limits.naming import is_stale


class Swept(NamedTuple):
    """What a sweep did; `busy` are groups of dead launchers that still hold processes."""

    removed: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


def sweep_stale(support: CgroupSupport) -> Swept:
    """Remove the empty groups of launchers that are dead. Nothing is killed, nothing of the living is touched."""
    removed: list[str] = []
    busy: list[str] = []
    for directory in dict.fromkeys(support.directories.values()):
        parent = groupfs.open_directory(directory)
        try:
            for name in filter(is_stale, groupfs.children(parent)):
                (removed if _remove_if_empty(parent, name) else busy).append(f"{directory}/{name}")
        finally:
            os.close(parent)
    return Swept(tuple(removed), tuple(busy))


def _remove_if_empty(parent: int, name: str) -> bool:
    try:
        directory = groupfs.open_directory(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    try:
        if groupfs.pids_below(directory):
            return False
    finally:
        os.close(directory)
    try:
        groupfs.remove_tree(parent, name, deadline=time.monotonic())
    except SandboxUnavailableError:
        return False
    return True
