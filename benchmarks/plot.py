"""Bars, drawn as SVG by hand: one for each name in each group, against a mark at one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from xml.sax.saxutils import escape

LEFT, WIDTH, STEP = 330, 420, 24

Bar = tuple[str, str, float]
"""Its group, its name, its value as a ratio to what the mark stands for."""


def bars(found: Iterable[Bar], colours: Mapping[str, str], mark: str, *, digits: int = 2, most: float = 1.0) -> str:
    """On a linear scale from zero to the largest value, or to `most` if that is more."""
    drawn = list(found)
    scale = WIDTH / max(most, *(value for _group, _name, value in drawn))
    return _draw(drawn, colours, mark, lambda value: value * scale, lambda value: f"{value:.{digits}f}")


def logarithmic_bars(found: Iterable[Bar], colours: Mapping[str, str], mark: str, least: float = 0.01) -> str:
    """On a logarithmic scale, for what differs by orders of magnitude."""
    drawn = list(found)
    span = math.log(max(10.0, *(value for _group, _name, value in drawn)) / least)
    return _draw(drawn, colours, mark, lambda value: WIDTH * math.log(max(value, least) / least) / span, _short)


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _draw(
    drawn: list[Bar],
    colours: Mapping[str, str],
    mark: str,
    length: Callable[[float], float],
    tell: Callable[[float], str],
) -> str:
    groups = len({group for group, _name, _value in drawn})
    height = STEP * (len(drawn) + groups) + 40
    size, one = f'width="{LEFT + WIDTH + 90}" height="{height}"', LEFT + length(1.0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<line x1="{one:.1f}" y1="10" x2="{one:.1f}" y2="{height - 25}" stroke="#999" stroke-dasharray="4 3"/>',
        f'<text x="{one:.1f}" y="{height - 8}" text-anchor="middle" fill="#555">{escape(mark)}</text>',
    ]
    y, last = 14, ""
    for group, name, value in drawn:
        if group != last:
            y += STEP // 2 if last else 0
            parts.append(f'<text x="10" y="{y + 15}" font-weight="bold">{escape(group)}</text>')
            last = group
        long = length(value)
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{long:.1f}" height="{STEP - 6}" fill="{colours[name]}"/>',
            f'<text x="{LEFT + long + 6:.1f}" y="{y + 14}">{tell(value)}</text>',
        ]
        y += STEP
    return "\n".join([*parts, "</svg>"]) + "\n"
