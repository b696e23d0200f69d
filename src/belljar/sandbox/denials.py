"""From what a backend observed to a denial that a person can act on. Asks the host only whether a file exists."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from belljar.backends.contract import End, Observation
from belljar.policy.globs import DenyGlobs
from belljar.policy.models import Policy
from belljar.sandbox.result import Denial

_MOST = 100
_SYSTEM = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/var/", "/boot/")
_SHOWN = ("/usr/", "/lib", "/bin/", "/sbin/")


def explain(policy: Policy, end: End) -> tuple[Denial, ...]:
    """The denials of a run, each with its rule and the smallest change that would allow it."""
    found = [denial for seen in end.observations for denial in _explain_one(policy, seen)]
    found += _limits(policy, end)
    return tuple(found[:_MOST])


def _explain_one(policy: Policy, seen: Observation) -> Iterator[Denial]:
    if seen.kind == "syscall":
        yield Denial(
            "syscall",
            seen.target,
            "syscalls",
            "built in",
            "no policy allows this system call: it reaches beyond the jar",
            seen.count,
        )
    elif seen.kind in ("network", "name"):
        yield _network(policy, seen)
    elif seen.kind == "file":
        yield from _file(policy, seen)


def _where(policy: Policy, key: str) -> str:
    return str(policy.origin(key) or "default")


def _network(policy: Policy, seen: Observation) -> Denial:
    host, _, port = seen.target.rpartition(":")
    target = f"connect {seen.target}" if seen.kind == "network" else "look up a host name"
    if policy.net.enabled:  # else the proxy would have seen it
        allow = "here hosts are reached by name, or through the proxy that HTTP_PROXY names: addresses have no route"
        return Denial("network", target, "net.allowlist", _where(policy, "net.allowlist"), allow, seen.count)
    allow = "net.enabled: true, with the host in net.allowlist"
    if seen.kind == "network":
        allow = f"net.enabled: true, net.allowlist: [{{host: {host.strip('[]')!r}, ports: [{port}]}}]"
    return Denial("network", target, "net.enabled", _where(policy, "net.enabled"), allow, seen.count)


def _file(policy: Policy, seen: Observation) -> Iterator[Denial]:
    _verb, _, path = seen.target.partition(" ")
    if seen.result == "EROFS":
        yield _read_only(policy, seen, path)
    elif seen.result in ("ENOENT", "EACCES", "ENOTDIR", "ELOOP"):
        yield from _hidden(policy, seen, path)


def _read_only(policy: Policy, seen: Observation, path: str) -> Denial:
    for index, mount in enumerate(policy.fs.mounts):
        if path == mount.path or path.startswith(f"{mount.path}/"):
            key = f"fs.mounts[{index}]"
            allow = f"set rw: true for the mount {mount.path}"
            return Denial("file", seen.target, key, _where(policy, key), allow, seen.count)
    allow = f"write beneath {policy.fs.workdir} or /tmp"
    if not path.startswith(_SYSTEM) and path.count("/") > 1:
        allow += f", or add to fs.mounts: {{path: {os.path.dirname(path)}, rw: true}}"
    return Denial("file", seen.target, "fs.mounts", _where(policy, "fs.mounts"), allow, seen.count)


def _hidden(policy: Policy, seen: Observation, path: str) -> Iterator[Denial]:
    """A file that the host has and the jar does not show. A file that nobody has is no denial, only a missing file."""
    for index, mount in enumerate(policy.fs.mounts):
        if mount.source and (path == mount.path or path.startswith(f"{mount.path}/")):
            host_path = mount.source + path[len(mount.path) :]
            rule = DenyGlobs(policy.fs.deny_globs).within(mount.source, mount.path).denies(host_path, path)
            if rule is not None and os.path.lexists(host_path):
                yield _denied_by_glob(policy, seen, rule, mounted=True)
            elif os.path.lexists(host_path) and seen.result == "EACCES":
                key = f"fs.mounts[{index}]"
                yield Denial(
                    "file", seen.target, key, _where(policy, key), f"chmod the file: {seen.result}", seen.count
                )
            return
    if path.startswith(_SHOWN) or not os.path.lexists(path):  # what is missing in /usr is missing there outside too
        return
    rule = DenyGlobs(policy.fs.deny_globs).match(path)
    if rule is not None:
        yield _denied_by_glob(policy, seen, rule, mounted=False)
        return
    top = path if os.path.isdir(path) else os.path.dirname(path)
    inside = f"/data/{os.path.basename(top)}" if top.startswith("/tmp") else top  # /tmp is each run's own
    allow = f"add to fs.mounts: {{path: {inside}, source: {top}}}"
    if path.startswith(_SYSTEM):
        allow = "no policy shows this part of the host's system"
    yield Denial("file", seen.target, "fs.mounts", _where(policy, "fs.mounts"), allow, seen.count)


def _denied_by_glob(policy: Policy, seen: Observation, index: int, *, mounted: bool) -> Denial:
    key = f"fs.deny_globs[{index}]"
    pattern = policy.fs.deny_globs[index]
    allow = f"take the pattern back: fs.deny_globs: ['!{pattern}']"
    if not mounted:
        allow += ", and mount the file's directory"
    return Denial("file", seen.target, f"{key} {pattern}", _where(policy, key), allow, seen.count)


def _limits(policy: Policy, end: End) -> Iterable[Denial]:
    if end.pids_refused:
        yield _limit(policy, "fork", "proc.pids", policy.proc.pids * 2, end.pids_refused)
    if end.ended_by == "timeout":
        yield _limit(policy, "run on", "proc.timeout_ms", round(policy.proc.timeout_seconds * 2000))
    if end.ended_by == "oom" or end.oom_kills:
        yield _limit(policy, "use more memory", "proc.mem_mb", _double(policy.proc.mem_bytes))
    if end.ended_by == "output":
        yield _limit(policy, "write more output", "proc.output_mb", _double(policy.proc.output_bytes))


def _double(size: int) -> int | str:
    """Twice a size as the policy file has it: in megabytes, or in kilobytes if it is small."""
    return size * 2 >> 20 if size >= 1 << 20 else f"{size * 2 >> 10}k"


def _limit(policy: Policy, target: str, key: str, enough: int | str, count: int = 1) -> Denial:
    return Denial("limit", target, key, _where(policy, key), f"--set {key}={enough}", count)
