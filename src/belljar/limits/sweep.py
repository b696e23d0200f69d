"""Groups that a launcher left behind when it was killed: found by their names, removed if they are empty.

Runs in a new launcher, or in the host whose launcher was killed, with the privilege of whoever started belljar. It
looks only beneath the groups in which this host's launchers make their own.
"""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from belljar.errors import SandboxUnavailableError
from belljar.limits import groupfs
from belljar.limits.detect import CgroupSupport
from belljar.limits.naming import is_of, is_stale

_PAUSE_SECONDS = 0.005


class Swept(NamedTuple):
    """What a sweep did; `busy` are groups of dead launchers that still hold processes."""

    removed: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


def sweep_after(launcher: int, support: CgroupSupport, *, seconds: float) -> Swept:
    """Remove what the launcher with this pid, dead and buried, left; for `seconds` its last processes may still end."""
    deadline = time.monotonic() + seconds
    while True:
        swept = sweep_stale(support, launcher=launcher)
        if not swept.busy or time.monotonic() >= deadline:
            return swept
        time.sleep(_PAUSE_SECONDS)


def sweep_stale(support: CgroupSupport, *, launcher: int | None = None) -> Swept:
    """Remove the empty groups of launchers that are dead. Nothing is killed, nothing of the living is touched.

    With `launcher`, only those of the one that had this pid.
    """
    removed: list[str] = []
    busy: list[str] = []
    for directory in dict.fromkeys(support.directories.values()):
        parent = groupfs.open_directory(directory)
        try:
            names = (name for name in groupfs.children(parent) if launcher is None or is_of(name, launcher))
            for name in filter(is_stale, names):
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
