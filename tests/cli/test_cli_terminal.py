"""The filter between a jar and a terminal: nothing that acts on a terminal gets through, whatever comes in."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.audit.printable import printable
from belljar.cli.terminal.safe_text import TerminalFilter, speaks_only_ascii, visible, visible_lines

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


@pytest.mark.parametrize(
    "code",
    [
        *(0xAD, 0x34F, 0x61C, 0x115F, 0x17B4, 0x180E, 0x200B, 0x200D, 0x2060, 0x2064, 0x206F, 0x2800, 0x3164, 0xFE00),
        *(0xFEFF, 0xFFA0, 0xFFF9, 0x110BD, 0x13430, 0x1BCA0, 0x1BCA3, 0x1D159, 0x1D173, 0x1D17A, 0xE0001, 0xE0041),
        *(0xE01EF, 0xE01F0, 0xE0500, 0xE0FFF, 0xE000, 0x378, 0x10FFFF),
    ],
    ids=hex,
)
def test_what_nobody_sees_is_shown_to_whoever_judges(code: int) -> None:
    """In a name and in a diff: format characters, fillers, what is private or unknown."""
    wanted = f"a{chr(code)}b".encode("ascii", "backslashreplace").decode()
    assert visible(f"a{chr(code)}b") == wanted
    assert visible_lines(f"a{chr(code)}b\n") == f"{wanted}\n"
    assert printable(f"a{chr(code)}b") == wanted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\u2764\ufe0f", "\u2764\ufe0f"),
        ("1\ufe0f\u20e3", "1\ufe0f\u20e3"),
        ("\U0001f3f3\ufe0f", "\U0001f3f3\ufe0f"),
        (".env\ufe0f", ".env\\ufe0f"),
        ("\u2764\ufe0f\ufe0f", "\u2764\ufe0f\\ufe0f"),
        ("\ufe0fa", "\\ufe0fa"),
        ("a1\ufe0f", "a1\\ufe0f"),
    ],
)
def test_the_style_of_emoji_is_no_hiding_place(text: str, told: str) -> None:
    """After a symbol it is one; anywhere else it is shown."""
    assert visible(text) == told


def test_letters_of_every_script_stay() -> None:
    """What is seen is not shown as a number."""
    text = "grüß 日本語 العربية हिन्दी ไทย עברית 한국어 ελληνικά é e\u0301 “x” € \U0001f600"
    assert visible(text) == text
    assert printable(text) == text
