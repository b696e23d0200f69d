"""What /proc says about control groups, parsed: which groups a process is in, and where the hierarchies are mounted.

Pure: text in, values out, so that every kind of host can be a fixture.
"""

from __future__ import annotations

import posixpath

from belljar._startup.records import NamedTuple


class Hierarchy(NamedTuple):
    """One mounted hierarchy and where in it the process is."""

    version: int
    controllers: frozenset[str]
    """v1 only; on v2 the group's own `cgroup.controllers` tells."""
    mount_point: str
    directory: str
    """The process's own group as a path, or "" when it lies outside of what is mounted."""
    read_only: bool

    def is_whole(self) -> bool:
        """Whether the process's own group is the top of what is mounted."""
        return self.directory == self.mount_point


def memberships(proc_self_cgroup: str) -> dict[frozenset[str], str]:
    """/proc/PID/cgroup: controllers of a hierarchy to the process's path in it; v2 has no controllers here."""
    found = {}
    for line in proc_self_cgroup.splitlines():
        _, controllers, path = line.split(":", 2)
        found[frozenset(name for name in controllers.split(",") if name)] = path
    return found


def hierarchies(proc_self_cgroup: str, mountinfo: str) -> list[Hierarchy]:
    """Every control group hierarchy that is mounted here, joined with where the process is in it."""
    own = memberships(proc_self_cgroup)
    found = []
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        _, _, _, root, mount_point, options = before.split()[:6]
        kind, _, super_options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        version = 1 if kind == "cgroup" else 2
        controllers = _controllers(super_options, own) if version == 1 else frozenset()
        path = own.get(controllers) if version == 1 or frozenset() in own else None
        directory = _own_directory(_plain(mount_point), _plain(root), path)
        read_only = "ro" in options.split(",") or "ro" in super_options.split(",")
        found.append(Hierarchy(version, controllers, _plain(mount_point), directory, read_only))
    return found


def _controllers(super_options: str, own: dict[frozenset[str], str]) -> frozenset[str]:
    """The controllers of a v1 mount: the set of /proc/PID/cgroup that is all among the mount's options."""
    options = set(super_options.split(","))
    return next((names for names in own if names and names <= options), frozenset())


def _own_directory(mount_point: str, root: str, path: str | None) -> str:
    """Where the process's group is beneath the mount; `root` is the part of the hierarchy that is mounted."""
    if path is None or not path.startswith("/") or "/.." in path or "/.." in root:
        return ""
    if root == "/":
        inside = path
    elif path == root or path.startswith(root + "/"):
        inside = path[len(root) :]
    else:
        return ""
    return posixpath.normpath(mount_point + "/" + inside.lstrip("/"))


def _plain(text: str) -> str:
    """A path of mountinfo without its octal escapes: a space is written as a backslash and 040."""
    first, *escaped = text.split("\\")
    return first + "".join(_unescaped(part) for part in escaped)


def _unescaped(part: str) -> str:
    """What follows a backslash: three octal digits and the rest."""
    digits = part[:3]
    is_octal = len(digits) == 3 and all(digit in "01234567" for digit in digits)
    return chr(int(digits, 8)) + part[3:] if is_octal else f"\\{part}"
