"""What a container is, as its own kernel tells: read by the gate before any of the user's code, judged by the host."""

from __future__ import annotations

import os
from typing import Any


def look(absent: list[str], quota: str) -> dict[str, Any]:
    """The facts for the host's canaries. `absent` are paths to try, `quota` a directory whose size tells its volume."""
    status = _status()
    space = os.statvfs(quota) if quota else None
    return {
        "uids": status.get("Uid", "").split(),
        "groups": status.get("Groups", "").split(),
        "capabilities": {kind: status.get(kind, "") for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
        "no_new_privileges": status.get("NoNewPrivs", ""),
        "seccomp": status.get("Seccomp", ""),
        "mounts": _mounts(),
        "interfaces": _interfaces(),
        "routes": _routes(),
        "opened": [path for path in absent if _can_open(path)],
        "processes": sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
        "volume_bytes": space.f_blocks * space.f_frsize if space else 0,
        "volume_files": space.f_files if space else 0,
        "shared_bytes": _size("/dev/shm"),
        "groups_readable": os.path.exists("/sys/fs/cgroup/pids") or os.path.exists("/sys/fs/cgroup/pids.max"),
    }


def _size(path: str) -> int:
    try:
        space = os.statvfs(path)
    except OSError:
        return 0
    return space.f_blocks * space.f_frsize


def _status() -> dict[str, str]:
    with open("/proc/self/status", errors="replace") as file:
        return {key: value.strip() for key, _, value in (line.partition(":") for line in file)}


def _mounts() -> list[tuple[str, str, str]]:
    """(mount point, options, type); the point with its octal escapes."""
    found = []
    with open("/proc/self/mountinfo", errors="surrogateescape") as file:
        for line in file:
            fields, _, rest = line.partition(" - ")
            words = fields.split(" ")
            found.append((words[4], words[5], rest.split(" ")[0]))
    return found


def _interfaces() -> list[str]:
    try:
        with open("/proc/self/net/dev") as file:
            return [line.split(":")[0].strip() for line in file.readlines()[2:]]
    except OSError:
        return []


def _routes() -> int:
    try:
        with open("/proc/self/net/route") as file:
            return max(0, len(file.readlines()) - 1)
    except OSError:
        return 0


def _can_open(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except OSError:
        return False
    return True
