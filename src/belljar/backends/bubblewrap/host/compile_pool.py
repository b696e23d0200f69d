"""The plan of a pool: a stage with a zygote, whose children are the jars. Pure, but for the zygote's program."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import belljar.guest.pool
from belljar.backends import machine
from belljar.backends.bubblewrap.host.compile import arguments_of, bound_trees, compile_plan, covered, stage_plan
from belljar.backends.bubblewrap.host.facts import Host
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.contract import LaunchPlan, RunRequest
from belljar.backends.installations import find_shown
from belljar.errors import PolicyError
from belljar.limits.values import Limits
from belljar.policy.models import Policy
from belljar.policy.paths import PRIVATE_TEMPORARY

_MORE_THAN_WAIT = 64
"""How many more jars there may be than are kept waiting; other runs wait for one."""
_PROGRAMS = ("zygote.py", "cloning.py", "jar_steps.py", "pooled_code.py")
_MOST_LATE = 32
_HELPERS = 1
"""Processes of ours in a run's group: the jar's pid 1."""
_ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""What numerical libraries ask for when they are imported: threads would not survive a fork."""
_BOUND = {"LD_BIND_NOW": "1"}
"""What is bound when it is first called is written into memory that every jar would have to copy."""


def compile_pool(policy: Policy, request: RunRequest, host: Host, *, size: int, preload: Sequence[str]) -> LaunchPlan:
    """The plan of a pool's stage, which makes all its jars: `request` is for Python code, and has no code yet.

    Raises:
        PolicyError: it asks for what runs of a pool can't have.
    """
    plan = compile_plan(policy, request, host)
    _refuse_nested(policy)
    runtime = host.runtime("python") or find_shown("python", policy, host.secrets)
    stage = stage_plan(policy, request, host)
    limits = {name: plan.limits[name] for name in Limits._fields} | {"helper_pids": _HELPERS}
    jar = {
        **{
            name: plan.stage[name]
            for name in ("bwrap", "expect", "memory_group", "gateway_ports", "publishes", "host_info")
        },
        "arguments": [],
        "limits": limits,
        "observe_files": False,
        "observe_network": plan.stage["gateway_ports"] is None,
    }
    trees = bound_trees(policy, stage, request)
    late = [tree.path for _index, tree in trees if tree.late]
    settings = {
        "preload": list(preload),
        "env": dict(plan.env),
        "workdir": plan.workdir,
        "size_bytes": policy.fs.size_bytes,
        "inodes": policy.fs.inodes,
        "fresh": [mount.path for mount in policy.fs.mounts if mount.source is None],
        "late": late,
        "covered": [
            (path, "/dev/null" if cover.endswith("/null") else None) for path, cover in covered(policy).items()
        ],
        "shown": [(name, f"{layout.ZYGOTE_MACHINE}/{name}") for name in machine.SHOWN[policy.proc.host_info]],
        "kept": list(machine.KEPT) if policy.proc.host_info != "host" else [],
    }
    if len(late) > _MOST_LATE:
        raise PolicyError(
            f"in a pool at most {_MOST_LATE} directories of an interpreter can lie where every run has a fresh mount",
            hint="have the interpreter elsewhere",
        )
    outer = {name: value for name, value in plan.env.items() if name != "PYTHONPATH"}
    pool = {
        "size": size,
        "helpers": _HELPERS,
        "most": size + _MORE_THAN_WAIT,
        "jar": jar,
        "settings": settings,
        "programs": {name: _program(name) for name in _PROGRAMS},
        "native": _native(),
        "command": [runtime.path, "-u", f"{layout.JAR_CODE}/zygote.py"],
        "arguments": arguments_of(
            policy,
            trees,
            covered={},  # what covers a part of the zygote's own /proc, keeps its jars from having one
            beside_code={} if policy.proc.host_info == "host" else {layout.ZYGOTE_MACHINE: layout.MACHINE},
            env={**outer, **_ONE_THREAD, **_BOUND},
        ),
    }
    staged = {**plan.stage["plan"], "pool": pool}
    return replace(plan, argv=(), stage={**plan.stage, "plan": staged})


def _refuse_nested(policy: Policy) -> None:
    fresh = [PRIVATE_TEMPORARY, *(mount.path for mount in policy.fs.mounts if mount.source is None)]
    for mount in policy.fs.mounts:
        if any(mount.path.startswith(f"{path.rstrip('/')}/") for path in fresh):
            raise PolicyError(
                f"in a pool {mount.path} can't lie in another mount that every run has anew",
                hint="mount it elsewhere: beneath /data, or /mnt",
            )


def _program(name: str) -> str:
    with open(os.path.join(os.path.dirname(belljar.guest.pool.__file__), name), encoding="utf-8") as file:
        return file.read()


def _native() -> str | None:
    """What makes the jars where it can be executed: `guest/pool/native/jar.c`, compiled."""
    from belljar.guest.pool.native._compiled import JAR

    return JAR.get(os.uname().machine)
