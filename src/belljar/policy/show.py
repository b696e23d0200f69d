"""A policy for people: as YAML, with the place of each value if asked, and the difference of two."""

from __future__ import annotations

import math
import re
from typing import Any, Literal, NamedTuple, TypeAlias

from belljar.policy.keys.hosts import covers
from belljar.policy.keys.table import KEYS, Bound
from belljar.policy.keys.units import plain
from belljar.policy.mapping import to_mapping
from belljar.policy.models import HostRule, Mount, Policy

_PLAIN = re.compile(r"[A-Za-z/.][A-Za-z0-9_./+-]*\Z")
Direction: TypeAlias = Literal["tighter", "looser", "changed"]


class KeyChange(NamedTuple):
    """One key that two policies have differently; None where one of them has nothing."""

    key: str
    old: Any
    new: Any
    direction: Direction


def to_yaml(policy: Policy, *, origins: bool = False) -> str:
    """The policy as a file that stands alone; with `origins`, a comment says where each value was written."""
    lines: list[str] = []
    for name, value in to_mapping(policy).items():
        _entry(lines, name, value, depth=0, path=name, policy=policy if origins else None)
    return "\n".join(lines) + "\n"


def _entry(lines: list[str], name: str, value: Any, *, depth: int, path: str, policy: Policy | None) -> None:
    start = f"{'  ' * depth}{name}:"
    if isinstance(value, dict) and value and depth == 0:
        lines.append(start)
        for inner, item in value.items():
            _entry(lines, inner, item, depth=depth + 1, path=f"{path}.{inner}", policy=policy)
    elif isinstance(value, list) and value:
        lines.append(start)
        for at, item in enumerate(value):
            lines.append(f"{'  ' * (depth + 1)}- {flow(item)}{_comment(policy, f'{path}[{at}]')}")
    elif isinstance(value, dict) and value:
        lines.append(start)
        for inner, item in value.items():
            lines.append(f"{'  ' * (depth + 1)}{flow(inner)}: {flow(item)}{_comment(policy, f'{path}.{inner}')}")
    else:
        lines.append(f"{start} {flow(value)}{_comment(policy, path)}")


def _comment(policy: Policy | None, path: str) -> str:
    origin = policy.origin(path) if policy and path not in ("version", "extends") else None
    return f"  # {origin}" if origin else ""


def flow(value: Any) -> str:
    """A value on one line of YAML."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow(name)}: {flow(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow, value)) + "]"
    return _scalar(str(value))


def _scalar(text: str) -> str:
    if _PLAIN.match(text) and plain(text) == text:
        return text
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    import json  # JSON's escapes are YAML's

    return json.dumps(text)


def diff(old: Policy, new: Policy) -> list[KeyChange]:
    """What `new` has otherwise than `old`, key by key, and which way it goes."""
    before, after = _flat(old), _flat(new)
    return [
        KeyChange(key, before.get(key), after.get(key), _direction(key, old, new, before, after))
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]


def _flat(policy: Policy) -> dict[str, Any]:
    """Every key with its value; the items of lists that merge one by one have a key each."""
    flat: dict[str, Any] = {}
    for section, value in to_mapping(policy).items():
        if section in ("version", "extends"):
            continue
        inner = value if isinstance(value, dict) else {"": value}
        flat.update({f"{section}.{name}" if name else section: item for name, item in inner.items()})
    mounts, hosts = flat.pop("fs.mounts"), flat.pop("net.allowlist")
    for rule in flat.pop("net.denylist"):
        flat[f"net.denylist[{flow(rule)}]"] = rule
    flat.update({f"fs.mounts[{mount['path']}]": mount for mount in mounts})
    flat.update({f"fs.deny_globs[{glob}]": glob for glob in policy.fs.deny_globs})
    del flat["fs.deny_globs"]
    for host in hosts:
        name = host if isinstance(host, str) else host["host"]
        flat[f"net.allowlist[{name}]"] = [*flat.get(f"net.allowlist[{name}]", []), host]
    flat.update({f"env.set.{name}": text for name, text in flat.pop("env.set").items()})
    return flat


def _direction(key: str, old: Policy, new: Policy, before: dict[str, Any], after: dict[str, Any]) -> Direction:
    base = key.partition("[")[0]
    bound = KEYS[base].bound if base in KEYS else Bound.NONE
    if bound is Bound.KEPT or base == "net.denylist":
        return "tighter" if key in after else "looser"
    if bound is Bound.ADDED:
        return _by_set(set(after[key]), set(before[key]))
    if bound is Bound.MOUNTS:
        path = key[len("fs.mounts[") : -1]
        return _between(_reach(old.fs.mounts, path), _reach(new.fs.mounts, path))
    if bound is Bound.COVERED:
        return _by_cover(_rules(old, key), _rules(new, key))
    if bound is Bound.MOST:
        return _between(_measure(old, key), _measure(new, key))
    if bound in (Bound.OFF, Bound.ON):
        more = after[key] if bound is Bound.OFF else before[key]
        return "looser" if more else "tighter"
    if bound is Bound.ORDER:
        return _between(KEYS[base].choices.index(before[key]), KEYS[base].choices.index(after[key]))
    if bound is Bound.BACKEND:
        return _between(before[key] == "unconfined", after[key] == "unconfined")
    if bound is Bound.DEGRADED:
        return _by_set(_accepted(before[key]), _accepted(after[key]))
    if bound is Bound.SUBSET and base != "env.set":
        return _by_set(set(before[key]), set(after[key]))
    return "changed"


def _between(old: float | None, new: float | None) -> Direction:
    if old is None or new is None or old == new:
        return "changed"
    return "looser" if new > old else "tighter"


def _by_set(old: set[str], new: set[str]) -> Direction:
    if old == new:
        return "changed"
    return "looser" if old < new else "tighter" if new < old else "changed"


def _accepted(value: str | list[str]) -> set[str]:
    if value == "allow":
        return {key for key in KEYS if "." in key}
    return set() if value == "refuse" else set(value)


def _reach(mounts: tuple[Mount, ...], path: str) -> int:
    """How far a mount reaches into the host: not there, empty, read, copy on write, live."""
    mount = next((mount for mount in mounts if mount.path == path), None)
    if mount is None or mount.source is None:
        return 0 if mount is None else 1
    return 2 + mount.rw + (mount.rw and not mount.cow)


def _rules(policy: Policy, key: str) -> list[HostRule]:
    name = key[len("net.allowlist[") : -1]
    return [rule for rule in policy.net.allowlist if rule.host == name]


def _by_cover(old: list[HostRule], new: list[HostRule]) -> Direction:
    wider = all(any(covers(rule, inner) for rule in new) for inner in old)
    narrower = all(any(covers(rule, inner) for rule in old) for inner in new)
    return "changed" if wider == narrower else "looser" if wider else "tighter"


def _measure(policy: Policy, key: str) -> float:
    section, _, name = key.partition(".")
    names = {"size_mb": "size_bytes", "mem_mb": "mem_bytes", "timeout_ms": "timeout_seconds"}
    names |= {"file_size_mb": "file_size_bytes", "output_mb": "output_bytes", "budget_mb": "budget_bytes"}
    names |= {"idle_s": "idle_seconds", "max_age_s": "max_age_seconds", "keep_s": "keep_seconds"}
    value = getattr(getattr(policy, section), names.get(name, name))
    return math.inf if value is None else float(value)


__all__ = ["KeyChange", "diff", "flow", "to_mapping", "to_yaml"]
