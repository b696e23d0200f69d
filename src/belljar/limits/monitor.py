"""What a run uses, where no group counts it: summed from the jar's own /proc, as the stage sees it from outside.

`proc_fd` is the /proc of the run's pid namespace, so everything in it is the run's and nothing else. The numbers are
the kernel's, the processes are hostile: they come and go, fork while we read, and there may be many. Memory that no
process has mapped (a memfd, a file on tmpfs) is not seen: that is why this limit is reported as `degraded`.
"""

from __future__ import annotations

import os
import time

from belljar._startup.records import NamedTuple

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_TICKS = os.sysconf("SC_CLK_TCK")
_NEAR = 0.8
"""Above this part of the limit, the cheap upper bound is replaced by the exact and dearer sum."""


class Sample(NamedTuple):
    """One look at a run."""

    anon_bytes: int
    """Memory that would be freed if the run ended now: its anonymous and shared memory, no cached files."""
    processes: int
    cpu_seconds: float
    """Of the living, and of the dead whom a living one has waited for."""
    exact: bool = False
    """Whether memory shared by several processes was counted once."""
    complete: bool = True
    """Whether every process was looked at before the time was up."""


def sample(
    proc_fd: int, *, limit_bytes: int = 0, budget_seconds: float = 0.02, pids: list[str] | None = None
) -> Sample:
    """Look at every process of the run, for `budget_seconds` at most (twice that when memory nears `limit_bytes`).

    `pids` are its processes where `proc_fd` shows others, too.
    """
    pids = [name for name in os.listdir(proc_fd) if name.isdigit()] if pids is None else pids
    deadline = time.monotonic() + budget_seconds
    private = resident = processes = 0
    cpu_seconds = 0.0
    complete = True
    for pid in pids:
        if time.monotonic() > deadline:
            complete = False
            break
        found = _statm(proc_fd, pid)
        ticks = _cpu_ticks(proc_fd, pid)
        if found is None or ticks is None:  # it ended while we looked
            continue
        processes += 1
        resident += found[0]
        private += found[0] - found[1]
        cpu_seconds += ticks / _TICKS
    if not limit_bytes or resident < limit_bytes * _NEAR:
        return Sample(private, processes, cpu_seconds, complete=complete)
    total = _proportional(proc_fd, pids, deadline=time.monotonic() + budget_seconds)
    if total is None:
        return Sample(private, processes, cpu_seconds, complete=complete)
    return Sample(total, processes, cpu_seconds, exact=True, complete=complete)


def _proportional(proc_fd: int, pids: list[str], *, deadline: float) -> int | None:
    """The exact sum, where each process has its part of what it shares; None when it can't be had in time."""
    total = 0
    for pid in pids:
        if time.monotonic() > deadline:
            return None
        try:
            text = _read(proc_fd, f"{pid}/smaps_rollup")
        except PermissionError:
            return None
        except OSError:
            continue
        total += rollup_bytes(text)
    return total


def rollup_bytes(smaps_rollup: bytes) -> int:
    """A process's part of anonymous and shared memory, out of its smaps_rollup; a kernel before 5.4 tells only Pss."""
    values = {}
    for line in smaps_rollup.splitlines()[1:]:
        words = line.split()
        if len(words) == 3 and words[1].isdigit():
            values[words[0]] = int(words[1]) * 1024
    if b"Pss_Anon:" not in values:
        return values.get(b"Pss:", 0)
    return values[b"Pss_Anon:"] + values.get(b"Pss_Shmem:", 0)


def _statm(proc_fd: int, pid: str) -> tuple[int, int] | None:
    """(resident, of which shared) in bytes."""
    try:
        words = _read(proc_fd, f"{pid}/statm").split()
        return int(words[1]) * _PAGE_BYTES, int(words[2]) * _PAGE_BYTES
    except (OSError, IndexError):
        return None


def _cpu_ticks(proc_fd: int, pid: str) -> int | None:
    """User and system time, with that of children it waited for. The name in parentheses is the guest's own choice."""
    try:
        words = _read(proc_fd, f"{pid}/stat").rpartition(b")")[2].split()
        return sum(int(word) for word in words[11:15])
    except (OSError, IndexError):
        return None


def _read(proc_fd: int, name: str) -> bytes:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc_fd)
    try:
        return os.read(descriptor, 1 << 16)
    finally:
        os.close(descriptor)
