"""The last step: merged values become a `Policy`, with the origin of each and the digest of all."""

from __future__ import annotations

from types import MappingProxyType

from belljar.policy import paths
from belljar.policy.layer import Layer, Written
from belljar.policy.models import (
    AgentsPolicy,
    ContainerPolicy,
    EnvPolicy,
    FsPolicy,
    LoggingPolicy,
    NetPolicy,
    Origin,
    Policy,
    ProcPolicy,
    PythonPolicy,
    SessionPolicy,
)
from belljar.policy.problems import Problems, place

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_LISTS = ("fs.mounts", "fs.deny_globs", "env.pass", "fallback", "container.ports")
_NET_LISTS = ("allowlist", "denylist", "allow_builtin", "host_ports", "publish", "strip_headers", "canary_files")


def assemble(values: Layer, problems: Problems, *, dangerous: bool = False) -> Policy | None:
    """The policy that the merged values say; None if there are problems, which are noted."""
    _check(values, problems)
    if len(problems):
        return None
    from belljar.policy.digest import digest

    policy = _policy(values, dangerous=dangerous)
    fields = {name: getattr(policy, name) for name in Policy.__match_args__}
    return Policy(**{**fields, "digest": digest(policy)})


def _policy(values: Layer, *, dangerous: bool) -> Policy:
    """All of it but its digest."""

    def one(key: str, default: Any = None) -> Any:
        written = values.get(key)
        return default if written is None else written.value

    def many(key: str) -> tuple[Any, ...]:
        return tuple(item.value for item in one(key, ()))

    return Policy(
        fs=FsPolicy(
            mounts=many("fs.mounts"),
            deny_globs=many("fs.deny_globs"),
            size_bytes=one("fs.size_mb"),
            inodes=one("fs.inodes"),
            workdir=one("fs.workdir", paths.WORKSPACE),
            snapshot=one("fs.snapshot", False),  # noqa: FBT003
        ),
        net=_net(values),
        proc=ProcPolicy(
            uid=one("proc.uid"),
            cpu_quota=one("proc.cpu_quota"),
            mem_bytes=one("proc.mem_mb"),
            timeout_seconds=one("proc.timeout_ms"),
            pids=one("proc.pids"),
            open_files=one("proc.open_files"),
            file_size_bytes=one("proc.file_size_mb"),
            output_bytes=one("proc.output_mb"),
            host_info=one("proc.host_info", "limits"),
        ),
        env=EnvPolicy(
            set=MappingProxyType({name: item.value for name, item in one("env.set", {}).items()}),
            pass_=many("env.pass"),
        ),
        python=PythonPolicy(venv=one("python.venv"), interpreter=one("python.interpreter")),
        logging=LoggingPolicy(
            sample_ratio=one("logging.sample_ratio", 0.1),
            redact_pii=one("logging.redact_pii", True),  # noqa: FBT003
            redact=many("logging.redact"),
            redact_in=many("logging.redact_in"),
            let_through=many("logging.let_through"),
            quarantine=one("logging.quarantine", False),  # noqa: FBT003
        ),
        container=_container(values),
        session=SessionPolicy(
            idle_seconds=one("session.idle_s", SessionPolicy().idle_seconds),
            max_age_seconds=one("session.max_age_s", SessionPolicy().max_age_seconds),
            max_sessions=one("session.max_sessions", SessionPolicy().max_sessions),
            keep_seconds=one("session.keep_s", SessionPolicy().keep_seconds),
        ),
        agents=AgentsPolicy(unsandboxed=one("agents.unsandboxed", False)),  # noqa: FBT003
        credentials=MappingProxyType({name: item.value for name, item in one("credentials", {}).items()}),
        backend=one("backend", "auto"),
        fallback=many("fallback"),
        on_degraded=one("on_degraded", "refuse"),
        dangerous=dangerous,
        origins=MappingProxyType(_origins(values)),
        digest="",
    )


def _net(values: Layer) -> NetPolicy:
    """As `_container`; a size has its unit in its key, and bytes in its field."""
    written = {key.removeprefix("net."): item.value for key, item in values.items() if key.startswith("net.")}
    for name in _NET_LISTS:
        if name in written:
            written[name] = tuple(item.value for item in written[name])
    if "budget_mb" in written:
        written["budget_bytes"] = written.pop("budget_mb")
    return NetPolicy(**written)


def _container(values: Layer) -> ContainerPolicy:
    """Every key has its field's name, and a field's default is what holds when nothing is written."""
    written = {
        key.removeprefix("container."): item.value for key, item in values.items() if key.startswith("container.")
    }
    if ports := written.get("ports"):
        written["ports"] = tuple(item.value for item in ports)
    return ContainerPolicy(**written)


def _origins(values: Layer) -> dict[str, Origin]:
    origins = {key: written.origin for key, written in values.items()}
    for key in (*_LISTS, *(f"net.{name}" for name in _NET_LISTS)):
        if written := values.get(key):
            origins.update({f"{key}[{at}]": item.origin for at, item in enumerate(written.value)})
    for key in ("env.set", "credentials"):
        if named := values.get(key):
            origins.update({f"{key}.{name}": item.origin for name, item in named.value.items()})
    return origins


def _check(values: Layer, problems: Problems) -> None:
    """What no key can know alone."""
    mounts: tuple[Written, ...] = values["fs.mounts"].value if "fs.mounts" in values else ()
    if workdir := values.get("fs.workdir"):
        homes = [item.value.path for item in mounts] + ["/tmp"]
        if not any(paths.beneath(workdir.value, home) for home in homes):
            wanted = ", ".join(homes)
            problems.add(workdir.origin, f"fs.workdir: wanted a directory in {wanted}, found '{workdir.value}'")
    _check_denied(values, mounts, problems)
    if any(key.startswith("container.") for key in values):
        from belljar.policy.load.container_agreement import check  # most policies need none of it

        check(values, problems)
    if any(key.startswith(("net.", "credentials")) and not written.preset for key, written in values.items()):
        from belljar.policy.load.network_agreement import check as check_network

        check_network(values, problems)


def _check_denied(values: Layer, mounts: tuple[Written, ...], problems: Problems) -> None:
    """A mount that a pattern by name hides whole: better said now than found empty."""
    patterns: tuple[Written, ...] = values["fs.deny_globs"].value if "fs.deny_globs" in values else ()
    shown = [("fs.mounts", path, item) for item in mounts for path in (item.value.source, item.value.path) if path]
    shown += [(key, values[key].value, values[key]) for key in ("python.venv",) if key in values and values[key].value]
    if all(item.preset for _, _, item in shown) and all(item.preset for item in patterns):
        return  # presets agree with themselves, and a test says so
    from belljar.policy.globs import DenyGlobs  # a plain preset needs none of it

    globs = DenyGlobs(item.value for item in patterns).by_name()
    for key, path, item in shown:
        if (index := globs.match(path)) is not None:
            rule = patterns[index]
            problems.add(item.origin, f"{key}: {path} is denied by '{rule.value}' of {place(rule.origin)}")
