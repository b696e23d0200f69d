"""Colours, where someone can see them. The meaning never depends on one."""

from __future__ import annotations

import os

RED, YELLOW, DIM, BOLD = "31", "33", "2", "1"


def supports_colour(descriptor: int) -> bool:
    """Whether the descriptor is a terminal whose owner did not say NO_COLOR."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and is_terminal(descriptor)


def is_terminal(descriptor: int) -> bool:
    """Whether someone may be looking; a closed descriptor is no terminal."""
    try:
        return os.isatty(descriptor)
    except OSError:
        return False


def paint(text: str, colour: str, *, on: bool) -> str:
    """The text in a colour, if colours are on."""
    return f"\x1b[{colour}m{text}\x1b[0m" if on else text
