"""Groups that a launcher left behind when it was killed: found by their names, emptied and removed.

Runs in a new launcher, or in the host whose launcher was killed, with the privilege of whoever started belljar. It
looks only beneath the groups in which this host's launchers make their own.
"""

from __future__ import annotations

import os
import time

from belljar._startup.records import NamedTuple
from belljar.errors import SandboxUnavailableError
from belljar.limits import groupfs
from belljar.limits.detect import CgroupSupport
from belljar.limits.killing import kill_until_empty
from belljar.limits.naming import is_of, is_stale

_PAUSE_SECONDS = 0.005
_KILL_SECONDS = 2.0


class Swept(NamedTuple):
    """What a sweep did; `busy` are groups of dead launchers that could not be emptied."""

    removed: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()


def sweep_after(launcher: int, support: CgroupSupport, *, seconds: float) -> Swept:
    """Remove what the launcher with this pid, dead and buried, left; for `seconds` its last processes may still end."""
    return sweep_stale(support, launcher=launcher, seconds=seconds)


def sweep_stale(support: CgroupSupport, *, launcher: int | None = None, seconds: float = 0.5) -> Swept:
    """Remove the groups of launchers that are dead, and end what is left in them. Nothing of the living is touched.

    With `launcher`, only those of the one that had this pid. Processes there are on their way out, mostly: they have
    `seconds` for it. What stays is a child that bubblewrap had just made when it was killed together with its stage and
    launcher; nobody else would ever find it.
    """
    removed: list[str] = []
    busy: list[str] = []
    deadline = time.monotonic() + seconds
    for directory in dict.fromkeys(support.directories.values()):
        parent = groupfs.open_directory(directory)
        try:
            names = (name for name in groupfs.children(parent) if launcher is None or is_of(name, launcher))
            for name in filter(is_stale, names):
                (removed if _remove(parent, name, deadline) else busy).append(f"{directory}/{name}")
        finally:
            os.close(parent)
    return Swept(tuple(removed), tuple(busy))


def _remove(parent: int, name: str, deadline: float) -> bool:
    try:
        directory = groupfs.open_directory(name, dir_fd=parent)
    except FileNotFoundError:
        return True
    try:
        groupfs.thaw_below(directory)
        while groupfs.pids_below(directory) and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
        kill_until_empty(lambda: groupfs.pids_below(directory), deadline=time.monotonic() + _KILL_SECONDS)
    finally:
        os.close(directory)
    try:
        groupfs.remove_tree(parent, name, deadline=time.monotonic())
    except SandboxUnavailableError:
        return False
    return True
