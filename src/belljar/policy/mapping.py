"""A resolved policy as the plain mapping that its file would hold: the file's names and units."""

from __future__ import annotations

from typing import Any

from belljar.policy.models import HostRule, Mount, Policy
from belljar.policy.units import size_value


def to_mapping(policy: Policy) -> dict[str, Any]:
    """The mapping of a file that says all that `policy` does, key by key; `from_mapping` reads it back.

    It inherits nothing, but for a dangerous one: only those that extend `unrestricted` may say what it says.
    """
    return {
        "version": 1,
        "extends": "unrestricted" if policy.dangerous else "none",
        "backend": policy.backend,
        "fallback": list(policy.fallback),
        "on_degraded": policy.on_degraded if isinstance(policy.on_degraded, str) else list(policy.on_degraded),
        "fs": {
            "mounts": [_mount(mount) for mount in policy.fs.mounts],
            "deny_globs": _globs(policy),
            "size_mb": size_value(policy.fs.size_bytes),
            "inodes": policy.fs.inodes,
            "workdir": policy.fs.workdir,
            "snapshot": policy.fs.snapshot,
        },
        "net": {"enabled": policy.net.enabled, "allowlist": [_host(rule) for rule in policy.net.allowlist]},
        "proc": {
            "uid": policy.proc.uid,
            "cpu_quota": _number(policy.proc.cpu_quota),
            "mem_mb": size_value(policy.proc.mem_bytes),
            "timeout_ms": round(policy.proc.timeout_seconds * 1000),
            "pids": policy.proc.pids,
            "open_files": policy.proc.open_files,
            "file_size_mb": size_value(policy.proc.file_size_bytes),
            "output_mb": size_value(policy.proc.output_bytes),
        },
        "env": {"set": dict(policy.env.set), "pass": list(policy.env.pass_)},
        "python": {"venv": policy.python.venv, "interpreter": policy.python.interpreter},
        "logging": {
            "sample_ratio": _number(policy.logging.sample_ratio),
            "redact_pii": policy.logging.redact_pii,
        },
        "container": {
            "image": policy.container.image,
            "engine": policy.container.engine,
            "runtime": policy.container.runtime,
            "name": policy.container.name,
            "network": policy.container.network,
            "pid": policy.container.pid,
            "privileged": policy.container.privileged,
            "read_only": policy.container.read_only,
            "auto_remove": policy.container.auto_remove,
            "entrypoint": None if policy.container.entrypoint is None else list(policy.container.entrypoint),
            "ports": list(policy.container.ports),
            "pull": policy.container.pull,
        },
    }


def _mount(mount: Mount) -> dict[str, Any]:
    written: dict[str, Any] = {"path": mount.path}
    if mount.source is not None:
        written["source"] = mount.source
    written["rw"] = mount.rw
    return {**written, "cow": True} if mount.cow else written


def _globs(policy: Policy) -> list[str]:
    """Patterns add up, so that what `unrestricted` has and the policy has not is taken back."""
    if not policy.dangerous:
        return list(policy.fs.deny_globs)
    inherited = _inherited_globs()
    if policy.fs.deny_globs[: len(inherited)] == inherited:
        return list(policy.fs.deny_globs)
    return [*(f"!{pattern}" for pattern in inherited), *policy.fs.deny_globs]


def _inherited_globs() -> tuple[str, ...]:
    from belljar.policy.presets import preset_layer

    patterns: tuple[str, ...] = ()
    name = "unrestricted"
    while name:
        name, layer = preset_layer(name)
        own = layer["fs.deny_globs"].value if "fs.deny_globs" in layer else ()
        patterns = (*(item.value for item in own), *patterns)
    return patterns


def _host(rule: HostRule) -> str | dict[str, Any]:
    written: dict[str, Any] = {"host": rule.host, "ports": list(rule.ports)}
    if rule == HostRule(rule.host):
        return rule.host
    for name in ("methods", "paths"):
        if value := getattr(rule, name):
            written[name] = list(value)
    for name in ("credential", "rate"):
        if (value := getattr(rule, name)) is not None:
            written[name] = value
    return written


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value
