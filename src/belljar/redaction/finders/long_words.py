"""The words of a text that are long enough for a vendor's token, with what is just before each, one after another.

They are a small part of most text, and fifty prefixes are looked for in that part only. Every prefix has a letter that
is no hexadecimal digit, so digests and UUIDs are left out, unless a sign that ends a prefix stands before them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from belljar.redaction.view import TextView, places

SHORTEST = 20
"""No token is shorter; a run of that many letters, digits, _ and - is rare in most text."""
CONTEXT = 9
"""How much of what is before a word is kept with it: the longest sign that does not belong to a word."""
_RUN = b"a" * SHORTEST
_SIGNS_END = (b".", b":")


class LongWords:
    """The words as one text, and where in the whole text each place of it is."""

    def __init__(self, view: TextView) -> None:
        self._starts: list[int] = []
        self._origins: list[int] = []
        self.text = b"\n".join(self._words(view))

    def _words(self, view: TextView) -> Iterator[bytes]:
        words, data, hexadecimal = view.words, view.data, view.hexadecimal
        length = 0
        start = words.find(_RUN)
        while start >= 0:
            end = words.find(b" ", start)
            end = len(words) if end < 0 else end
            if hexadecimal.find(b"a", start, end) >= 0 or data[start - 1 : start] in _SIGNS_END:
                before = start - CONTEXT if start > CONTEXT else 0
                self._starts.append(length)
                self._origins.append(before)
                yield data[before:end]
                length += end - before + 1
            start = words.find(_RUN, end)

    def origin(self, place: int) -> int:
        """Where in the whole text a place of these words is."""
        word = bisect_right(self._starts, place) - 1
        return place - self._starts[word] + self._origins[word]

    def places(self, sign: bytes) -> Iterator[int]:
        """Where in the whole text a sign is that is part of such a word, or just before it."""
        return map(self.origin, places(self.text, sign))
