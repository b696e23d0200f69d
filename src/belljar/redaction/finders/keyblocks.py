"""Private keys in PEM and OpenPGP armour: from BEGIN to END, over as many lines as they take.

They are the only thing that is found across lines. A block whose END never comes (`head -5 id_rsa`) ends where its
lines no longer look like those of a key. One that is longer than any key becomes several, so that no more than
`LONGEST` has to be held back, and nothing of it is let out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

LONGEST = 64 * 1024
_COLOUR = r"\x1b\[[0-?]{0,20}[@-~]"
_MAYBE = rf"(?:{_COLOUR}){{0,4}}"
_SPACE = rf"{_MAYBE}(?: |%20|\+){_MAYBE}"
_BEGIN = re.compile(
    rf"-----{_MAYBE}BEGIN{_SPACE}(?:[A-Z0-9]{{1,12}}{_SPACE}){{0,3}}PRIVATE{_SPACE}KEY(?:{_SPACE}BLOCK)?{_MAYBE}-----"
)
_END = re.compile(rf"-----{_MAYBE}END(?:[A-Z0-9 +]|%20|{_COLOUR}){{0,56}}-----")
_ARMOUR = re.compile(
    rf"(?:\\{{1,4}}(?:[nrt/]|u00[0-9a-fA-F]{{2}})|%(?:0[ADad]|2[BFbf]|3[Dd])|{_COLOUR}|[A-Za-z0-9+/=]"
    r"|[ \t\"'+,;\\]{1,8}(?=[A-Za-z0-9+/=]{16}))*+"
)
_BREAK, _BREAKS = re.compile(r"[\r\n]"), re.compile(r"[\r\n]*")
_INLINE, _LONGEST_LINE = 24, 400
_NUMBER = rf"(?:\d{{1,7}}{_MAYBE}(?:[\t:|)\u2502\u2192-]|[ ]{{1,4}})[ \t\u2502]{{0,8}})?"
"""What `cat -n`, `grep -n`, `less -N` and others put before a line."""
_BODY = re.compile(
    rf"{_MAYBE}[ \t>|#*+\"'`,;\\-]{{0,40}}{_MAYBE}{_NUMBER}{_MAYBE}"
    rf"(?:(?:[A-Za-z0-9+/=]|\\{{1,4}}/|\\{{1,4}}u00[0-9a-fA-F]{{2}}|%(?:2[BFbf]|3[Dd])|{_COLOUR}){{0,128}}+"
    r"|[A-Z][A-Za-z-]{2,20}: ?[^\r\n]{1,200})"
    rf"(?:\\n|\\r|[ \t\"'`,;+\\]|{_COLOUR}){{0,12}}"
)


class Block(NamedTuple):
    """A key: where it is, and whether it is all there."""

    start: int
    end: int
    state: str
    """`closed`, `open` if more text could make it longer, `full` if it was cut and goes on."""


def blocks(text: str, *, inside: bool = False) -> Iterator[Block]:
    """Every key block of a text; `inside` if a key that began before the text goes on at its beginning."""
    place = 0
    while True:
        if inside:
            block = _rest(text, place)
        else:
            begin = _BEGIN.search(text, dashes) if (dashes := text.find("-----", place)) >= 0 else None
            if begin is None:
                return
            block = _block(text, begin.start(), begin.end())
        if block.end > block.start or block.state == "open":
            yield block
        place, inside = block.end, block.state == "full"


def _block(text: str, start: int, after: int) -> Block:
    """A key on one line if something of it follows BEGIN there, or else one of many lines."""
    line = _line_end(text, after)
    end = _END.search(text, after, min(line, start + LONGEST))
    if end:
        return Block(start, end.end(), "closed")
    armour = _ARMOUR.match(text, after, line)
    if armour and len(armour[0]) > _INLINE:
        return _bounded(text, start, armour.end())
    return _lines(text, start, line)


def _rest(text: str, start: int) -> Block:
    """What follows a key that was cut: the rest of one long line, or further lines."""
    line = _line_end(text, start)
    if not _BODY.fullmatch(text, start, line) and (armour := _ARMOUR.match(text, start, line)) and armour[0]:
        last = _END.match(text, armour.end())
        return _bounded(text, start, last.end() if last else armour.end())
    return _lines(text, start, start)


def _bounded(text: str, start: int, end: int) -> Block:
    if end - start > LONGEST:
        return Block(start, start + LONGEST, "full")
    return Block(start, end, "open" if end == len(text) else "closed")


def _lines(text: str, start: int, place: int) -> Block:
    """A key whose lines go on from `place`, a line's beginning or its break."""
    while True:
        breaks = _BREAKS.match(text, place)
        end = breaks.end() if breaks else place
        line = _line_end(text, end)
        last = _END.search(text, end, min(line, end + _LONGEST_LINE))
        goes_on = last or _BODY.fullmatch(text, end, line)
        place = (last.end() if last else line) if goes_on else place
        if place - start > LONGEST:
            return Block(start, start + LONGEST, "full")
        if last or not goes_on:
            return Block(start, place, "closed")
        if line == len(text):
            return Block(start, line, "open")


def _line_end(text: str, place: int) -> int:
    found = _BREAK.search(text, place)
    return found.start() if found else len(text)
