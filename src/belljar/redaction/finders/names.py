"""Names of persons, where a detector for them is installed; without one none are found, and nothing pretends otherwise.

A detector is anything that takes a line and says where the names in it are. `belljar[names]` brings spaCy; its model is
the one that `BELLJAR_NAMES_MODEL` names, or the small English one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import lru_cache

from belljar.redaction.kinds import Kind, Span

NameDetector = Callable[[str], Iterable[tuple[int, int]]]
"""Where the names of persons are in a line: pairs of start and end."""


@lru_cache(maxsize=1)
def installed_detector() -> NameDetector | None:
    """The detector that is installed with its model, or None."""
    try:
        import spacy  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    try:
        model = spacy.load(os.environ.get("BELLJAR_NAMES_MODEL", "en_core_web_sm"))
    except OSError:
        return None

    def detect(line: str) -> Iterable[tuple[int, int]]:
        return [(item.start_char, item.end_char) for item in model(line).ents if item.label_ in ("PER", "PERSON")]

    return detect


def names(text: str, detector: NameDetector) -> list[Span]:
    """What the detector finds, line by line, so that it does not matter how much of a text is there at once."""
    found = []
    start = 0
    for line in text.splitlines(keepends=True):
        for first, last in detector(line.rstrip("\r\n")):
            if 0 <= first < last <= len(line):
                found.append(Span(start + first, start + last, Kind.NAME))
        start += len(line)
    return found
