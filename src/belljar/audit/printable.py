"""Text that came from a jar, for whoever reads it as text: controls are shown, and what is no UTF-8 is, too. Pure."""

from __future__ import annotations

_LINES = "\t\r\n"
_UNSEEN = frozenset((
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065, 0x2800, 0x3164, *range(0xFE00, 0xFE0F)),
    *(0xFFA0, *range(0xFFF0, 0xFFFC), 0x13441, 0x13442, 0x16FE4, 0x1D159, *range(0xE0000, 0xE1000)),
))  # fmt: skip
"""Characters that nobody sees although Unicode calls them letters, marks or symbols. U+FE0F makes emoji, and stays."""
_MOST_REMEMBERED = 5000


def shown(code: int) -> str:
    """A character as its number."""
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def hidden(code: int) -> bool:
    """Return True if a character can't be seen, turns text around, ends a line for some, or is unknown to Unicode."""
    if code < 0x80:
        return code < 0x20 or code == 0x7F
    from unicodedata import category

    return code in _UNSEEN or category(chr(code)) in ("Cc", "Cf", "Cn", "Co", "Zl", "Zp")


class PrintableTable(dict[int, str]):
    """A table for `str.translate` that shows what is hidden, but for some characters. Filled as characters are met."""

    def __init__(self, kept: str = "") -> None:
        super().__init__({ord(character): character for character in kept})

    def __missing__(self, code: int) -> str:
        text = shown(code) if hidden(code) else chr(code)
        if len(self) < _MOST_REMEMBERED:
            self[code] = text
        return text


_ONE_LINE, _SOME_LINES = PrintableTable(), PrintableTable(_LINES)


def encodable(text: str) -> str:
    """Without lone surrogates, as which Python carries bytes of names that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """On one line, with no control in it."""
    return encodable(text.translate(_ONE_LINE))


def printable_lines(text: str) -> str:
    """The same, with tabs and line ends as they are: for a form that quotes them."""
    return encodable(text.translate(_SOME_LINES))
