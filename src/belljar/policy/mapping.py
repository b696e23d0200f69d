"""A resolved policy as the plain mapping that its file would hold: the file's names and units."""

from __future__ import annotations

from belljar.policy.models import Credential, DenyRule, HostRule, Mount, NetPolicy, Policy

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any


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
            "size_mb": _size(policy.fs.size_bytes),
            "inodes": policy.fs.inodes,
            "workdir": policy.fs.workdir,
            "snapshot": policy.fs.snapshot,
        },
        "net": _net(policy.net),
        "proc": {
            "uid": policy.proc.uid,
            "cpu_quota": _number(policy.proc.cpu_quota),
            "mem_mb": _size(policy.proc.mem_bytes),
            "timeout_ms": round(policy.proc.timeout_seconds * 1000),
            "pids": policy.proc.pids,
            "open_files": policy.proc.open_files,
            "file_size_mb": _size(policy.proc.file_size_bytes),
            "output_mb": _size(policy.proc.output_bytes),
            "host_info": policy.proc.host_info,
        },
        "env": {"set": dict(policy.env.set), "pass": list(policy.env.pass_)},
        "python": {"venv": policy.python.venv, "interpreter": policy.python.interpreter},
        "logging": {
            "sample_ratio": _number(policy.logging.sample_ratio),
            "redact_pii": policy.logging.redact_pii,
            "redact": list(policy.logging.redact),
            "redact_in": list(policy.logging.redact_in),
            "let_through": list(policy.logging.let_through),
            "quarantine": policy.logging.quarantine,
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
        "session": {
            "idle_s": _number(policy.session.idle_seconds),
            "max_age_s": _number(policy.session.max_age_seconds),
            "max_sessions": policy.session.max_sessions,
            "keep_s": _number(policy.session.keep_seconds),
        },
        "agents": {"unsandboxed": policy.agents.unsandboxed},
        "credentials": {name: _credential(item) for name, item in policy.credentials.items()},
    }


_MB = 1024 * 1024


def _net(net: NetPolicy) -> dict[str, Any]:
    return {
        "enabled": net.enabled,
        "allowlist": [_host(rule) for rule in net.allowlist],
        "denylist": [_denied(rule) for rule in net.denylist],
        "allow_builtin": list(net.allow_builtin),
        "host_ports": list(net.host_ports),
        "publish": list(net.publish),
        "strip_headers": list(net.strip_headers),
        "budget_mb": None if net.budget_bytes is None else _size(net.budget_bytes),
        "max_name_length": net.max_name_length,
        "max_name_entropy": _number(net.max_name_entropy),
        "max_names": net.max_names,
        "ca_file": net.ca_file,
        "canary_files": list(net.canary_files),
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
    for name in ("methods", "paths", "query", "addresses"):
        if value := getattr(rule, name):
            written[name] = list(value)
    for name in ("credential", "sign", "rate"):
        if (value := getattr(rule, name)) is not None:
            written[name] = value
    if rule.budget_bytes is not None:
        written["budget_mb"] = _size(rule.budget_bytes)
    if rule.foreign_credentials:
        written["foreign_credentials"] = True
    if rule.get_body:
        written["get_body"] = True
    return written


def _denied(rule: DenyRule) -> str | dict[str, Any]:
    lists = {name: list(value) for name in ("ports", "methods", "paths", "query") if (value := getattr(rule, name))}
    return {"host": rule.host, **lists} if lists else rule.host


def _credential(item: Credential) -> dict[str, Any]:
    """Only what was written, or means the same: a key that signs has no header."""
    written: dict[str, Any] = {"from": item.source} if item.source else {"command": list(item.command)}
    if item.kind == "header":
        written |= {"header": item.header, "format": item.format}
    for name in ("query", "placeholder", "env", "algorithm", "key_id"):
        if (value := getattr(item, name)) is not None:
            written[name] = value
    for name in ("hosts", "methods", "paths"):
        if value := getattr(item, name):
            written[name] = list(value)
    if item.kind != "signature":
        written["reflects"] = item.reflects
    return {**written, "on_foreign_credential": item.on_foreign_credential}


def _number(value: float) -> int | float:
    return int(value) if value == int(value) else value


def _size(count: int) -> int | str:
    """The shortest way to write `count` bytes in a key whose unit is MB, exactly."""
    if count % _MB == 0:
        return count // _MB
    return f"{count // 1024}k" if count % 1024 == 0 else f"{count}b"
