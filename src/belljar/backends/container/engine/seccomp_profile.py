"""The engine's seccomp profile: the rules of `belljar.backends.seccomp`, in the form that docker and podman read.

It is the outer of two filters. The gate adds the inner one to the code's process, made by libseccomp from the same
rules; the engine's is there for the gate itself, and for hosts on which belljar has no libseccomp. The outer allows
more: a listener (`seccomp` with any flag), because the gate has to make one, and what only `prefix` of the inner filter
refuses. The limit on cores is held by both.
"""

from __future__ import annotations

import errno
import json
from typing import Any

from belljar.backends.seccomp import conditions
from belljar.backends.seccomp.libseccomp import Condition
from belljar.backends.seccomp.prefix import (
    AF_INET,
    AF_INET6,
    AF_NETLINK,
    AF_UNIX,
    MNT_DETACH,
    MS_SILENT,
    NEW_NAMESPACES,
    RLIMIT_CORE,
)
from belljar.backends.seccomp.rules import ABSENT, ALLOWED, REPORTED

_ARCHITECTURES = [
    {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
    {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
]

_INT, _LONG = 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF
_RESOURCES = 16
_FAMILIES = 46
_USED_FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)


def profile(*, reported: bool) -> str:
    """The profile as JSON; with `reported`, forbidden calls are left to the gate's answer, and closed without one."""
    rules: list[dict[str, Any]] = [
        {"names": sorted((ALLOWED | {"seccomp"}) - {"setrlimit"}), "action": "SCMP_ACT_ALLOW"},
        {"names": sorted(ABSENT), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    if reported:
        rules.append({"names": sorted(REPORTED), "action": "SCMP_ACT_TRACE"})
        rules += _told()
    rules += [
        {"names": [rule.name], "action": "SCMP_ACT_ALLOW", "args": [_argument(one) for one in rule.conditions]}
        for rule in conditions.allowed()
        if rule.name not in ("seccomp", "prlimit64")
    ]
    rules += _limits()
    whole = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "archMap": _ARCHITECTURES,
        "syscalls": rules,
    }
    return json.dumps(whole)


def _told() -> list[dict[str, Any]]:
    """Leave to the gate's answer what `prefix.told` asks it about, as far as this form of a filter can say it."""
    asked = [
        *(("clone", [Condition(0, 1 << bit, 1 << bit)]) for bit in range(32) if NEW_NAMESPACES >> bit & 1),
        ("mount", [Condition(3, MS_SILENT, 0)]),
        ("umount2", [Condition(1, MNT_DETACH, 0)]),
        *(("socket", [Condition(0, _INT, family)]) for family in range(_FAMILIES) if family not in _USED_FAMILIES),
        *(("socket", [Condition(0, _INT, family), Condition(1, 0xF, 3)]) for family in (AF_INET, AF_INET6)),
    ]
    traced = {"action": "SCMP_ACT_TRACE"}
    return [
        {"names": ["pivot_root", "sethostname", "unshare"], **traced},
        *({"names": [name], **traced, "args": [*map(_argument, args)]} for name, args in asked),
    ]


def _limits() -> list[dict[str, Any]]:
    """A process may set its own limits and read anyone's; what is asked of the one on cores succeeds without effect."""
    others = [which for which in range(_RESOURCES) if which != RLIMIT_CORE]
    allowed = [
        *(("setrlimit", [Condition(0, _INT, which)]) for which in others),
        *(("prlimit64", [Condition(0, _INT, 0), Condition(1, _INT, which)]) for which in others),
        ("prlimit64", [Condition(2, _LONG, 0)]),
    ]
    succeeds = {"action": "SCMP_ACT_ERRNO", "errnoRet": 0}
    core = [_argument(Condition(1, _INT, RLIMIT_CORE)), {"index": 2, "value": 0, "op": "SCMP_CMP_NE"}]
    return [
        *({"names": [name], "action": "SCMP_ACT_ALLOW", "args": [*map(_argument, args)]} for name, args in allowed),
        {"names": ["setrlimit"], **succeeds, "args": [_argument(Condition(0, _INT, RLIMIT_CORE))]},
        {"names": ["prlimit64"], **succeeds, "args": core},
    ]


def _argument(condition: Condition) -> dict[str, Any]:
    return {
        "index": condition.argument,
        "value": condition.mask,
        "valueTwo": condition.value,
        "op": "SCMP_CMP_MASKED_EQ",
    }
