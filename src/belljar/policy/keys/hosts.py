"""The allowlist's words: names of hosts, URL paths, rates. Pure, and shared by the validator and the ceiling."""

from __future__ import annotations

from belljar.policy.builtin import HOST_NAME
from belljar.policy.keys.patterns import Pattern
from belljar.policy.models import HostRule

_LABEL = Pattern(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_PORT_AT_THE_END = Pattern(r"(?s:.*):[0-9]*\Z")
_LIKE_AN_ADDRESS = Pattern(r"(?:[0-9.]+|[0-9a-f:.]*:[0-9a-f:.]*)\Z")
_PLAIN_PATH = Pattern(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*/?\Z")
_NUMBER = Pattern(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_WITH_PORT = Pattern(r"(\[[^\]]*\]|[0-9.]+):([1-9][0-9]{0,4})\Z")
_RATE = Pattern(r"([1-9][0-9]{0,8})/(s|m|h)\Z")
_RATE_SECONDS = {"s": 1, "m": 60, "h": 3600}
_JAR_ITSELF = ("localhost", "localhost.localdomain", "ip6-localhost")
RATE_PATTERN = r"^[1-9][0-9]{0,8}/[smh]$"


class HostError(ValueError):
    """The word can't be used; the text says what was wanted and what was found."""


def host_name(text: str) -> str:
    """A name, `*.name`, `*` or an address, in the one form that it is compared in.

    Raises:
        HostError: when it is none of these.

    """
    name = text.lower()
    if name == "*":
        return name
    if _is_address(name):
        return _address(name)
    name = name.removesuffix(".")
    if "://" in name:
        raise HostError(f"wanted a host without its scheme, found {text[:60]!a}{_without_scheme(text)}")
    if "/" in name:
        raise HostError(f"wanted a host alone, found {text[:60]!a}: write its paths under 'paths'")
    if _PORT_AT_THE_END.match(name):
        raise HostError(f"wanted a host without its port, found {text[:60]!a}: write {{host: …, ports: […]}}")
    if not name.isascii():
        raise HostError(f"wanted a name in ASCII, found {text[:60]!a}: write its xn-- form")
    labels = name.removeprefix("*.").split(".")
    if len(name) > 253 or not all(map(_LABEL.match, labels)) or (name.startswith("*.") and len(labels) < 2):
        raise HostError(f"wanted a host such as example.com or *.example.com, found {text[:60]!a}")
    if _NUMBER.match(labels[-1]) and not _is_address(name):
        raise HostError(f"wanted a name, or an address as four numbers, found {text[:60]!a}")
    if name in _JAR_ITSELF or name.endswith(".localhost"):
        raise HostError(
            f"wanted a host, found {text[:60]!a}, which in a jar is the jar itself: write ports of this host in "
            f"net.host_ports, the code reaches them as {HOST_NAME}"
        )
    if name == HOST_NAME:
        raise HostError(f"wanted a host, found {text[:60]!a}, which is this one: write its ports in net.host_ports")
    return name


def _without_scheme(url: str) -> str:
    """Return what to write instead of a URL, if it has a plain host."""
    host, _slash, path = url.partition("://")[2].partition("/")
    host = host.lower()
    if not all(_LABEL.match(label) for label in host.split(".")) or (path and not _PLAIN_PATH.match(path)):
        return ""
    return f": write {{host: {host}, paths: ['/{path}']}}" if path else f": write {host}"


def pinned_address(text: str) -> str:
    """An address with or without a port, in one form: `10.1.2.3`, `10.1.2.3:8443`, `[::1]`, `[::1]:8443`.

    Raises:
        HostError: when it is none.

    """
    host, port = text.lower(), ""
    if match := _WITH_PORT.match(host):
        host, port = match[1], match[2]
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not _is_address(host) or (port and int(port) > 65535):
        raise HostError(f"wanted an address such as 10.1.2.3, 10.1.2.3:8443 or '[::1]:8443', found {text[:60]!a}")
    address = _address(host)
    return (f"[{address}]" if ":" in address else address) + (f":{port}" if port else "")


def _address(name: str) -> str:
    """An address as it is compared: IPv6 in its shortest form."""
    if ":" not in name:
        return name
    import ipaddress

    address = ipaddress.IPv6Address(name)
    if address.ipv4_mapped:
        raise HostError(f"wanted an address that is not mapped, found {name!a}: write {address.ipv4_mapped}")
    return str(address)


def _is_address(name: str) -> bool:
    if not _LIKE_AN_ADDRESS.match(name):
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
    if not text.isascii() or not text.isprintable() or set(text) & set(" ?#\\"):
        raise HostError(f"wanted a path as it is sent, percent-encoded, found {text[:60]!a}")
    if set(text) & set("[]{}"):
        raise HostError(f"wanted a path in which '*' and '**' are all that is special, found {text[:60]!a}")
    if any("**" in part and part != "**" for part in text.split("/")):
        raise HostError(f"wanted '**' alone between slashes, found {text[:60]!a}")
    return text


def per_second(rate: str) -> float:
    """Requests a second of `10/s`, `600/m`, `1000/h`.

    Raises:
        HostError: when it is not a rate.

    """
    count, seconds = rate_of(rate)
    return count / seconds


def rate_of(rate: str) -> tuple[int, int]:
    """How many, in how many seconds.

    Raises:
        HostError: when it is not a rate.

    """
    if not (match := _RATE.match(rate)):
        raise HostError(f"wanted a rate such as 10/s, 600/m or 1000/h, found {rate[:60]!a}")
    return int(match[1]), _RATE_SECONDS[match[2]]


def covers(outer: HostRule, inner: HostRule) -> bool:
    """Whether everything that `inner` allows is allowed by `outer` too."""
    return (
        _covers_host(outer.host, inner.host)
        and set(inner.ports) <= set(outer.ports)
        and _covers_words(outer.methods, inner.methods)
        and (not outer.paths or (bool(inner.paths) and all(_covers_path(outer, path) for path in inner.paths)))
        and _covers_words(outer.query, inner.query)
        # A bound credential also keeps other people's credentials off the host, so leaving it out is a grant.
        and outer.credential in (None, inner.credential)
        and outer.sign in (None, inner.sign)
        and _covers_rate(outer.rate, inner.rate)
        and _covers_budget(outer.budget_bytes, inner.budget_bytes)
        and (outer.get_body or not inner.get_body)
        # Pinned addresses may be private ones, so they are a grant; and where they bind, asking DNS instead is one.
        and (set(inner.addresses) <= set(outer.addresses) and bool(inner.addresses) == bool(outer.addresses))
        and (outer.foreign_credentials or not inner.foreign_credentials)
    )


def _covers_host(outer: str, inner: str) -> bool:
    if outer == inner:
        return True
    if outer.startswith("*"):  # which leaves some hosts closed that a rule with their name opens
        from belljar.policy.carriers import opens_more

        if opens_more(outer, inner):
            return False
    if _is_address(inner):
        # `*` is the public internet; a rule that names a private address reaches it.
        from belljar.policy.keys.addresses import is_public

        return outer == "*" and is_public(inner)
    return outer == "*" or (outer.startswith("*.") and inner.removeprefix("*").endswith(outer[1:]))


def _covers_words(outer: tuple[str, ...], inner: tuple[str, ...]) -> bool:
    return not outer or (bool(inner) and set(inner) <= set(outer))


def _covers_path(outer: HostRule, path: str) -> bool:
    return any(
        allowed == path or (allowed.endswith("/**") and "*" not in allowed[:-3] and path.startswith(allowed[:-2]))
        for allowed in outer.paths
    )


def _covers_budget(outer: int | None, inner: int | None) -> bool:
    return outer is None or (inner is not None and inner <= outer)


def _covers_rate(outer: str | None, inner: str | None) -> bool:
    return outer is None or (inner is not None and per_second(inner) <= per_second(outer))
