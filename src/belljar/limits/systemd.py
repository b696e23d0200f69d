"""A delegated group from systemd: the launcher is started in a scope of its own, and then makes room in it.

The host calls `scope_command`; the launcher, once it runs in the scope, calls `prepare_delegated`. An ordinary user
asks the user's own manager, root asks the system's; neither needs any set-up.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from belljar.errors import PrerequisiteError, SandboxUnavailableError
from belljar.limits import groupfs
from belljar.limits.detect import CgroupSupport, Mechanism, detect
from belljar.limits.naming import LEAF

_PROPERTIES = ("--property=Delegate=yes", "--description=belljar's launcher and its jars")


def scope_command(argv: Sequence[str], *, manager: str) -> list[str]:
    """`argv` wrapped so that it runs in a scope that is delegated to it; systemd-run *becomes* argv, its pid stays.

    `manager` is `CgroupSupport.manager`: `user` or `system`.
    """
    who = ["--user"] if manager == "user" else []
    return ["systemd-run", *who, "--scope", "--quiet", "--collect", *_PROPERTIES, "--", *argv]


def prepare_delegated(support: CgroupSupport | None = None, *, also_move: Sequence[int] = ()) -> CgroupSupport:
    """Make this process's delegated group ready to hold jars, and say what it offers then (launcher, once).

    Without `support` the process was started by `scope_command`; with it, it is what the host's `detect` said.
    A group that hands out controllers may hold no process of its own, so the launcher moves into a leaf, with those of
    belljar's processes in `also_move` that are in the same group (the host, when there is no scope between them).

    Raises:
        PrerequisiteError: the group is not delegated to us.
        SandboxUnavailableError: the kernel refused; the message names the file.
    """
    support = support or detect(in_own_scope=True)
    if support.mechanism is not Mechanism.V2_DELEGATED:
        reasons = "; ".join(dict.fromkeys(support.missing.values())) or f"it is {support.mechanism}"
        raise PrerequisiteError(f"the launcher's control group is not delegated to it: {reasons}", hint=support.hint)
    if not support.occupants:
        return support
    base = groupfs.open_directory(support.base())
    try:
        if groupfs.exists(base, "cgroup.type"):  # the real root has none, and may hold processes as well as groups
            _move_out(base, also_move)
        groupfs.write(base, "cgroup.subtree_control", " ".join(f"+{name}" for name in support.controllers))
    finally:
        os.close(base)
    return support._replace(occupants=())


def _move_out(base: int, also_move: Sequence[int]) -> None:
    try:
        os.mkdir(LEAF, 0o755, dir_fd=base)
    except FileExistsError:
        pass
    except OSError as error:
        raise SandboxUnavailableError(f"can't make {groupfs.describe(base)}/{LEAF}: {error.strerror}") from error
    leaf = groupfs.open_directory(LEAF, dir_fd=base)
    try:
        inside = groupfs.pids(base)
        for pid in (pid for pid in also_move if pid in inside):
            groupfs.write(leaf, "cgroup.procs", str(pid))
        groupfs.write(leaf, "cgroup.procs", "0")
    finally:
        os.close(leaf)
