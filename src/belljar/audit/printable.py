"""Text that came from a jar, for whoever reads it as text: controls are shown, and what is no UTF-8 is, too. Pure."""

from __future__ import annotations

_LINES = "\t\r\n"
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""What turns the direction of text around, or ends a line for some."""
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0))}
_CONTROLS |= {code: f"\\u{code:04x}" for code in _TURNING}
_CONTROLS_BUT_LINES = {code: text for code, text in _CONTROLS.items() if chr(code) not in _LINES}


def encodable(text: str) -> str:
    """Without lone surrogates, as which Python carries bytes of names that are no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def printable(text: str) -> str:
    """On one line, with no control in it."""
    return encodable(text.translate(_CONTROLS))


def printable_lines(text: str) -> str:
    """The same, with tabs and line ends as they are: for a form that quotes them."""
    return encodable(text.translate(_CONTROLS_BUT_LINES))
