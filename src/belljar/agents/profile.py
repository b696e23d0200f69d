"""What an agent may reach: its profile, which is a policy file, cut down to the keys that are there on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any

from belljar.agents.endpoint import moved
from belljar.errors import PolicyError, PrerequisiteError
from belljar.policy.nodes import Node
from belljar.policy.problems import Problems
from belljar.policy.reading import read_file

_DIRECTORY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "profiles")
NONE = "none"


def profile_names() -> tuple[str, ...]:
    """Every profile that comes with belljar."""
    return tuple(sorted(name.removesuffix(".yaml") for name in os.listdir(_DIRECTORY) if name.endswith(".yaml")))


def profile_for(program: str) -> str:
    """The profile of a program by its name; `none` for one that nobody wrote a profile for."""
    name = os.path.basename(program)
    return name if name in profile_names() else NONE


def is_file(name: str) -> bool:
    """Whether it is the path of a profile, and not the name of one that comes with belljar."""
    return name not in profile_names() and ("/" in name or name.endswith((".yaml", ".yml")))


def read_profile(name: str) -> dict[str, Any]:
    """The profile called `name`, or the file at that path, as a mapping. Raises PolicyError."""
    known = name in profile_names()
    if not known and not is_file(name):
        raise PolicyError(
            f"there is no profile {name!a}",
            hint=f"one of {', '.join(profile_names())}, or a policy file: ./{name}.yaml",
        )
    mapping = _plain(_own_profile(name) if known else _read(name))
    if not isinstance(mapping, dict) or "extends" in mapping:
        raise PolicyError(f"{name}: a profile is a policy that is laid over another: it extends none")
    return mapping


@cache
def _own_profile(name: str) -> Node:
    return _read(os.path.join(_DIRECTORY, f"{name}.yaml"))


def _read(path: str) -> Node:
    problems = Problems()
    node = read_file(path, problems)
    problems.check()
    return node


def _plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {name: _plain(item) for name, item in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(item) for item in node.value]
    return node.value


def with_keys_of(environ: Mapping[str, str], name: str, profile: dict[str, Any]) -> dict[str, Any]:
    """The profile with the credentials that can be had, one for each host, at the endpoints that `environ` names.

    Raises:
        PrerequisiteError: none of them can be had, and without one the agent can't ask its model.

    """
    net = profile.get("net", {})
    credentials = profile.get("credentials", {})
    rules: list[dict[str, Any]] = []
    for rule in [{"host": rule} if isinstance(rule, str) else rule for rule in net.get("allowlist", [])]:
        wanted = rule.get("credential")
        taken = any(other["host"] == rule["host"] and other.get("credential") for other in rules)
        if wanted is None or (not taken and _can_be_had(credentials.get(wanted, {}), environ)):
            rules.append(rule)
    used = {rule["credential"]: credentials[rule["credential"]] for rule in rules if rule.get("credential")}
    if credentials and not used:
        variables = [spec["from"].removeprefix("env:") for spec in credentials.values()]
        login = ", or log in: claude" if name == "claude" else ""
        raise PrerequisiteError(
            f"no key for {name}: none of {', '.join(variables)} is set", hint=f"export {variables[0]}=…{login}"
        )
    places = [moved(rule, environ) for rule in rules]
    env = profile.get("env", {})
    urls = {variable: url for place in places for variable, url in place.variables.items()}
    return {
        **profile,
        "net": {**net, "allowlist": [place.rule for place in places]},
        "credentials": used,
        "env": {**env, "set": {**env.get("set", {}), **urls}},
    }


def _can_be_had(spec: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    source = str(spec.get("from", ""))
    return not source.startswith("env:") or bool(environ.get(source.removeprefix("env:")))
