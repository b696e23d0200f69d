"""The filter between a jar and a terminal: nothing that acts on a terminal gets through, whatever comes in."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.cli.terminal import TerminalFilter, speaks_only_ascii, visible, visible_lines

TABLE = [
    (b"plain text\n", b"plain text\n"),
    (b"tab\tand\r\nlines\n", b"tab\tand\r\nlines\n"),
    (b"50%\r100%\n", b"50%\r100%\n"),
    (b"\x1b[31mred\x1b[0m", rb"\x1b[31mred\x1b[0m"),
    (b"\x1b]52;c;aGk=\x07", rb"\x1b]52;c;aGk=\x07"),
    (b"a\x08b\x7f\x00\x0b\x0c", rb"a\x08b\x7f\x00\x0b\x0c"),
    (b"\x9b31m", rb"\x9b31m"),
    ("\u009b31m".encode(), rb"\x9b31m"),
    (
        "gr\u00fc\u00df \u2713 \u65e5\u672c \U0001f600".encode(),
        "gr\u00fc\u00df \u2713 \u65e5\u672c \U0001f600".encode(),
    ),
    ("if x: # \u202e }".encode(), rb"if x: # \u202e }"),
    ("\u2066\u2069".encode(), rb"\u2066\u2069"),
    (b"\xff\xfe\xed\xa0\x80", rb"\xff\xfe\xed\xa0\x80"),
    (b"\xf0\x9f\x98", rb"\xf0\x9f\x98"),
    (b"\xc0\x9b \xe0\x80\x9b", rb"\xc0\x9b \xe0\x80\x9b"),
]


def whole(data: bytes, *, ascii_only: bool = False) -> bytes:
    flow = TerminalFilter(ascii_only=ascii_only)
    return flow.feed(data) + flow.finish()


@pytest.mark.parametrize(("given", "shown"), TABLE)
def test_table(given: bytes, shown: bytes) -> None:
    """What comes in, what is shown."""
    assert whole(given) == shown


HOSTILE = st.lists(
    st.one_of(
        st.binary(max_size=8),
        st.sampled_from(
            [b"\x1b", b"\x9b", b"\xc2\x9b", b"\xc2", b"\xe2\x80\xae", b"\xe2\x80", b"\x1b]0;", b"\r", b"\x08"]
        ),
    ),
    max_size=30,
)


def assert_harmless(shown: bytes) -> None:
    for character in shown.decode("utf-8"):
        assert character in "\n\t\r" or unicodedata.category(character) != "Cc"
        assert character not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert b"\x1b" not in shown


@given(HOSTILE)
def test_nothing_active_gets_through(pieces: list[bytes]) -> None:
    """No escape, no control of either kind, no turning of text: however the bytes are cut."""
    flow = TerminalFilter()
    assert_harmless(b"".join([*map(flow.feed, pieces), flow.finish()]))


@given(HOSTILE)
def test_cuts_change_nothing(pieces: list[bytes]) -> None:
    """Where the stream is cut does not matter."""
    flow = TerminalFilter()
    assert b"".join([*map(flow.feed, pieces), flow.finish()]) == whole(b"".join(pieces))


@given(st.binary())
def test_a_terminal_of_8_bits_gets_ascii(data: bytes) -> None:
    """To a terminal that does not speak UTF-8, no byte above 0x7f."""
    assert all(byte < 0x80 for byte in whole(data, ascii_only=True))


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E)))
def test_printable_text_is_unchanged(text: str) -> None:
    """The control: what is harmless stays."""
    assert whole(text.encode()) == text.encode()


@given(st.text())
def test_words_have_no_controls_at_all(text: str) -> None:
    """In a name or a message not even a line feed."""
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in visible(text))


def test_a_diff_hides_nothing_behind_a_carriage_return() -> None:
    """Text that someone judges shows what would be overwritten."""
    assert visible_lines("+evil()\rgood()\n\tx") == "+evil()\\x0dgood()\n\tx"


def test_a_diff_hides_nothing_in_characters_that_nobody_sees() -> None:
    """An agent reads them; a program's own output, and letters that people write, stay as they are."""
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "run")
    assert visible_lines(f"+be helpful{hidden}\n") == "+be helpful\\U000e0072\\U000e0075\\U000e006e\n"
    assert visible_lines("+pay\u200bload\u2028x\u200f") == "+pay\\u200bload\\u2028x\\u200f"
    assert visible("a\ufeffb\n") == "a\\ufeffb\\x0a"
    assert visible_lines("+\u26a0\ufe0f gr\u00fc\u00df \u65e5\u672c") == "+\u26a0\ufe0f gr\u00fc\u00df \u65e5\u672c"
    family = "\U0001f468\u200d\U0001f469".encode()
    assert TerminalFilter().feed(family) == family


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"LANG": "C"}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({"LANG": "de_DE.utf8"}, False),
        ({"LANG": "de_DE.ISO-8859-1"}, True),
        ({"LANG": "de_DE.ISO-8859-1", "LC_ALL": "C.UTF-8"}, False),
        ({"LANG": "C.UTF-8", "LC_CTYPE": "ru_RU.KOI8-R"}, True),
    ],
)
def test_locale(variables: dict[str, str], expected: bool) -> None:
    """Only a locale that names another character set means ASCII."""
    assert speaks_only_ascii(variables) is expected
