"""Does this backend work here, and if not, why? Each check says what was found, what it means and what to type."""

from __future__ import annotations

import os
import subprocess

from belljar.backends.bubblewrap.host.facts import INSTALL, cgroup_support, find_bwrap
from belljar.backends.contract import Availability, Check
from belljar.limits.detect import Mechanism

_TRY = ("--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--", "/bin/true")
_SECONDS = 20
_TRIES = 3
"""A mount that another program takes away meanwhile, as container engines do all the time, fails one of them."""
_OLDEST = (5, 11)


def probe() -> Availability:
    """Look, and then try for real."""
    checks = (_kernel(), _bubblewrap(), *_namespaces(), _seccomp(), _trial(), _control_groups())
    needed = [check for check in checks if not check.ok and check.name != "control groups"]
    if needed:
        return Availability("bubblewrap", available=False, reason=needed[0].found, hint=needed[0].hint, checks=checks)
    return Availability("bubblewrap", available=True, reason="namespaces, seccomp and bubblewrap work", checks=checks)


def _read(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return None


def _kernel() -> Check:
    release = os.uname().release
    try:
        version = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    except ValueError:
        version = _OLDEST
    ok = version >= _OLDEST
    return Check(
        "kernel",
        ok,
        f"Linux {release}",
        "" if ok else "overlayfs in user namespaces needs Linux 5.11",
        "" if ok else "boot a newer kernel",
    )


def _bubblewrap() -> Check:
    path = find_bwrap()
    if path is None:
        return Check("bwrap", ok=False, found="bwrap is not installed", meaning="it makes the jar", hint=INSTALL)
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, env={}).stdout.strip()
    setuid = os.stat(path).st_mode & 0o4000
    meaning = "it is setuid root, which belljar does not need and does not use" if setuid else ""
    return Check("bwrap", ok=True, found=f"{path}, {version}", meaning=meaning)


def _namespaces() -> list[Check]:
    checks = []
    most = _read("/proc/sys/user/max_user_namespaces")
    ok = most is None or int(most) > 8
    checks.append(
        Check(
            "user namespaces",
            ok,
            f"user.max_user_namespaces = {most}",
            "" if ok else "the kernel may make no user namespaces, so there can be no jar",
            "" if ok else "sudo sysctl -w user.max_user_namespaces=15000",
        )
    )
    if _read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        checks.append(
            Check(
                "unprivileged user namespaces",
                os.geteuid() == 0,
                "kernel.unprivileged_userns_clone = 0",
                "only root may make user namespaces (an old Debian setting)",
                "sudo sysctl -w kernel.unprivileged_userns_clone=1",
            )
        )
    restricted = _read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1"
    if restricted:
        checks.append(
            Check(
                "AppArmor",
                ok=True,
                found="kernel.apparmor_restrict_unprivileged_userns = 1",
                meaning="programs without an AppArmor profile get user namespaces without capabilities (Ubuntu 24.04)",
                hint="install an AppArmor profile that allows userns for belljar's Python and for bwrap",
            )
        )
    return checks


def _seccomp() -> Check:
    from belljar.backends.seccomp import filters
    from belljar.errors import PrerequisiteError

    try:
        size = len(filters.jar_filter(reported=True)) // 8
    except PrerequisiteError as error:
        return Check(
            "seccomp", ok=False, found=error.message, meaning="system calls can't be filtered", hint=error.hint
        )
    return Check("seccomp", ok=True, found=f"a filter of {size} instructions")


def _trial() -> Check:
    path = find_bwrap()
    if path is None:
        return Check("trial", ok=False, found="not tried: no bwrap", hint=INSTALL)
    for _ in range(_TRIES):
        try:
            result = subprocess.run(
                [path, *_TRY], capture_output=True, text=True, check=False, timeout=_SECONDS, env={}
            )
        except subprocess.TimeoutExpired:
            return Check("trial", ok=False, found=f"a plain jar did not end within {_SECONDS} s")
        if result.returncode == 0:
            return Check("trial", ok=True, found="a plain jar with every namespace was made and ended")
    return Check(
        "trial",
        ok=False,
        found=f"bwrap failed: {result.stderr.strip().splitlines()[-1] if result.stderr.strip() else 'no message'}",
        meaning="this host (or the container that this is) forbids namespaces or a new /proc",
        hint="in a container: start it with --security-opt seccomp=unconfined --security-opt systempaths=unconfined "
        "--security-opt apparmor=unconfined; on Ubuntu 24.04: see the AppArmor line",
    )


def _control_groups() -> Check:
    support = cgroup_support()
    held = ", ".join(support.controllers) or "nothing"
    if not support.missing:
        return Check("control groups", ok=True, found=f"{support.mechanism}: {held}")
    missing = "; ".join(f"{name}: {why}" for name, why in support.missing.items())
    meaning = f"these limits are watched, not enforced by the kernel: {', '.join(support.missing)} ({missing})"
    found = "none" if support.mechanism is Mechanism.NONE else f"{support.mechanism}: {held}"
    return Check("control groups", ok=False, found=found, meaning=meaning, hint=support.hint)
