"""Looking for canary tokens in what leaves: as they are, and in the encodings that programs reach for first. Pure.

Whoever encrypts or compresses a token gets it past this; what is found is code that did not expect to be watched.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import unquote_to_bytes


def forms(token: bytes) -> frozenset[bytes]:
    """Each way of writing a token that is looked for: plain, hex, base64 and base32 wherever in a text it began."""
    found = {token, token.lower(), token.upper(), token.hex().encode(), token.hex().upper().encode(), token[::-1]}
    for encode, group, digits in (
        (base64.b64encode, 3, 4),
        (base64.urlsafe_b64encode, 3, 4),
        (base64.b32encode, 5, 8),
    ):
        for before in range(group):
            text = encode(bytes(before) + token).rstrip(b"=")
            start = -(-before * digits // group) if before else 0
            whole = (before + len(token)) * 8 // (8 * group // digits)  # digits that the token alone decides
            inner = text[start:whole]
            found |= {inner, inner.lower()} if group == 5 else {inner}
    return frozenset(form for form in found if len(form) >= 8)


class Scanner:
    """Watches one stream of bytes, wherever its chunks are cut."""

    __slots__ = ("_forms", "_kept", "_tail")

    def __init__(self, wanted: Iterable[bytes]) -> None:
        """`wanted` are the forms of all tokens."""
        self._forms = tuple(wanted)
        self._kept = 3 * max(map(len, self._forms), default=0)
        self._tail = b""

    def finds(self, data: bytes) -> bool:
        """Whether a token is in what has passed so far, up to the end of `data`."""
        window = self._tail + data
        self._tail = window[-self._kept :]
        if any(form in window for form in self._forms):
            return True
        if b"%" not in window:
            return False
        decoded = unquote_to_bytes(window)
        return any(form in decoded for form in self._forms)
