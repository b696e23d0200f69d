r"""Makes bytes from a jar safe for a terminal: what would move a cursor or deceive an eye is shown instead. Pure.

Escape sequences begin with ESC or a C1 control, and nothing of either gets through, so no sequence does. Line feed, tab
and carriage return stay in a program's output: a carriage return reaches no further than the program's own last line,
and progress bars need it. In text that someone judges (a path, a diff) it would hide what stands before it, so there it
is shown too. Backspace is always shown. So are the Unicode controls that turn the direction of text around. Characters
that nobody can see are part of a program's output (emoji are made with them), and shown in text that someone judges: an
agent reads a whole sentence that is written in them.

The terminal is taken to speak UTF-8, as ours all do; `ascii_only` is for one that says it does not, to which the second
byte of a letter could be a control.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from functools import cache

_KEPT = "\n\t\r"
_TURNING = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_BREAKING = (0x2028, 0x2029)
"""Line ends to some terminals and to many programs, though not to all."""
_EMOJI_STYLE = "\ufe0f"


def _shown(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


_OUTPUT = {
    code: _shown(code) for code in (*range(0x20), *range(0x7F, 0xA0), *_TURNING, *_BREAKING) if chr(code) not in _KEPT
}


@cache
def _judged(kept: str) -> Mapping[int, str]:
    """For text that someone judges, made when there is some."""
    from belljar.audit.printable import PrintableTable

    return PrintableTable(kept)


class TerminalFilter:
    """Filters a stream piece by piece; a character may be split between pieces."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._encoding = "ascii" if ascii_only else "utf-8"

    def feed(self, data: bytes) -> bytes:
        """The next piece; the start of a character is kept until its end arrives."""
        return self._pass(self._decoder.decode(data))

    def finish(self) -> bytes:
        """What is left: half a character is shown as its bytes."""
        return self._pass(self._decoder.decode(b"", final=True))

    def _pass(self, text: str) -> bytes:
        return text.translate(_OUTPUT).encode(self._encoding, "backslashreplace")


def visible(text: str) -> str:
    """A name or a message on one line, with nothing hidden in it."""
    return _encodable(_plain_styles(text).translate(_judged("")))


def visible_lines(text: str) -> str:
    """Text of several lines, such as a diff, with nothing hidden in any of them."""
    return _encodable(_plain_styles(text).translate(_judged("\n\t")))


def _plain_styles(text: str) -> str:
    """Shows each U+FE0F that makes no emoji: one after a symbol does, and after the sign of a key such as 1."""
    first, *rest = text.split(_EMOJI_STYLE)
    parts, before = [first], first
    for part in rest:
        makes_one = before[-1:] > "\u2000" or (before[-1:] in "#*0123456789" and part.startswith("\u20e3"))
        parts += [_EMOJI_STYLE if before and makes_one else "\\ufe0f", part]
        before = part
    return "".join(parts)


def _encodable(text: str) -> str:
    """Names of files may hold bytes that are no UTF-8; Python carries them as lone surrogates."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def speaks_only_ascii(environ: Mapping[str, str]) -> bool:
    """Whether the locale names a character set that is not UTF-8."""
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or ""
    charset = locale.partition(".")[2].partition("@")[0]
    return bool(charset) and charset.lower().replace("-", "") != "utf8"
