"""What the engine is: asked once, remembered for this process. Old runtimes with known escapes are found here too."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from belljar.backends.container.engine.engine import Engine, find_program
from belljar.backends.container.engine.escapes import EscapeJudgement, EscapeVerdict, Use, judge
from belljar.backends.container.engine.faults import fault
from belljar.backends.container.engine.patch_level import PatchLevel, patch_level
from belljar.errors import PrerequisiteError, SandboxUnavailableError

_SECONDS = 30.0
_CONNECTION = (
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "CONTAINERS_CONF",
    "CONTAINERS_STORAGE_CONF",
    "CONTAINERD_ADDRESS",
)
"""What decides, in the environment, which engine is talked to."""
_NOT_RUNC = ("crun", "runsc", "kata", "youki")
_ANSWERS: dict[tuple[str | None, ...], tuple[dict[str, Any], bool]] = {}


@dataclass(frozen=True, slots=True)
class Facts:
    """What an engine says of itself. Empty strings are what it does not tell."""

    version: str
    api_version: str
    """podman's; docker's is not in the one answer that is asked for."""
    runtimes: Mapping[str, str]
    """Name to path, as the engine writes them."""
    runtime_arguments: Mapping[str, tuple[str, ...]]
    """Name to the arguments that the engine gives it."""
    runtime: str
    """The one that will be used: the engine's choice, or `Engine.runtime`."""
    runtime_path: str
    runtime_version: str
    rootless: bool
    user_namespace: bool
    """docker's userns-remap: root in a container is nobody outside."""
    cgroup_version: str
    """`1` or `2`."""
    cgroup_driver: str
    security: tuple[str, ...]
    seccomp: bool
    storage_driver: str
    os: str
    architecture: str
    kernel: str
    local: bool
    """The daemon runs on this very system: it sees the same files and processes."""


def facts(engine: Engine, *, timeout: float = _SECONDS) -> Facts:
    """Ask the engine, unless it was asked before.

    Raises:
        PrerequisiteError: its daemon does not answer.
        SandboxUnavailableError: it answers nonsense, or too late.
    """
    key = (*engine.command("info"), *map(os.environ.get, _CONNECTION))
    if key not in _ANSWERS:
        answer = _ask(engine, timeout)
        _ANSWERS[key] = answer, engine.name != "docker" or _is_unix_socket(engine, answer, timeout)
    answer, near = _ANSWERS[key]
    return podman_facts(answer) if engine.name == "podman" else docker_facts(answer, engine.runtime, near=near)


def _ask(engine: Engine, timeout: float) -> dict[str, Any]:
    code, stdout, stderr = engine.attempt("info", "--format", "{{json .}}", timeout=timeout)
    try:
        answer = json.loads(stdout)
    except ValueError:
        answer = None
    errors = answer.get("ServerErrors") if isinstance(answer, dict) else None
    if code or errors:
        raise fault(engine, "\n".join([stderr, *map(str, errors or ())]), code)
    if not isinstance(answer, dict):
        raise SandboxUnavailableError(f"{engine.name} info did not print JSON", hint=f"try: {engine.name} info")
    return answer


def _is_unix_socket(engine: Engine, answer: dict[str, Any], timeout: float) -> bool:
    """Whether docker's daemon is behind a socket of this system. A context that was chosen has to be looked up."""
    host = os.environ.get("DOCKER_HOST", "")
    context = str(_dictionary(answer.get("ClientInfo")).get("Context") or "default")
    if not host and context != "default":
        code, host, _ = engine.attempt(
            "context", "inspect", context, "--format", "{{.Endpoints.docker.Host}}", timeout=timeout
        )
        host = "unknown" if code else host.strip()
    return not host or host.startswith("unix://")


def docker_facts(answer: dict[str, Any], runtime: str | None, *, near: bool) -> Facts:
    """The facts in what `docker info` (or nerdctl's) prints. `near`: its daemon is behind a socket of this system."""
    security = tuple(map(str, answer.get("SecurityOptions") or ()))
    runtimes = {name: _dictionary(value) for name, value in _dictionary(answer.get("Runtimes")).items()}
    chosen = runtime or str(answer.get("DefaultRuntime") or "runc")
    path = str(runtimes.get(chosen, {}).get("path") or "")
    kernel, name = str(answer.get("KernelVersion") or ""), str(answer.get("Name") or "")
    here = os.uname()
    return Facts(
        version=str(answer.get("ServerVersion") or ""),
        api_version="",
        runtimes={name: str(value.get("path") or "") for name, value in runtimes.items()},
        runtime_arguments={
            name: tuple(map(str, value.get("runtimeArgs") or value.get("args") or ()))
            for name, value in runtimes.items()
        },
        runtime=chosen,
        runtime_path=path,
        runtime_version=_runc_version(answer, runtimes.get(chosen, {})) if _is_runc(chosen, path) else "",
        rootless=any(option.startswith("name=rootless") for option in security),
        user_namespace=any(option.startswith("name=userns") for option in security),
        cgroup_version=str(answer.get("CgroupVersion") or "1"),
        cgroup_driver=str(answer.get("CgroupDriver") or ""),
        security=security,
        seccomp=any(option.startswith("name=seccomp") for option in security),
        storage_driver=str(answer.get("Driver") or ""),
        os=str(answer.get("OSType") or ""),
        architecture=str(answer.get("Architecture") or ""),
        kernel=kernel,
        local=near and (kernel, name) == (here.release, here.nodename),
    )


def _runc_version(answer: dict[str, Any], runtime: dict[str, Any]) -> str:
    """By the runtime's own features (docker 25 and later), or by what docker calls its commit: mostly a version."""
    features = str(_dictionary(runtime.get("status")).get("org.opencontainers.runtime-spec.features") or "")
    try:
        notes = _dictionary(_dictionary(json.loads(features)).get("annotations"))
    except ValueError:
        notes = {}
    commit = str(_dictionary(answer.get("RuncCommit")).get("ID") or "")
    return str(notes.get("org.opencontainers.runc.version") or commit)


def podman_facts(answer: dict[str, Any]) -> Facts:
    """The facts in what `podman info` prints."""
    host, store, version = (_dictionary(answer.get(part)) for part in ("host", "store", "version"))
    runtime, security = _dictionary(host.get("ociRuntime")), _dictionary(host.get("security"))
    path = str(runtime.get("path") or "")
    name = os.path.basename(str(runtime.get("name") or ""))
    told = str(runtime.get("version") or "").partition("\n")[0]
    return Facts(
        version=str(version.get("Version") or ""),
        api_version=str(version.get("APIVersion") or ""),
        runtimes={name: path},
        runtime_arguments={},
        runtime=name,
        runtime_path=path,
        runtime_version=told.rpartition(" ")[2],
        rootless=bool(security.get("rootless")),
        user_namespace=False,
        cgroup_version=str(host.get("cgroupVersion") or "").removeprefix("v"),
        cgroup_driver=str(host.get("cgroupManager") or ""),
        security=tuple(sorted(name for name, value in security.items() if value is True)),
        seccomp=bool(security.get("seccompEnabled")),
        storage_driver=str(store.get("graphDriverName") or ""),
        os=str(host.get("os") or ""),
        architecture=str(host.get("arch") or ""),
        kernel=str(host.get("kernel") or ""),
        local=not host.get("serviceIsRemote"),
    )


def runtime_problem(known: Facts, uses: frozenset[Use] = frozenset()) -> EscapeJudgement:
    """Whether the runtime that will be used has a known escape, for a plan with these uses. Only runc is judged."""
    if not _is_runc(known.runtime, known.runtime_path):
        return EscapeJudgement(EscapeVerdict.UNKNOWN, f"{known.runtime} {known.runtime_version}".strip())
    program = find_program(os.path.basename(known.runtime_path) or "runc") if known.local else None
    if os.path.isabs(known.runtime_path):
        program = known.runtime_path if known.local else None
    level = patch_level(program) if program and judge(known.runtime_version).open else PatchLevel()
    if "runc" not in level.package:  # containerd.io brings a runc, but its version is containerd's
        level = PatchLevel()
    return judge(known.runtime_version, package=level.version, named=level.fixed, uses=uses)


def require_sound_runtime(known: Facts, uses: frozenset[Use] = frozenset()) -> EscapeJudgement:
    """The judgement, for the report.

    Raises:
        PrerequisiteError: the runtime has a known escape that this plan brings within reach.
    """
    judgement = runtime_problem(known, uses)
    if judgement.verdict is EscapeVerdict.REACHABLE:
        raise PrerequisiteError(judgement.text, hint=judgement.hint)
    return judgement


def _is_runc(name: str, path: str) -> bool:
    """Whether a runtime is runc, or may be: an unknown name (nvidia's, say) mostly wraps it."""
    shown = os.path.basename(path) or name
    return not any(other in shown or other in name for other in _NOT_RUNC)


def _dictionary(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
