"""What a group counts, read through files that were opened ahead: for the end of a run, whose caller waits.

The stage opens them when a jar waits; whoever has the descriptors reads, as often as it likes, also when the group's
processes are gone. Opening them anew, by name, takes ten times as long.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from belljar._startup.records import NamedTuple

_MOST = 4096


class Counter(NamedTuple):
    """One number of a group's, as `RunGroup.usage` names it."""

    name: str
    word: str = ""
    """In a file of many lines, the one that is meant."""
    scale: float = 1.0


def open_counters(files: Iterable[tuple[int, str, Counter]]) -> tuple[list[Counter], list[int]]:
    """Open each file of a group's directory; those that this kernel lacks are left out."""
    counters, descriptors = [], []
    for directory, name, counter in files:
        try:
            descriptors.append(os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory))
        except FileNotFoundError:
            continue
        counters.append(counter)
    return counters, descriptors


def read_counters(counters: Sequence[Counter], descriptors: Sequence[int]) -> dict[str, float]:
    """What they say now; one that can't be read is left out."""
    found = {}
    for counter, descriptor in zip(counters, descriptors, strict=True):
        try:
            value = _number(os.pread(descriptor, _MOST, 0), counter.word)
        except (OSError, ValueError, IndexError):
            continue
        found[counter.name] = value if counter.scale == 1.0 else value * counter.scale
    return found


def _number(text: bytes, word: str) -> int:
    if not word:
        return int(text)
    lines = text.split()
    return int(lines[lines.index(word.encode()) + 1])
