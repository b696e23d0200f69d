"""Canaries: what the gate found in its finished container, before any code of the user's, against what was planned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Found = Mapping[str, Any]

_ENGINE_WRITABLE = ("/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys/fs/cgroup", "/dev/console")
"""Mounts that an engine makes writable, where an ordinary user can write nothing."""
_DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty"))
"""Devices that everybody may write to: an engine without root can't make them, and mounts the host's."""
_ENGINE_FILES = ("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/run/.containerenv")
"""Files of root's that an engine mounts as writable as the root directory is. The code's user is not root."""
_COVERS = ("/proc/", "/sys/")


def failures(found: Found, expect: Found) -> list[str]:
    """What is wrong with the container, in words; empty when it holds."""
    if expect["privileged"]:
        return []  # asked for in writing, and told in the report
    return [problem for canary in CANARIES for problem in canary(found, expect)]


def _privileges(found: Found, expect: Found) -> Iterator[str]:
    uid = str(expect["uid"])
    if uid == "0" or set(found["uids"]) != {uid}:
        yield f"the code's user is {found['uids']}, not {uid}"
    for kind, value in found["capabilities"].items():
        if value.strip("0"):
            yield f"the code has capabilities: {kind} {value}"
    if not expect["gvisor"] and found["no_new_privileges"] != "1":
        yield "the code may gain privileges by executing a program"
    if expect["seccomp"] and found["seccomp"] != "2":
        yield "there is no seccomp filter"


def _mounts(found: Found, expect: Found) -> Iterator[str]:
    writable, seen = set(expect["writable"]), {}
    for point, options, _kind in found["mounts"]:
        seen[_unescape(point)] = options.split(",")  # the last one is on top
    for point, options in seen.items():
        if point in writable or point in (*_ENGINE_WRITABLE, *_DEVICES) or point.startswith(_COVERS):
            continue
        if not expect["readonly_root"] and point in ("/", *_ENGINE_FILES):
            continue
        if "rw" in options:
            yield f"{point} is writable"
    yield from (f"{path} is not mounted" for path in (*expect["writable"], *expect["readonly"]) if path not in seen)


def _unescape(text: str) -> str:
    first, *rest = text.split("\\")
    return first + "".join(chr(int(part[:3], 8)) + part[3:] for part in rest)


def _network(found: Found, expect: Found) -> Iterator[str]:
    if expect["network"] != "none":
        return
    if set(found["interfaces"]) - {"lo"}:
        yield f"the container has network interfaces: {', '.join(found['interfaces'])}"
    if found["routes"]:
        yield "the container has a route to a network"


def _processes(found: Found, expect: Found) -> Iterator[str]:
    if not expect["host_processes"] and found["processes"] != [1]:
        yield f"the container shows other processes: {found['processes'][:10]}"


def _denied_files(found: Found, _expect: Found) -> Iterator[str]:
    yield from (f"{path} can be opened" for path in found["opened"])


def _volume(found: Found, expect: Found) -> Iterator[str]:
    """The volume is the tmpfs that was asked for: if its holder died, the same path would be a disk without a limit."""
    if found["volume_bytes"] != expect["volume_bytes"]:
        yield f"the volume has {found['volume_bytes']} bytes, not {expect['volume_bytes']}"
    if found["volume_files"] != expect["volume_files"]:
        yield f"the volume has room for {found['volume_files']} files, not {expect['volume_files']}"
    if found["shared_bytes"] != expect["shared_bytes"]:
        yield f"/dev/shm has {found['shared_bytes']} bytes, not {expect['shared_bytes']}"


CANARIES: tuple[Callable[[Found, Found], Iterator[str]], ...] = (
    _privileges,
    _mounts,
    _network,
    _processes,
    _denied_files,
    _volume,
)
