"""The end of every process of a group, verified: for cgroup v1, and for v2 kernels older than `cgroup.kill` (5.14).

Runs in the stage (its own runs) and in the launcher (all of a jar). As root a signal to a recycled pid would hit a
stranger, so each process is pinned with a pidfd and looked for in the group again before it is signalled.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

from belljar._startup import signals as signal
from belljar.errors import SandboxUnavailableError

Members = Callable[[], set[int]]
"""Reads the pids that are in the group now; 0 stands for a process that this pid namespace can't name."""


def kill_until_empty(members: Members, *, deadline: float) -> bool:
    """SIGKILL every member until none is left; False when some are still there at `deadline` (of `time.monotonic`).

    The caller has stopped new forks where it can (`pids.max` 0); where not, each round catches what the last missed.
    """
    pause = 0.0002
    while found := members():
        if time.monotonic() >= deadline:
            return False
        pinned = pin(found)
        try:
            send(signal.SIGKILL, pinned, still_inside=members())
            _wait_for_one(pinned, seconds=pause)
        finally:
            for descriptor in pinned.values():
                os.close(descriptor)
        pause = min(pause * 2, 0.02)
    return True


def kill_once(members: Members) -> None:
    """SIGKILL every member, without waiting for any of them to end.

    A process that was killed runs no more of its program, so it leaves the processor to the others, which need some to
    die with. What was born meanwhile is found when this is called again.
    """
    pinned = pin(members())
    try:
        send(signal.SIGKILL, pinned, still_inside=members())
    finally:
        for descriptor in pinned.values():
            os.close(descriptor)


def survivors(name: str, pids: set[int]) -> SandboxUnavailableError:
    """The error for a group that could not be emptied: it names who is left."""
    listed = ", ".join(str(pid) for pid in sorted(pids))
    hint = f"ps -o pid,stat,wchan,cmd -p {listed.replace(' ', '')}"
    return SandboxUnavailableError(f"processes of {name} outlived SIGKILL: {listed}", hint=hint)


def pin(pids: set[int]) -> dict[int, int]:
    """A pidfd for each pid that still is a process."""
    pinned = {}
    for pid in pids - {0}:
        try:
            pinned[pid] = os.pidfd_open(pid)
        except OSError:  # it ended between the reading and now; or descriptors ran out, and the next round takes it
            continue
    return pinned


def send(number: int, pinned: dict[int, int], *, still_inside: set[int]) -> None:
    """Signal what is pinned and was in the group after it was pinned: that is the same process, not a successor."""
    for pid, descriptor in pinned.items():
        if pid in still_inside:
            try:
                signal.pidfd_send_signal(descriptor, number)
            except (ProcessLookupError, PermissionError):  # ended; or not ours, and the deadline will tell
                continue


def _wait_for_one(pinned: dict[int, int], *, seconds: float) -> None:
    """Wait until a pinned process has ended, or for `seconds`: enough to not spin, the caller looks again anyway."""
    if not pinned:
        time.sleep(seconds)
        return
    poller = select.poll()
    for descriptor in pinned.values():
        poller.register(descriptor, select.POLLIN)
    poller.poll(max(1, int(seconds * 1000)))
