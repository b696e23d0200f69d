"""Looking for canary tokens in what leaves: as they are, and in the encodings that programs reach for first. Pure.

Whoever encrypts or compresses a token gets it past this; what is found is code that did not expect to be watched.
"""

from __future__ import annotations

from collections.abc import Iterable

from belljar.egress.decide.encodings import SecretFinder

_BLOCK = 8
_PIECE = 16
"""So many characters of a token in a row are one: `xxd` and `hexdump -C` print 16 in each line."""


class Tokens:
    """The tokens of a run, and how they are found."""

    __slots__ = ("_finder", "_tokens", "context")

    def __init__(self, tokens: Iterable[bytes]) -> None:
        self._tokens = tuple(tokens)
        self._finder = SecretFinder(self._tokens)
        self.context = self._finder.context

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def in_bytes(self, text: bytes) -> bool:
        """Return True if a token, or a good part of one, is in these bytes."""
        return self._finder.finds(text) or any(_has_piece(text, token) for token in self._tokens)

    def in_name(self, name: str) -> bool:
        """Return True if a token is in the name of a host, in one label or in several."""
        text = name.lower().encode("latin-1", "replace")
        return self.in_bytes(text) or self.in_bytes(text.replace(b".", b"").replace(b"-", b""))


def _has_piece(text: bytes, token: bytes) -> bool:
    """Return True if so many characters of the token follow each other that it is no chance."""
    for begin in range(0, len(token) - _BLOCK + 1, _BLOCK):
        block = token[begin : begin + _BLOCK]
        at = text.find(block)
        while at >= 0:
            if _run(text, at, token, begin) >= min(_PIECE, len(token)):
                return True
            at = text.find(block, at + 1)
    return False


def _run(text: bytes, at: int, token: bytes, begin: int) -> int:
    """How many characters around this place are those of the token."""
    before = 0
    while before < min(at, begin) and text[at - before - 1] == token[begin - before - 1]:
        before += 1
    after = 0
    while after < min(len(text) - at, len(token) - begin) and text[at + after] == token[begin + after]:
        after += 1
    return before + after


class Scanner:
    """Watches one stream of bytes, wherever its chunks are cut."""

    __slots__ = ("_tail", "_tokens")

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._tail = b""

    def finds(self, data: bytes) -> bool:
        """Return True if a token is in what has passed so far, up to the end of `data`."""
        window = self._tail + data
        self._tail = window[-self._tokens.context :]
        return self._tokens.in_bytes(window)
