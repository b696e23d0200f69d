"""Numbers over time in one line of text. Pure."""

from __future__ import annotations

from collections.abc import Sequence

_BARS = "▁▂▃▄▅▆▇█"
_WIDEST = 60


def sparkline(values: Sequence[float]) -> str:
    """A bar for each value, from nothing to the largest; of many, the largest of some each."""
    if len(values) > _WIDEST:
        size = len(values) / _WIDEST
        values = [max(values[int(at * size) : max(int(at * size) + 1, int((at + 1) * size))]) for at in range(_WIDEST)]
    most = max(values, default=0)
    return "".join(_BARS[round(value / most * (len(_BARS) - 1))] if most else _BARS[0] for value in values)


def rates(moments: Sequence[float], totals: Sequence[float]) -> list[float]:
    """How fast a total grew between one moment and the next, from 0 on."""
    found, moment, total = [], 0.0, 0.0
    for now, value in zip(moments, totals, strict=True):
        found.append(max(0.0, value - total) / (now - moment) if now > moment else 0.0)
        moment, total = now, value
    return found
