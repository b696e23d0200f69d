"""Where an agent's model is: the rule of a profile, moved to the host that a variable such as ANTHROPIC_BASE_URL names.

A model on this host's own loopback address has another name in the jar, where `localhost` is the jar itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from belljar.errors import UsageError

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
