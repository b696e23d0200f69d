"""What engines leave when they are killed: processes, mounts, control groups. Finds it, ends it, and looks again.

Only what is ours: programs of an engine whose command line names one of our directories, processes in our control
group, mounts beneath our directories. Another engine on this machine is never touched.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from place import KEPT, Place

PROGRAMS = ("dockerd", "docker-proxy", "containerd", "runc", "runsc", "exe", "podman", "conmon")
PATIENCE_SECONDS = 15.0


def clear(place: Place) -> str:
    """Ends and removes everything of the engines at `place`; what would not go, in words."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := _clear_once(place)) and time.monotonic() < deadline:
        time.sleep(0.1)
    if not left:
        shutil.rmtree(place.home, ignore_errors=True)
        if place.home.exists():
            left = str(place.home)
    return left


def _clear_once(place: Place) -> str:
    for pid in list(processes(place)):
        sockets = shim_sockets(pid)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        for path in sockets:
            Path(path).unlink(missing_ok=True)
    mounted = list(mounts(place))
    for path in reversed(mounted):
        subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)
    for group in list(groups(place)):
        _remove_group(group)
    found = {
        "processes": [f"{_name(pid)} ({pid})" for pid in processes(place)],
        "mounts": list(mounts(place)),
        "control groups": [str(group) for group in groups(place)],
    }
    return "; ".join(f"{kind}: {', '.join(what)}" for kind, what in found.items() if what)


def processes(place: Place) -> Iterator[int]:
    """The pids of our engines' processes and of those in their containers."""
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _is_ours(int(name), place):
            yield int(name)


def _is_ours(pid: int, place: Place) -> bool:
    with suppress(OSError):
        if f"/{place.cgroup}/" in Path(f"/proc/{pid}/cgroup").read_text():
            return _state(pid) != "Z"
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        named = f"{place.home}/" in command or f"{KEPT}/" in command
        return named and _name(pid).startswith(PROGRAMS) and _state(pid) != "Z"
    return False


def shim_sockets(pid: int) -> list[str]:
    """The sockets of a containerd-shim, which lie in one directory for all of the machine."""
    inodes = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    with open("/proc/net/unix") as file:
        fields = [line.split() for line in file]
    return [row[7] for row in fields if f"socket:[{row[6]}]" in inodes and row[7:] and "/containerd/s/" in row[7]]


def mounts(place: Place) -> Iterator[str]:
    """What is mounted beneath our directories, in the order in which it was mounted."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            path = line.split(" ")[4].encode().decode("unicode_escape")
            if path.startswith((f"{place.home}/", f"{KEPT}/")):
                yield path


def groups(place: Place) -> Iterator[Path]:
    """Our control group, in every hierarchy that has it."""
    for root in hierarchies():
        if (group := root / place.cgroup).is_dir():
            yield group


def hierarchies() -> Iterator[Path]:
    """The root of every mounted hierarchy of control groups."""
    with open("/proc/self/mountinfo") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            if after.split(" ")[0] in ("cgroup", "cgroup2"):
                yield Path(before.split(" ")[4])


def _remove_group(group: Path) -> None:
    """From the leaves up. A group that still has a process stays, and is seen by who looks again."""
    for directory, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            os.rmdir(directory)


def remove_empty_groups(name: str) -> None:
    """The group `name`, wherever nothing runs in it: for engines whose group can't be named by us."""
    for root in hierarchies():
        if (root / name).is_dir():
            _remove_group(root / name)


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    return ""


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "Z"
