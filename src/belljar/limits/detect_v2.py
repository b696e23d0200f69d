"""Where on a cgroup v2 host belljar may make groups: in a group that was delegated to it, or in a systemd scope.

The rules are the kernel's (a group that hands out controllers holds no process of its own, the real root excepted) and
systemd's (what a unit contains is systemd's, unless it is delegated). Runs in the host and in the launcher.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping

from belljar.limits.detect import WANTED, CgroupSupport, Mechanism, probe
from belljar.limits.proc_files import Hierarchy

_UNITS = (".scope", ".service", ".slice")
_DELEGATE_MARKS = ("user.delegate", "trusted.delegate")


def detect_v2(
    hierarchy: Hierarchy, *, in_own_scope: bool, root: str, euid: int, environ: Mapping[str, str]
) -> CgroupSupport:
    """The best of: a base that is ready, our own delegated group, a systemd scope; else none, with the reason."""
    prefix = root.rstrip("/")
    if hierarchy.read_only:
        return _none(f"{hierarchy.mount_point} is mounted read-only", "in a container: start it with --privileged")
    if not hierarchy.directory:
        reason = f"our own group lies outside of what is mounted at {hierarchy.mount_point}"
        return _none(reason, "in a container: start it with --cgroupns=private")
    own, top = prefix + hierarchy.directory, prefix + hierarchy.mount_point
    for candidate in _candidates(own, top):
        if support := _ready(candidate):
            return support
    if support := _own_group(own, top, in_own_scope=in_own_scope):
        return support
    return _systemd(top, prefix, euid, environ) or _none(_why_not(own), _SYSTEMD_HINT)


_SYSTEMD_HINT = (
    "log in through systemd (loginctl enable-linger $USER starts its user manager), "
    "or run belljar in a unit with Delegate=yes"
)


def _candidates(own: str, top: str) -> list[str]:
    """Our own group; and the one above, when ours is a leaf that somebody made inside a delegated unit."""
    is_leaf = own != top and not own.endswith(_UNITS)
    return [own, posixpath.dirname(own)] if is_leaf else [own]


def _ready(base: str) -> CgroupSupport | None:
    """A base that hands out controllers already, in which we can make groups that really have them."""
    handed_out = _words(f"{base}/cgroup.subtree_control")
    wanted = tuple(name for name in WANTED if name in handed_out)
    if not wanted or not _may_move_within(base) or (base.endswith(_UNITS) and not _is_delegated(base)):
        return None
    refused = probe(base, 2, wanted)
    controllers = tuple(name for name in wanted if name not in refused)
    missing = {**{name: f"{base} does not hand out {name}" for name in WANTED if name not in wanted}, **refused}
    if not controllers:
        return None
    return CgroupSupport(Mechanism.V2_DELEGATED, controllers, {"base": base}, missing)


def _own_group(own: str, top: str, *, in_own_scope: bool) -> CgroupSupport | None:
    """Our own group, when it could be a base once we have moved out of it: it is ours, and we are alone in it."""
    offered = _words(f"{own}/cgroup.controllers")
    controllers = tuple(name for name in WANTED if name in offered)
    is_real_root = own == top and not os.path.exists(f"{own}/cgroup.type")
    if not controllers or not _may_move_within(own) or not os.access(f"{own}/cgroup.subtree_control", os.W_OK):
        return None
    if own.endswith(_UNITS) and not in_own_scope and not _is_delegated(own):
        return None
    occupants = {int(pid) for pid in _words(f"{own}/cgroup.procs")}
    if not is_real_root and occupants != {os.getpid()}:
        return None
    missing = {name: f"{own} has no controller {name}" for name in WANTED if name not in controllers}
    return CgroupSupport(Mechanism.V2_DELEGATED, controllers, {"base": own}, missing, occupants=(os.getpid(),))


def _systemd(top: str, prefix: str, euid: int, environ: Mapping[str, str]) -> CgroupSupport | None:
    """A transient scope: of the system's manager for root, of the user's own for everybody else."""
    if not os.path.isdir(f"{prefix}/run/systemd/system") or not _on_path("systemd-run", environ):
        return None
    if euid == 0:
        manager, offered = "system", _words(f"{top}/cgroup.controllers")
    else:
        runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{euid}"
        if not os.path.exists(f"{prefix}{runtime}/systemd/private") and not os.path.exists(f"{prefix}{runtime}/bus"):
            return None
        service = f"{top}/user.slice/user-{euid}.slice/user@{euid}.service"
        manager, offered = "user", _words(f"{service}/cgroup.controllers")
    controllers = tuple(name for name in WANTED if name in offered)
    if not controllers:
        return None
    reason = f"systemd's {manager} manager was not given the controller"
    missing = {name: f"{reason} {name}" for name in WANTED if name not in offered}
    hint = f"systemctl edit user@.service and add: [Service] Delegate={' '.join(WANTED)}" if missing else ""
    return CgroupSupport(Mechanism.V2_SYSTEMD, controllers, {}, missing, hint, manager)


def _may_move_within(base: str) -> bool:
    return os.access(base, os.W_OK) and os.access(f"{base}/cgroup.procs", os.W_OK)


def _is_delegated(unit: str) -> bool:
    """Whether systemd marked the unit as delegated (from systemd 251, kernel 5.7; else a scope is used)."""
    for mark in _DELEGATE_MARKS:
        try:
            if os.getxattr(unit, mark) == b"1":
                return True
        except OSError:
            continue
    return False


def _why_not(own: str) -> str:
    if not _may_move_within(own):
        return f"{own} is not ours to make groups in, and there is no systemd manager to ask"
    return f"other processes are in {own}, and there is no systemd manager to ask for a scope"


def _on_path(name: str, environ: Mapping[str, str]) -> bool:
    return any(os.access(f"{place}/{name}", os.X_OK) for place in environ.get("PATH", "/usr/bin:/bin").split(":"))


def _words(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().split()
    except OSError:
        return []


def _none(reason: str, hint: str) -> CgroupSupport:
    return CgroupSupport(Mechanism.NONE, missing=dict.fromkeys(WANTED, reason), hint=hint)
