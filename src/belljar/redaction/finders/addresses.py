"""IP addresses, but for those that every machine has: loopback, unspecified, broadcast and masks."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator

from belljar.redaction.kinds import Kind, Span
from belljar.redaction.view import TextView, matches

_OCTET = rb"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_FOUR = re.compile(
    rb"(?<![\w.+-])(?!0|127\.|22[4-9]|2[3-5]\d)" + _OCTET + rb"(?:\." + _OCTET + rb"){3}(?!\w|\.\w|-\w|\+)"
)
_FOUR_MIDDLE = re.compile(rb"\.0{1,3}\.0{1,3}\.0")
_SIX = re.compile(
    rb"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:(?<=:)\d{1,3}(?:\.\d{1,3}){3})?(?!\w|:[\w:]|\.\w)"
)
_SIX_MIDDLES = (
    (b"::", re.compile(rb"::(?:(?=h)|(?<=h::))(?!:)")),
    *((middle, re.compile(middle + b"(?=h)")) for middle in (b":h:", b":hhh:", b":hhhh:")),
)
_DIGIT = re.compile(rb"\d")
_VERSIONS = (b"version", b"release", b"build", b"==", b">=", b"<=", b"~=", b"@", b"/")
_VERSION_WORDS = (b"v", b"ver", b"rev")


def addresses(view: TextView) -> Iterator[Span]:
    """IPv4 and IPv6 addresses of one machine or network."""
    yield from _version_four(view)
    yield from _version_six(view)


def _version_four(view: TextView) -> Iterator[Span]:
    shape, data = view.shape, view.data
    for middle in _FOUR_MIDDLE.finditer(shape):
        dot = middle.start()
        start = dot - (3 if shape.startswith(b"000", dot - 3) else 2 if shape.startswith(b"00", dot - 2) else 1)
        found = _FOUR.match(data, start) if start >= 0 else None
        if found and not _version(view, start):
            yield Span(start, found.end(), Kind.IP)


def _version(view: TextView, start: int) -> bool:
    """Whether what is before says that four numbers are a version, or part of a path."""
    before = view.lower[max(0, start - 12) : start].rstrip(b" \t\"':")
    if before.endswith(_VERSIONS):
        return not before.endswith(b"//")
    return before.endswith(_VERSION_WORDS) and before.split()[-1] in _VERSION_WORDS


def _version_six(view: TextView) -> Iterator[Span]:
    for anchor, middle in _SIX_MIDDLES:
        for candidate in matches(middle, view.hexadecimal, anchor):
            place = candidate.start()
            found = _SIX.match(view.data, view.colons.rfind(b" ", max(0, place - 45), place) + 1)
            if found and found.end() > place:
                value = found[0][:-1] if found[0][-2:-1] != b":" and found[0].endswith(b":") else found[0]
                if _is_six(value):
                    yield Span(found.start(), found.start() + len(value), Kind.IP)


def _is_six(value: bytes) -> bool:
    if (value.count(b":") < 7 and b"::" not in value) or len(value) < 6 or not _DIGIT.search(value):
        return False
    try:
        address = ipaddress.IPv6Address(value.decode())
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)
