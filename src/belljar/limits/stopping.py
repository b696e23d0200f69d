"""Standing still where no freezer can be had: SIGSTOP for every process of a run, and a look at whether it took effect.

Runs in the stage. Weaker than a freezer in one way: code that is let go on afterwards can tell.
"""

from __future__ import annotations

import os

from belljar._startup import signals as signal
from belljar.limits.killing import Members, pin, send

_STILL = (b"T", b"t", b"Z", b"X")
"""Stopped, stopped by a tracer, or dead."""


def stop(members: Members) -> bool:
    """Stop every member; whether all stand still by now. Ask again until so: a fork may have been under way."""
    found = members()
    _send(signal.SIGSTOP, found, members)
    # In this order: of those that stand still, no child is born after the second look.
    return all(_stands_still(pid) for pid in found) and members() <= found


def go_on(members: Members) -> None:
    """Let them go on."""
    _send(signal.SIGCONT, members(), members)


def tree(pid: int) -> set[int]:
    """A process and all below it: of a jar's pid 1, that is the jar."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            children.setdefault(_parent(name), []).append(int(name))
    found: set[int] = set()
    new = [pid]
    while new:
        one = new.pop()
        found.add(one)
        new += [child for child in children.get(one, ()) if child not in found]
    return found


def _send(number: int, found: set[int], members: Members) -> None:
    pinned = pin(found)
    try:
        send(number, pinned, still_inside=members())
    finally:
        for descriptor in pinned.values():
            os.close(descriptor)


def _parent(pid: str) -> int:
    try:
        return int(_fields(f"/proc/{pid}/stat")[1])
    except OSError:  # it has ended
        return 0


def _fields(path: str) -> list[bytes]:
    """What a `stat` file says after the name: state, parent, …"""
    with open(path, "rb") as file:
        return file.read().rpartition(b")")[2].split()


def _threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def _stands_still(pid: int) -> bool:
    """Every thread of it; one that has ended does."""
    for thread in _threads(pid):
        try:
            if _fields(f"/proc/{pid}/task/{thread}/stat")[0] not in _STILL:
                return False
        except OSError:
            continue
    return True
