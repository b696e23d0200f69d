"""One text in the forms that the finders look at, all of the same length, so that a place in one is a place in each.

A pattern of `re` costs tens of milliseconds for a megabyte; looking for a fixed run of bytes costs a fraction of one.
So the text is translated into *shapes* (every digit a 0, every capital an A), a finder looks for a fixed shape, and
only where it is found does a pattern decide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

_DIGITS, _UPPER, _LOWER = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ", b"abcdefghijklmnopqrstuvwxyz"
_HIGH = bytes(range(0x80, 0x100))


def _table(**classes: bytes) -> bytes:
    """What bytes.translate wants: each byte of a class becomes the class's letter."""
    table = bytearray(range(256))
    for letter, members in classes.items():
        for member in members:
            table[member] = ord(letter.removeprefix("_"))
    return bytes(table)


_SHAPE = _table(_0=_DIGITS, A=_UPPER, a=_LOWER)
_HEX = _table(h=_DIGITS + b"abcdefABCDEF", a=b"ghijklmnopqrstuvwxyzGHIJKLMNOPQRSTUVWXYZ")
GROUPS = bytes(ord("-") if byte in b" .-" else _SHAPE[byte] for byte in range(256))
_MAIL, _WORD, _COLONS = (
    bytes(97 if byte in members else 32 for byte in range(256))
    for members in (
        _DIGITS + _UPPER + _LOWER + _HIGH + b"._%+-'",
        _DIGITS + _UPPER + _LOWER + b"_-",
        _DIGITS + b"abcdefABCDEF:.",
    )
)
_MOST_HITS = 2000


class TextView:
    """A text, and its shapes when they are first asked for."""

    def __init__(self, text: str) -> None:
        self.text = text
        # One byte a character: what is beyond U+00FF separates words, as it does in text that has no spaces.
        self.data = text.encode("latin-1", "replace")
        self._hits: dict[bytes, list[int] | None] = {}

    def hits(self, core: bytes) -> list[int] | None:
        """Where the middle of some shapes is, looked for once for all of them; None if it is nearly everywhere."""
        if core not in self._hits:
            found = list(islice(places(self.groups, core), _MOST_HITS + 1))
            self._hits[core] = found if len(found) <= _MOST_HITS else None
        return self._hits[core]

    @cached_property
    def lower(self) -> bytes:
        """ASCII letters small."""
        return self.data.lower()

    @cached_property
    def shape(self) -> bytes:
        """Every digit 0, every capital A, every small letter a; the rest as it is."""
        return self.data.translate(_SHAPE)

    @cached_property
    def groups(self) -> bytes:
        """The same, and every space and dot a dash: what separates groups of digits."""
        return self.data.translate(GROUPS)

    @cached_property
    def hexadecimal(self) -> bytes:
        """Every hexadecimal digit h, every other letter a; the rest as it is."""
        return self.data.translate(_HEX)

    @cached_property
    def colons(self) -> bytes:
        """What an IPv6 address is made of is a, all else a space."""
        return self.data.translate(_COLONS)

    @cached_property
    def mail(self) -> bytes:
        """What may stand before an @ is a, all else a space."""
        return self.data.translate(_MAIL)

    @cached_property
    def words(self) -> bytes:
        """Letters, digits, _ and - are a, all else a space."""
        return self.data.translate(_WORD)


def places(data: bytes, needle: bytes) -> Iterator[int]:
    """Where `needle` begins, from left to right."""
    place = data.find(needle)
    while place >= 0:
        yield place
        place = data.find(needle, place + 1)


def matches(pattern: re.Pattern[bytes], data: bytes, anchor: bytes) -> Iterator[re.Match[bytes]]:
    """Every match of a pattern that begins with `anchor`: nothing but one quick look where there is none."""
    first = data.find(anchor)
    if first < 0:
        return iter(())
    return pattern.finditer(data, first)


def matches_at(pattern: re.Pattern[bytes], data: bytes, anchor: bytes) -> Iterator[re.Match[bytes]]:
    """The same for an anchor that is rare and long: faster where it is there, slower where it is everywhere."""
    done = 0
    for place in places(data, anchor):
        if place >= done and (found := pattern.match(data, place)):
            done = found.end()
            yield found
