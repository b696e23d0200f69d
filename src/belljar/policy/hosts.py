"""The allowlist's words: names of hosts, URL paths, rates. Pure, and shared by the validator and the ceiling."""

from __future__ import annotations

import re

from belljar.policy.models import HostRule

_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_RATE = re.compile(r"([1-9][0-9]{0,8})/(s|m|h)\Z")
_RATE_SECONDS = {"s": 1, "m": 60, "h": 3600}
RATE_PATTERN = r"^[1-9][0-9]{0,8}/[smh]$"


class HostError(ValueError):
    """The word can't be used; the text says what was wanted and what was found."""


def host_name(text: str) -> str:
    """A name, `*.name`, `*` or an address, in the one form that it is compared in.

    Raises:
        HostError: when it is none of these.

    """
    name = text.lower()
    if name == "*" or _is_address(name):
        return name
    name = name.removesuffix(".")
    if "://" in name:
        raise HostError(f"wanted a host without its scheme, found {text[:60]!a}")
    if "/" in name:
        raise HostError(f"wanted a host alone, found {text[:60]!a}: write its paths under 'paths'")
    if re.search(r":[0-9]*\Z", name):
        raise HostError(f"wanted a host without its port, found {text[:60]!a}: write {{host: …, ports: […]}}")
    if not name.isascii():
        raise HostError(f"wanted a name in ASCII, found {text[:60]!a}: write its xn-- form")
    labels = name.removeprefix("*.").split(".")
    if len(name) > 253 or not all(map(_LABEL.match, labels)) or (name.startswith("*.") and len(labels) < 2):
        raise HostError(f"wanted a host such as example.com or *.example.com, found {text[:60]!a}")
    return name


def _is_address(name: str) -> bool:
    if not re.fullmatch(r"[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*", name):
        return False
    import ipaddress  # only for who writes an address

    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def url_path(text: str) -> str:
    """A glob of URL paths.

    Raises:
        HostError: when it could not match, or could match what it does not show.

    """
    if not text.startswith("/") or any(part in (".", "..") for part in text.split("/")) or len(text) > 1024:
        raise HostError(f"wanted a path that starts with '/', without '..', found {text[:60]!a}")
    if not text.isascii() or not text.isprintable() or set(text) & set(" ?#"):
        raise HostError(f"wanted a path as it is sent, percent-encoded, found {text[:60]!a}")
    return text


def per_second(rate: str) -> float:
    """Requests a second of `10/s`, `600/m`, `1000/h`.

    Raises:
        HostError: when it is not a rate.

    """
    if not (match := _RATE.match(rate)):
        raise HostError(f"wanted a rate such as 10/s, 600/m or 1000/h, found {rate[:60]!a}")
    return int(match[1]) / _RATE_SECONDS[match[2]]


def covers(outer: HostRule, inner: HostRule) -> bool:
    """Whether everything that `inner` allows is allowed by `outer` too."""
    return (
        _covers_host(outer.host, inner.host)
        and set(inner.ports) <= set(outer.ports)
        and _covers_words(outer.methods, inner.methods)
        and (not outer.paths or (bool(inner.paths) and all(_covers_path(outer, path) for path in inner.paths)))
        # A bound credential also keeps other people's credentials off the host, so leaving it out is a grant.
        and outer.credential in (None, inner.credential)
        and _covers_rate(outer.rate, inner.rate)
    )


def _covers_host(outer: str, inner: str) -> bool:
    if outer in (inner, "*"):
        return True
    return outer.startswith("*.") and not _is_address(inner) and inner.removeprefix("*").endswith(outer[1:])


def _covers_words(outer: tuple[str, ...], inner: tuple[str, ...]) -> bool:
    return not outer or (bool(inner) and set(inner) <= set(outer))


def _covers_path(outer: HostRule, path: str) -> bool:
    return any(
        allowed == path
        or (allowed.endswith("/**") and not set(allowed[:-3]) & set("*?[{") and path.startswith(allowed[:-2]))
        for allowed in outer.paths
    )


def _covers_rate(outer: str | None, inner: str | None) -> bool:
    return outer is None or (inner is not None and per_second(inner) <= per_second(outer))
