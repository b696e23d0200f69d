"""Limits that each process carries itself: beneath the group where there is one, and all there is where there is none.

`rlimits_for` decides (host or launcher, pure); `apply` runs in the forked child, before bwrap, and needs no privilege:
every limit is only ever lowered. Not here: RLIMIT_NPROC, which counts a user's whole session unless it is set inside
the run's own user namespace, so the gate does it; RLIMIT_AS, which breaks node and java; RLIMIT_STACK, which programs
rely on.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable

from belljar.errors import SandboxUnavailableError
from belljar.limits.values import Limits

Rlimit = tuple[int, int, int]
"""(resource, soft, hard) as `resource.setrlimit` takes them."""

_DATA_SLACK_BYTES = 256 << 20
_MEMLOCK_BYTES = 64 * 1024
_PENDING_SIGNALS = 1024
_OOM_SCORE = "500"
_CORE_BYTES = 1
"""See `forbid_cores`. The jar's filter keeps it so."""

_NAMES = {
    getattr(resource, name): name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}


def current_hard(which: int) -> int:
    """The hard limit that this process has now."""
    return resource.getrlimit(which)[1]


def rlimits_for(limits: Limits, *, has_memory_group: bool, hard: Callable[[int], int] = current_hard) -> list[Rlimit]:
    """The rlimits of a run. None exceeds the hard limit that `hard` tells: that one is tighter, and stays.

    Without a memory group the limit is the monitor's business. The rlimit is what stands behind it, far enough out that
    a run which grows too large is ended as out of memory, and does not go on with a failed allocation.
    """
    wanted = {
        resource.RLIMIT_CORE: _CORE_BYTES,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: _MEMLOCK_BYTES,
        resource.RLIMIT_SIGPENDING: _PENDING_SIGNALS,
        resource.RLIMIT_RTPRIO: 0,
        resource.RLIMIT_NICE: 0,
    }
    if limits.open_files:
        wanted[resource.RLIMIT_NOFILE] = limits.open_files
    if limits.file_size_bytes:
        wanted[resource.RLIMIT_FSIZE] = limits.file_size_bytes
    if limits.mem_bytes and not has_memory_group:
        wanted[resource.RLIMIT_DATA] = 4 * limits.mem_bytes + _DATA_SLACK_BYTES
    return [(which, tightest, tightest) for which, value in wanted.items() for tightest in [_clamp(value, hard(which))]]


def forbid_cores() -> None:
    """Keep the kernel from starting a program for a core of this process, or of its children, on their memory.

    The limit is 1: at 0 such a program (`core_pattern` with a pipe) is started all the same, as root. Root can set it
    also where the host has set a hard limit of 0; anyone else has to leave that as it is.
    """
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (_CORE_BYTES, _CORE_BYTES))
    except (OSError, ValueError):
        pass


def apply(rlimits: list[Rlimit]) -> None:
    """Set them on this process: in the forked child, before it execs.

    Raises:
        SandboxUnavailableError: the kernel refused one; the message names it.
    """
    for which, soft, hard in rlimits:
        try:
            resource.setrlimit(which, (soft, hard))
        except (OSError, ValueError) as error:
            raise SandboxUnavailableError(f"can't set {_NAMES.get(which, which)} to {soft}: {error}") from error


def raise_open_files() -> None:
    """Raise this process's limit on open files as far as it may go, so that it can send a descriptor.

    The kernel lets a process send one only while fewer than this limit are in flight, from all processes of its user.
    """
    hard = current_hard(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def volunteer_for_oom() -> None:
    """Make this process and its children the kernel's first choice when memory runs out (stage, before it drops).

    A host that protects itself (`OOMScoreAdjust=-1000`) would pass that on, and nothing in the jar could be killed.
    A process that has changed its uid may not write this file of its own any more, so it comes first; forks inherit it.
    """
    descriptor = os.open("/proc/self/oom_score_adj", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, _OOM_SCORE.encode())
    finally:
        os.close(descriptor)


def _clamp(value: int, hard: int) -> int:
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
