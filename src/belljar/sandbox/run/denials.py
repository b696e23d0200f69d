"""From what a backend observed to a denial that a person can act on. Asks the host only whether a file exists."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence

from belljar.backends.contract import End, Observation
from belljar.policy import paths
from belljar.policy.globs import DenyGlobs
from belljar.policy.load.resolve import MANAGED_PATH
from belljar.policy.models import Mount, Policy
from belljar.sandbox.record.result import Denial

_MOST = 100
_SYSTEM = ("/usr/", "/lib", "/bin/", "/sbin/", "/etc/", "/proc/", "/sys/", "/dev/", "/run/", "/var/", "/boot/")
_SHOWN = ("/usr/", "/lib", "/bin/", "/sbin/")
_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-")
"""Characters of a path that YAML and a shell take as they are."""


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
    # The name is not known: without a network nothing reads it.
    allow = "--set net.enabled=true --set 'net.allowlist=[pypi.org]', with the host that it needs instead of pypi.org"
    if seen.kind == "network":
        rule = {"host": host.strip("[]"), "ports": [int(port)]}
        allow = f"--set net.enabled=true {_setting('net.allowlist', [rule])}"
    return Denial("network", target, "net.enabled", _where(policy, "net.enabled"), allow, seen.count)


def _file(policy: Policy, seen: Observation) -> Iterator[Denial]:
    _verb, _, path = seen.target.partition(" ")
    if seen.result == "EROFS":
        yield _read_only(policy, seen, path)
    elif seen.result in ("ENOENT", "EACCES", "ENOTDIR", "ELOOP"):
        yield from _hidden(policy, seen, path)


def _read_only(policy: Policy, seen: Observation, path: str) -> Denial:
    for index, mount in enumerate(policy.fs.mounts):
        if paths.beneath(path, mount.path):
            key = f"fs.mounts[{index}]"
            on_a_copy = {"cow": True} if mount.source else {}
            allow = _setting("fs.mounts", [{**_written(mount), "rw": True, **on_a_copy}])
            return Denial("file", seen.target, key, _where(policy, key), allow, seen.count)
    allow = f"write beneath {policy.fs.workdir} or /tmp"
    directory = os.path.dirname(path)
    if _can_be_mounted(directory):
        allow += f", or {_setting('fs.mounts', [{'path': directory, 'rw': True}])}"
    return Denial("file", seen.target, "fs.mounts", _where(policy, "fs.mounts"), allow, seen.count)


def _hidden(policy: Policy, seen: Observation, path: str) -> Iterator[Denial]:
    """A file that the host has and the jar does not show. A file that nobody has is no denial, only a missing file."""
    for index, mount in enumerate(policy.fs.mounts):
        if mount.source and paths.beneath(path, mount.path):
            host_path = mount.source + path[len(mount.path) :]
            if os.path.lexists(host_path):
                yield from _hidden_in_mount(policy, seen, index, host_path, path)
            return
    if path.startswith(_SHOWN) or not os.path.lexists(path):  # what is missing in /usr is missing there outside too
        return
    yield _not_mounted(policy, seen, path)


def _hidden_in_mount(policy: Policy, seen: Observation, index: int, host_path: str, path: str) -> Iterator[Denial]:
    mount = policy.fs.mounts[index]
    if rules := _denying(policy, mount, host_path, path):
        allow = _taken_back(policy, rules)
        yield Denial("file", seen.target, _rules(policy, rules), _glob_place(policy, rules), allow, seen.count)
    elif seen.result == "EACCES":
        key = f"fs.mounts[{index}]"
        allow = f"chmod a+r {shlex.quote(host_path)}"
        yield Denial("file", seen.target, key, _where(policy, key), allow, seen.count)


def _not_mounted(policy: Policy, seen: Observation, path: str) -> Denial:
    """The advice mounts the file's directory and takes back every pattern that would still hide it there."""
    top = path if os.path.isdir(path) else os.path.dirname(path)
    name = os.path.basename(top) or "data"
    inside = top if _can_be_mounted(top) else f"/data/{name}"  # /tmp, for one, is each run's own
    mount = Mount(inside, top)
    moved = inside + path[len(top) :]
    rules = _denying(policy, mount, path, moved)
    first = DenyGlobs(policy.fs.deny_globs).match(path)
    rule, where = "fs.mounts", _where(policy, "fs.mounts")
    if rules or first is not None:
        named = rules or [first or 0]
        rule, where = _rules(policy, named), _glob_place(policy, named)
    if path.startswith(_SYSTEM):
        allow = "no policy shows this part of the host's system"
    elif _holds_a_home(top):
        allow = f"copy it into the workspace: a mount of {top} would show every file in it"
    else:
        allow = " ".join((*([_taken_back(policy, rules)] if rules else ()), _setting("fs.mounts", [_written(mount)])))
        if inside != top:
            allow += f", and open {moved} instead"
    return Denial("file", seen.target, rule, where, allow, seen.count)


def _denying(policy: Policy, mount: Mount, host_path: str, path: str) -> list[int]:
    """Return the patterns that deny a file of the mount, by index: all of them, since each one is enough."""
    return [
        index
        for index, pattern in enumerate(policy.fs.deny_globs)
        if DenyGlobs((pattern,)).within(mount.source, mount.path).denies(host_path, path) is not None
    ]


def _rules(policy: Policy, indexes: Sequence[int]) -> str:
    return " and ".join(f"fs.deny_globs[{index}] {policy.fs.deny_globs[index]}" for index in indexes)


def _glob_place(policy: Policy, indexes: Sequence[int]) -> str:
    return ", ".join(dict.fromkeys(_where(policy, f"fs.deny_globs[{index}]") for index in indexes))


def _taken_back(policy: Policy, indexes: Sequence[int]) -> str:
    if any(_where(policy, f"fs.deny_globs[{index}]").startswith(MANAGED_PATH) for index in indexes):
        return f"ask whoever manages {MANAGED_PATH}: no other policy can take this pattern back."
    return _setting("fs.deny_globs", [f"!{policy.fs.deny_globs[index]}" for index in indexes])


def _can_be_mounted(path: str) -> bool:
    try:
        return paths.mount_path(path) == path
    except paths.PathError:
        return False


def _holds_a_home(path: str) -> bool:
    """Return True if a mount of `path` would show a whole home directory."""
    of_users = ("/home", "/Users")
    return path in ("/root", *of_users) or os.path.dirname(path) in of_users or paths.beneath(_home(), path)


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))


def _written(mount: Mount) -> dict[str, object]:
    """Return the mount as the policy file has it."""
    return {"path": mount.path, **({"source": mount.source} if mount.source else {})}


def _setting(key: str, value: object) -> str:
    """Return `--set KEY=VALUE`, for a shell."""
    return f"--set {shlex.quote(f'{key}={_yaml(value)}')}"


def _yaml(value: object) -> str:
    """Return the value on one line. Text is written bare where YAML reads it as the same text."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{name}: {_yaml(item)}' for name, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, str) and value.startswith("/") and not set(value) - _BARE:
        return value
    return json.dumps(value)


def _limits(policy: Policy, end: End) -> Iterable[Denial]:
    if end.pids_refused:
        yield _limit(policy, "fork", "proc.pids", policy.proc.pids * 2, end.pids_refused)
    if end.ended_by == "timeout":
        yield _limit(policy, "run on", "proc.timeout_ms", round(policy.proc.timeout_seconds * 2000))
    if end.ended_by == "oom" or end.oom_kills:
        yield _limit(policy, "use more memory", "proc.mem_mb", _double(policy.proc.mem_bytes))
    if end.signal == signal.SIGXFSZ:
        yield _limit(policy, "write a larger file", "proc.file_size_mb", _double(policy.proc.file_size_bytes))
    if end.ended_by == "output":
        yield _limit(policy, "write more output", "proc.output_mb", _double(policy.proc.output_bytes))


def _double(size: int) -> int | str:
    """Twice a size as the policy file has it: in megabytes, or in kilobytes if it is small."""
    return size * 2 >> 20 if size >= 1 << 20 else f"{size * 2 >> 10}k"


def _limit(policy: Policy, target: str, key: str, enough: int | str, count: int = 1) -> Denial:
    where = _where(policy, key)
    allow = f"--timeout {enough}ms" if where == "--timeout" else f"--set {key}={enough}"  # --timeout beats any --set
    return Denial("limit", target, key, where, allow, count)
