"""What a program with a screen of its own may do to a terminal: draw, and nothing that lasts or tells. Pure.

An ordinary run's escape sequences are shown, not obeyed (`safe_text.py`). An agent that draws its screen needs them, so
here text and CSI sequences pass: colours, moves, modes. What does not pass are strings (OSC, DCS, APC, PM, SOS), which
write the clipboard, rename the window or make links, CSI sequences that move windows, print, or make the terminal say
what is on it, and controls of one character (C1) that some terminals take for the beginning of any of these.
`RESTORED` undoes the modes afterwards.
"""

from __future__ import annotations

import codecs
import enum
import re

_PLAIN = re.compile("[^\x00-\x1f\x7f-\x9f]+")
_ESC, _BEL = "\x1b", "\x07"
_CANCELS = "\x18\x1a"
_KEPT = "\x07\x08\t\n\r"
_STRINGS = "]P_^Xk"
"""ESC and one of these begin a string that ends with BEL or ESC and a backslash."""
_REFUSED = "txyi"
"""CSI sequences that end so move windows, report, or print."""
_WHOLE = ("7", "8", "=", ">", "D", "E", "M", "H", "(B", "(0", ")B", ")0")
"""After ESC: save and restore the cursor, keypad modes, index, tab stop, character sets."""
_LONGEST = 64
RESTORED = (
    b"\x1b<\x1b[?1049l\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1004l\x1b[?1006l\x1b[?2004l\x1b[?2026l\x1b[?1l\x1b>\x1b[<u"
    b"\x1b[?9l\x1b[?1005l\x1b[?1015l\x1b[?1016l\x1b[>4m\x1b7\x1b[?69l\x1b[r\x1b8\x1b(B\x1b)B"
    b"\x1b[?7h\x1b[?5l\x1b[?45l\x1b[2l\x1b[4l\x1b[20l\x1b[0m\x1b[?25h"
)
"""The ordinary screen, no mouse, no pasting marks, plain keys, the whole window, letters that are letters, lines that
go on in the next row when they are long, plain text, a cursor: a diff is read there next, and nothing in it may hide.
"""


class _In(enum.Enum):
    TEXT = enum.auto()
    ESCAPE = enum.auto()
    CSI = enum.auto()
    STRING = enum.auto()
    STRING_ESCAPE = enum.auto()


class ScreenFilter:
    """Filters a stream piece by piece; a character or a sequence may be split between pieces."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._in = _In.TEXT
        self._held = ""

    def feed(self, data: bytes) -> bytes:
        """What of the next piece may reach the terminal."""
        text = self._decoder.decode(data)
        passed: list[str] = []
        at = 0
        while at < len(text):
            if self._in is _In.TEXT and (run := _PLAIN.match(text, at)):
                passed.append(run[0])
                at = run.end()
            else:
                passed.append(self._take(text[at]))
                at += 1
        return "".join(passed).encode()

    def _take(self, char: str) -> str:
        if char in _CANCELS:  # which end every sequence
            self._in = _In.TEXT
            return ""
        if self._in is _In.TEXT:
            return self._text(char)
        if self._in is _In.ESCAPE:
            return self._escape(char)
        if self._in is _In.CSI:
            return self._csi(char)
        ended = char == _BEL or (self._in is _In.STRING_ESCAPE and char == "\\")
        self._in = _In.TEXT if ended else _In.STRING_ESCAPE if char == _ESC else _In.STRING
        return ""

    def _text(self, char: str) -> str:
        if char == _ESC:
            self._in, self._held = _In.ESCAPE, _ESC
            return ""
        return char if char in _KEPT else ""

    def _escape(self, char: str) -> str:
        if char == _ESC:
            self._held = _ESC
            return ""
        self._held += char
        if self._held == f"{_ESC}[":
            self._in = _In.CSI
        elif len(self._held) == 2 and char in _STRINGS:
            self._in = _In.STRING
        elif not (" " <= char <= "/" and len(self._held) < _LONGEST):
            self._in = _In.TEXT
            return self._held if self._held[1:] in _WHOLE else ""
        return ""

    def _csi(self, char: str) -> str:
        if char == _ESC:
            self._in, self._held = _In.ESCAPE, _ESC
            return ""
        self._held += char
        if " " <= char <= "?" and len(self._held) < _LONGEST:
            return ""
        self._in = _In.TEXT
        refused = char in _REFUSED or self._held.endswith('"p')  # which makes it another terminal
        return self._held if "@" <= char <= "~" and not refused else ""
