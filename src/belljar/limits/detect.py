"""Which control groups belljar can use here: found by reading, and by making one group and removing it again.

Runs in the host (to know what the report may promise) and in the launcher (to know where to make groups), as whoever
started belljar. Nothing outside the process's own group is touched.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from belljar._startup.records import NamedTuple, StrEnum
from belljar.limits.naming import group_name
from belljar.limits.proc_files import Hierarchy, hierarchies

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

WANTED = ("memory", "cpu", "pids")
_COUNTING = "cpuacct"
"""v1: counts the cpu time that `cpu` limits; most hosts have both in one hierarchy."""
_FREEZING = "freezer"
"""v1: lets a run stand still. The first of all, so that whoever removes groups comes to it first: what is frozen does
not die."""

_PROVING_FILE = {
    1: {
        "memory": "memory.limit_in_bytes",
        "cpu": "cpu.cfs_quota_us",
        "pids": "pids.max",
        _COUNTING: "cpuacct.usage",
        _FREEZING: "freezer.state",
    },
    2: {"memory": "memory.max", "cpu": "cpu.max", "pids": "pids.max"},
}
"""A file that a group inside has when its controller really limits; a kernel without CFS bandwidth has no quota."""


class Mechanism(StrEnum):
    """What holds the limits of a run."""

    V2_DELEGATED = "v2-delegated"
    V2_SYSTEMD = "v2-systemd"
    V1 = "v1"
    NONE = "none"


class CgroupSupport(NamedTuple):
    """What this process can do with control groups; plain data, JSON-ready."""

    mechanism: Mechanism
    controllers: tuple[str, ...] = ()
    """The ones of memory, cpu and pids that hold here."""
    directories: Mapping[str, str] = {}
    """v1: controller to the own group in its hierarchy. v2-delegated: `base` to the group in which jars are made."""
    missing: Mapping[str, str] = {}
    """Why each of the others does not hold."""
    hint: str = ""
    manager: str = ""
    """v2-systemd: `user` or `system`, whose scope the launcher has to be started in."""
    occupants: tuple[int, ...] = ()
    """v2-delegated: our own processes that `prepare_delegated` has to move out of the base first."""

    def base(self) -> str:
        """v2-delegated: the group in which jars are made."""
        return self.directories["base"]

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready dict."""
        return {**self._asdict(), "directories": dict(self.directories), "missing": dict(self.missing)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> CgroupSupport:
        """Out of `to_json`'s dict."""
        sequences = {name: tuple(values[name]) for name in ("controllers", "occupants")}
        return cls(**{**values, **sequences, "mechanism": Mechanism(values["mechanism"])})


def detect(
    *,
    in_own_scope: bool = False,
    root: str = "/",
    euid: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> CgroupSupport:
    """Find out which mechanism holds here, with which controllers, and why not the others.

    `in_own_scope` is for the launcher that `scope_command` started: its unit is known to be delegated, marked or not.
    `root` is a directory that stands for `/` (for tests, and for hosts whose /proc and /sys are elsewhere).
    """
    try:
        found = hierarchies(_text(root, "/proc/self/cgroup"), _text(root, "/proc/self/mountinfo"))
    except FileNotFoundError as error:
        return _nothing(f"{error.filename} does not exist", "mount /proc, with a kernel that has CONFIG_CGROUPS")
    if unified := next((hierarchy for hierarchy in found if hierarchy.version == 2 and _offers(root, hierarchy)), None):
        from belljar.limits.detect_v2 import detect_v2

        who = os.geteuid() if euid is None else euid
        where = os.environ if environ is None else environ
        return detect_v2(unified, in_own_scope=in_own_scope, root=root, euid=who, environ=where)
    if any(hierarchy.controllers & set(WANTED) for hierarchy in found):
        return _detect_v1(found, root)
    return _nothing("no hierarchy with this controller is mounted", "mount -t cgroup2 none /sys/fs/cgroup")


def probe(directory: str, version: int, controllers: tuple[str, ...]) -> dict[str, str]:
    """Make a group in `directory` and remove it: for each controller that does not hold there, the reason."""
    path = f"{directory}/{group_name(os.getpid(), 'probe')}"
    try:
        os.mkdir(path, 0o755)
    except OSError as error:
        return dict.fromkeys(controllers, f"no group can be made in {directory}: {error.strerror}")
    try:
        files = _PROVING_FILE[version]
        return {
            name: f"a group in {directory} has no {files[name]}"
            for name in controllers
            if not os.access(f"{path}/{files[name]}", os.W_OK)
        }
    finally:
        os.rmdir(path)


def _detect_v1(found: list[Hierarchy], root: str) -> CgroupSupport:
    """v1: one hierarchy for each controller, each judged on its own."""
    directories: dict[str, str] = {}
    missing: dict[str, str] = {}
    for controller in (_FREEZING, *WANTED, _COUNTING):
        hierarchy = next((one for one in found if controller in one.controllers), None)
        if reason := _v1_obstacle(hierarchy, controller, root):
            missing[controller] = reason
        elif hierarchy:
            directories[controller] = root.rstrip("/") + hierarchy.directory
    for extra in (_COUNTING, _FREEZING):
        missing.pop(extra, None)
    controllers = tuple(name for name in WANTED if name in directories)
    mechanism = Mechanism.V1 if controllers else Mechanism.NONE
    hint = "on cgroup v1 only root can make groups: run belljar as root, or boot with cgroup v2" if missing else ""
    return CgroupSupport(mechanism, controllers, directories if controllers else {}, missing, hint)


def _v1_obstacle(hierarchy: Hierarchy | None, controller: str, root: str) -> str:
    if hierarchy is None:
        return f"no cgroup v1 hierarchy has the controller {controller}"
    if not hierarchy.directory:
        return f"our own group lies outside of what is mounted at {hierarchy.mount_point}"
    if hierarchy.read_only:
        return f"{hierarchy.mount_point} is mounted read-only"
    return probe(root.rstrip("/") + hierarchy.directory, 1, (controller,)).get(controller, "")


def _offers(root: str, hierarchy: Hierarchy) -> bool:
    """Whether a v2 hierarchy has any controller we want; on a hybrid host v1 has them all."""
    for directory in (hierarchy.directory, hierarchy.mount_point):
        try:
            if directory and set(_text(root, f"{directory}/cgroup.controllers").split()) & set(WANTED):
                return True
        except OSError:
            continue
    return False


def _nothing(reason: str, hint: str) -> CgroupSupport:
    return CgroupSupport(Mechanism.NONE, missing=dict.fromkeys(WANTED, reason), hint=hint)


def _text(root: str, path: str) -> str:
    with open(root.rstrip("/") + path, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()
