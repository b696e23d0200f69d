"""The engine's seccomp profile: the rules of `belljar.backends.seccomp`, in the form that docker and podman read.

It is the outer of two filters. The gate adds the inner one to the code's process, made by libseccomp from the same
rules; the engine's is there for the gate itself, and for hosts on which belljar has no libseccomp. The one thing that
only the outer allows is a listener (`seccomp` with any flag), because the gate has to make one.
"""

from __future__ import annotations

import errno
import json
from typing import Any

from belljar.backends.seccomp import conditions
from belljar.backends.seccomp.libseccomp import Condition
from belljar.backends.seccomp.rules import ABSENT, ALLOWED, REPORTED

_ARCHITECTURES = [
    {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
    {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
]


def profile(*, reported: bool) -> str:
    """The profile as JSON; with `reported`, forbidden calls are left to the gate's answer, and closed without one."""
    rules: list[dict[str, Any]] = [
        {"names": sorted(ALLOWED | {"seccomp"}), "action": "SCMP_ACT_ALLOW"},
        {"names": sorted(ABSENT), "action": "SCMP_ACT_ERRNO", "errnoRet": errno.ENOSYS},
    ]
    if reported:
        rules.append({"names": sorted(REPORTED), "action": "SCMP_ACT_TRACE"})
    rules += [
        {"names": [rule.name], "action": "SCMP_ACT_ALLOW", "args": [_argument(one) for one in rule.conditions]}
        for rule in conditions.allowed()
        if rule.name != "seccomp"
    ]
    whole = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,
        "archMap": _ARCHITECTURES,
        "syscalls": rules,
    }
    return json.dumps(whole)


def _argument(condition: Condition) -> dict[str, Any]:
    return {
        "index": condition.argument,
        "value": condition.mask,
        "valueTwo": condition.value,
        "op": "SCMP_CMP_MASKED_EQ",
    }
