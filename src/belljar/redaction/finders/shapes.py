"""Many shapes of numbers, found by the few cores that they share: `000-000-0` is in eleven of them.

What separates their groups does not matter to a core, so one look for it is enough for spaces, dots and dashes. Where a
core is nearly everywhere, as in text that is made to be slow, each shape is looked for by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from belljar.redaction.view import GROUPS, TextView

What = TypeVar("What")
_CORES = (
    *(b"000-000-0", b"000-0000-0000", b"0000-000000", b"000000-000", b"-00-00-00"),
    *(b"AA00", b"0000000A", b"0000000-A", b"000)", b"0" * 14),
)
"""What several shapes have in them, whatever separates their groups: looked for once."""
_IN_WORD = ord("a")


class Shapes(Generic[What]):
    """Shapes, each with what its finder wants to know; those with a core in common are looked for together."""

    def __init__(self, rows: Iterable[tuple[bytes, What]]) -> None:
        self._rows: dict[bytes, list[tuple[int, bytes, What]]] = {}
        for shape, what in rows:
            groups = shape.translate(GROUPS)
            core = next((core for core in _CORES if core in groups), groups)
            self._rows.setdefault(core, []).append((groups.index(core), shape, what))

    def word_starts(self, view: TextView) -> Iterator[tuple[int, What]]:
        """Where a shape begins a word, and what belongs to it."""
        for core, rows in self._rows.items():
            hits = view.hits(core)
            if hits is None:
                for _, shape, what in rows:
                    for place in _all_word_starts(view, shape):
                        yield place, what
            elif hits:
                yield from _word_starts(view, hits, rows)


def _word_starts(view: TextView, hits: list[int], rows: list[tuple[int, bytes, What]]) -> Iterator[tuple[int, What]]:
    begins, words = view.shape.startswith, view.words
    for offset, shape, what in rows:
        for hit in hits:
            place = hit - offset
            if begins(shape, place) and place >= 0 and not (place and words[place - 1] == _IN_WORD):
                yield place, what


def _all_word_starts(view: TextView, shape: bytes) -> Iterator[int]:
    """The same by looking for the shape itself. A word that it is only within is passed over, however long it is."""
    place = view.shape.find(shape)
    while place >= 0:
        if place and view.words[place - 1] == _IN_WORD:
            after = view.words.find(b" ", place)
            if after < 0:
                return
            place = view.shape.find(shape, after)
        else:
            yield place
            place = view.shape.find(shape, place + 1)
