"""Processes that lost their parent and came to us, the nearest reaper: what a killed bubblewrap or stage left behind.

Bubblewrap that is killed right after it cloned leaves a child that has not yet asked to die with it.
"""

from __future__ import annotations

import contextlib
import os
import signal


def end_orphans(known: set[int]) -> None:
    """Kill and reap every child of this process but the known ones. Killing pid 1 of a jar ends all that is in it."""
    for pid in _children() - known:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _children() -> set[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return set(map(int, file.read().split()))
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN: look at every process
        return {int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == os.getpid()}


def _parent(pid: str) -> int:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[1])
    except OSError:
        return 0
