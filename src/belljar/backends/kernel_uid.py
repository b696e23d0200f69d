"""Kernel user ids for jars: one for each Sandbox, shared with nobody on the host.

The kernel counts descriptors in flight, inotify instances, queued signals and more for each user id. Jars that share an
id share these counters, and one of them can use them up for all.

The ids lie beyond what any system hands out to people, services or containers. Bubblewrap that root starts takes
0x70000000 + launcher's pid * 512 + slot. Container engines get a random number of the same range: belljars in several
containers may talk to one engine, and have the same pids.
"""

from __future__ import annotations

import os

from belljar.errors import PrerequisiteError, SandboxUnavailableError

FIRST_UID = 0x70000000
_SLOTS = 512
_END_UID = 0x7FFE0000
"""Engines take no user above 2**31 - 1, and systemd hands out the ids from here on."""


def random_uid() -> int:
    """Return a user id for the containers of one Sandbox. Two of them are the same once in 268 million times."""
    return FIRST_UID + int.from_bytes(os.urandom(8), "big") % (_END_UID - FIRST_UID)


def spare_uid(taken: set[int]) -> int:
    """A user id that no one has. Inside a container with few ids, one from the end of its range."""
    base = FIRST_UID + os.getpid() * _SLOTS
    ranges = _mapped()
    if not any(first <= base and base + _SLOTS <= first + count for first, count in ranges):
        base = _end_of_range(ranges)
    for candidate in range(base, base + _SLOTS):
        if candidate not in taken:
            return candidate
    raise SandboxUnavailableError(f"{_SLOTS} sandboxes are open in this process already", hint="close some of them")


def _mapped() -> list[tuple[int, int]]:
    with open("/proc/self/uid_map") as file:
        return [(int(first), int(count)) for first, _outside, count in map(str.split, file)]


def _end_of_range(ranges: list[tuple[int, int]]) -> int:
    first, count = max(ranges, key=lambda entry: entry[1])
    groups = count // 2 // _SLOTS
    if groups < 1:
        raise PrerequisiteError(
            "belljar was started by root in a user namespace with too few user ids to give the jar one of its own",
            hint="start belljar as an ordinary user there, or map at least 1024 ids",
        )
    return first + count - _SLOTS - 2 - os.getpid() % groups * _SLOTS
