"""The one form in which a host is compared, and what is refused because it has two. Pure.

A name that one program reads as `allowed.example` and another as something else is how an allowlist is fooled: a NUL in
the middle, a percent sign, an address in octal. So there is no repair here: what is not plain is refused.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address

from belljar.policy.carriers import fits

LONGEST_NAME = 253
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\Z")
_QUAD = re.compile(r"(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}\Z")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
_V6 = re.compile(r"[0-9a-f:]+(?::[0-9.]+)?\Z")


class NameRefused(ValueError):  # noqa: N818 a refusal is a result here, and `reason` is its code
    """The host can't be compared; `reason` is `name-form`, `address-form` or `name-too-long`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def normalise(host: str | bytes) -> str:
    """The host in small letters without its last dot, or the address in its one canonical form (no brackets).

    An IPv4 address that is mapped into IPv6 becomes the IPv4 address, because that is what gets dialled.

    Raises:
        NameRefused: when it is neither a plain name nor a plainly written address.

    """
    if isinstance(host, bytes):
        try:
            host = host.decode("ascii")
        except UnicodeDecodeError:
            raise NameRefused("name-form") from None
    return _normalise(host) if len(host) <= LONGEST_NAME + 1 else _too_long()


@lru_cache(maxsize=4096)
def _normalise(host: str) -> str:
    if not host.isascii() or not host:
        raise NameRefused("name-form")
    name = host.lower()
    if name.startswith("[") or ":" in name:
        return _v6(name)
    if name.endswith("."):
        name = name[:-1]
    if _QUAD.match(name):
        return name
    if not _NAME.match(name):
        raise NameRefused("name-form")
    # Whoever resolves `0x7f.1` or `017700000001` takes it for an address, and so do we.
    if _NUMBER.match(name.rpartition(".")[2]):
        raise NameRefused("address-form")
    return name if len(name) <= LONGEST_NAME else _too_long()


def _too_long() -> str:
    raise NameRefused("name-too-long")


def _v6(text: str) -> str:
    if text.startswith("[") != text.endswith("]"):
        raise NameRefused("address-form")
    text = text.removeprefix("[").removesuffix("]")
    if not _V6.match(text):
        raise NameRefused("address-form")
    try:
        address = IPv6Address(text)
    except AddressValueError:
        raise NameRefused("address-form") from None
    return str(address.ipv4_mapped or address)


def is_address(host: str) -> bool:
    """Whether a normalised host is an address, not a name."""
    return ":" in host or bool(_QUAD.match(host))


def canonical_address(text: str) -> str:
    """An address as a socket tells it, in the form that `normalise` gives.

    Raises:
        NameRefused: when it is none.

    """
    host = normalise(text)
    if not is_address(host):
        raise NameRefused("address-form")
    return host


def split_authority(authority: str | bytes) -> tuple[str, int | None]:
    """`host` or `host:port`, as a Host header or a CONNECT has it: the normalised host, and the port if there is one.

    Raises:
        NameRefused: when the host or the port is not plain.

    """
    if isinstance(authority, bytes):
        try:
            authority = authority.decode("ascii")
        except UnicodeDecodeError:
            raise NameRefused("name-form") from None
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        return normalise(authority), None
    if ":" in host and not host.startswith("["):
        raise NameRefused("address-form")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536):
        raise NameRefused("name-form")
    return normalise(host), int(port)


def entropy(text: str) -> float:
    """Bits per character, as text tells them of itself: about 2 for a word, 4 and more for encoded data."""
    total = len(text)
    return sum(count / total * math.log2(total / count) for count in Counter(text).values()) if text else 0.0


def host_matches(pattern: str, host: str) -> bool:
    """Whether a normalised host is meant by a rule's host: itself, `*.` its subdomains (never an address), `*` all."""
    if pattern in ("*", host):
        return True
    if "*" in pattern[1:] or pattern[:2] == "*-":  # only the built-in lists have such
        return fits(pattern, host)
    return pattern.startswith("*.") and host.endswith(pattern[1:]) and not is_address(host)


def covered_labels(pattern: str, host: str) -> tuple[str, ...]:
    """The labels of `host` that a star of the pattern stands for: what whoever asks for a name may choose freely."""
    if pattern == "*":
        return tuple(host.split("."))
    if pattern.startswith("*.") and host_matches(pattern, host):
        return tuple(host[: -len(pattern) + 1].split("."))
    return ()
