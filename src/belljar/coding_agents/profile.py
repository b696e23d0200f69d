"""What an agent may reach: its profile, which is a policy file, cut down to the keys that are there on this host."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from belljar.errors import PolicyError, PrerequisiteError, UsageError
from belljar.policy.load.reading import read_file
from belljar.policy.nodes import Node
from belljar.policy.problems import Problems

# Where an agent's model is: the rule of a profile, moved to the host that a variable such as ANTHROPIC_BASE_URL names.
#
# A model on this host's own loopback address has another name in the jar, where `localhost` is the jar itself.
LOCAL_MODEL = "model.belljar.internal"
"""The name by which a jar knows a model on the host's loopback address."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class ModelVendor(NamedTuple):
    """Where a vendor's programs look for another endpoint, and how far its URL reaches into the paths of a profile."""

    variable: str
    path: str = ""


_VENDORS = {
    "anthropic": ModelVendor("ANTHROPIC_BASE_URL"),
    "openai": ModelVendor("OPENAI_BASE_URL", "/v1"),
    "gemini": ModelVendor("GOOGLE_GEMINI_BASE_URL"),
}
"""By the name of the credential, up to its first dash."""


class ModelPlace(NamedTuple):
    """A rule of the allowlist, and the variables by which the agent finds the host."""

    rule: dict[str, Any]
    variables: dict[str, str]


def moved(rule: Mapping[str, Any], environ: Mapping[str, str]) -> ModelPlace:
    """The rule for the endpoint that `environ` names, or as it is. Raises UsageError for what is no URL."""
    vendor = _VENDORS.get(str(rule.get("credential", "")).partition("-")[0])
    if vendor is None or not (url := environ.get(vendor.variable)):
        return ModelPlace(dict(rule), {})
    host, port, scheme, base = _parts(vendor.variable, url)
    paths = [base + path.removeprefix(vendor.path) for path in rule.get("paths", [])]
    found = {**rule, "host": host, "ports": [port], **({"paths": paths} if paths else {})}
    if host in _LOOPBACK:
        address = f"[{host}]" if ":" in host else host.replace("localhost", "127.0.0.1")
        found |= {"host": LOCAL_MODEL, "addresses": [f"{address}:{port}"]}
    shown = f"[{found['host']}]" if ":" in found["host"] else found["host"]
    return ModelPlace(found, {vendor.variable: f"{scheme}://{shown}:{port}{base}"})


def _parts(variable: str, url: str) -> tuple[str, int, str, str]:
    """Host, port, scheme and path of a URL that a user wrote."""
    try:
        split = urlsplit(url)
        host, port = split.hostname, split.port
    except ValueError:
        host, port = None, None
    if not host or split.scheme not in ("http", "https") or split.username or split.query:
        raise UsageError(f"{variable}: wanted a URL such as https://gateway.example.com, found {url[:60]!a}")
    return host, port or (443 if split.scheme == "https" else 80), split.scheme, split.path.rstrip("/")


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
