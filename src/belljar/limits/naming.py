"""The names of belljar's groups, which say whose they are: so a later launcher can tell the dead's from the living's.

belljar-4026531836-1234-115285-7    pid namespace, launcher's pid, when that process started, its sandbox number
"""

from __future__ import annotations

import os

PREFIX = "belljar"
_NO_NAMESPACE = 0
LEAF = "belljar-launcher"
"""v2: where the launcher itself lives, because a group that has groups with limits may hold no process."""


def group_name(pid: int, number: int | str) -> str:
    """The name of the group `number` that the living process `pid` makes."""
    return f"{PREFIX}-{process_name(pid)}-{number}"


def is_stale(name: str) -> bool:
    """Whether `name` is a group of a launcher of this pid namespace that is dead now.

    One from another pid namespace can't be judged from here, so it is not stale.
    """
    prefix, _, rest = name.partition("-")
    process, _, number = rest.rpartition("-")
    return prefix == PREFIX and bool(number) and is_dead(process)


def process_name(pid: int) -> str:
    """A name that the living process `pid` has alone: its pid namespace, its pid, and when it started."""
    return f"{_pid_namespace()}-{pid}-{_start_time(pid) or 0}"


def is_dead(process: str) -> bool:
    """Whether this is the name of a process of this pid namespace that is dead now."""
    parts = process.split("-")
    if len(parts) != 3 or not all(part.isdigit() for part in parts):
        return False
    namespace, pid, started = map(int, parts)
    return namespace == _pid_namespace() != _NO_NAMESPACE and _start_time(pid) != started


def is_of(name: str, pid: int) -> bool:
    """Whether `name` is a group that a process `pid` made, this one or one that had its number before."""
    return name.split("-")[2:3] == [str(pid)]


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except FileNotFoundError:  # not Linux: there, nobody is told dead from alive
        return _NO_NAMESPACE


def _start_time(pid: int) -> int | None:
    """Clock ticks since boot at which the process started: with the pid, it names a process once and for all."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None
