"""Processes that lost their parent and came to us, the nearest reaper: what a killed bubblewrap or stage left behind.

Bubblewrap that is killed right after it cloned leaves a child that has not yet asked to die with it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from belljar._startup import signals as signal

_PARENTS = ("belljar-stage", "bwrap")
"""Whose children live."""


def end_orphans(known: set[int]) -> None:
    """Kill and reap every child of this process but the known ones. Killing pid 1 of a jar ends all that is in it."""
    for pid in _children() - known:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def end_abandoned(command: Sequence[str], *, first_uid: int) -> None:
    """Kill what a killed launcher and stage left of an earlier belljar: bubblewrap with our command, and no parent.

    Only what is this user's; or, for root, of the users from `first_uid` on, which are jars' alone.
    """
    wanted, user = b"".join(os.fsencode(word) + b"\0" for word in command), os.geteuid()
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:  # there are many of them
                if (user == 0 or os.stat(f"/proc/{name}").st_uid == user) and _was_started_by(int(name), wanted):
                    _end_if_abandoned(int(name), wanted, first_uid)
            except OSError:
                continue


def _end_if_abandoned(pid: int, wanted: bytes, first_uid: int) -> None:
    owner = os.stat(f"/proc/{pid}").st_uid
    if owner != os.geteuid() and not (os.geteuid() == 0 and owner >= first_uid):
        return
    handle = os.pidfd_open(pid)  # from here on it can't be another one with the same number
    try:
        same = _was_started_by(pid, wanted)
        parent = _parent(str(pid))
        if same and _name(parent) not in _PARENTS and _parent(str(pid)) == parent:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    finally:
        os.close(handle)


def _was_started_by(pid: int, command: bytes) -> bool:
    """Whether the process has this command. Asked of every process: without a file object it takes a third."""
    descriptor = os.open(f"/proc/{pid}/cmdline", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, len(command) + 1) == command
    finally:
        os.close(descriptor)


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


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
