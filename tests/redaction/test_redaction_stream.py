"""However a text is cut into pieces, the result is that of the whole; and no more is held back than has to be."""

# ruff: noqa: E501 (rows of tables)

from __future__ import annotations

import random
import re
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redaction_corpus import FORMS, corpus, escaped
from redaction_values import Values

from belljar.redaction import Redactor
from belljar.redaction.finders.keyblocks import LONGEST
from belljar.redaction.stream import WINDOW

VALUES = Values(5)
TEXTS = [example.text for example in corpus(11, rounds=1)]
KEY = VALUES.private_key()
SCRAPS = [
    "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----", "-----BEGIN", "MIIEow", "\n", "\r\n", "\r", " ", "<", ">",
    "<EMAIL_1>", "<LITERAL_1>", "@", ".", "password", " = ", "=", ":", '"', "'", "--token ", "version ", "v ", "1.2.3.4", "10.0.0.7",
    "a@b.co", "+49 30 901820", "tel", "call ", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "GB82", " WEST", "hunter2", "é", "日本",
    "bearer ", "Basic ", "https://u:", "pw1@h.co", "plain words ", "and more of them, ", "202", "-555", "-0143", "0", "12", "\\n", "ssn ",
    "078-05-1120", "::1", "fe80::", "fe80::1:2", "::", "call me on ", "sk-", "eyJ", "\x00", "\udc80", "\x1b[31m", "\x1b[", "m\x1b[K", "%40", "%", "\\u0040", '\\"', "     2\t",
]  # fmt: skip
texts = st.lists(st.sampled_from(TEXTS) | st.sampled_from(SCRAPS) | st.text(max_size=8), max_size=16).map("".join)


def in_pieces(text: str, cuts: list[int]) -> str:
    """The text fed piece by piece."""
    stream = Redactor().stream()
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    parts = [stream.feed(text[first:last]) for first, last in pairwise(places)]
    return "".join(parts) + stream.finish()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=texts, cuts=st.lists(st.integers(0, 5000), max_size=12))
def test_any_cut_gives_the_same(text: str, cuts: list[int]) -> None:
    """Also through a key, a name, a token."""
    assert in_pieces(text, cuts) == Redactor().text(text)


@settings(max_examples=150, deadline=None)
@given(text=texts)
def test_letter_by_letter(text: str) -> None:
    """The most cuts that there can be."""
    text = text[:1500]
    assert in_pieces(text, list(range(len(text)))) == Redactor().text(text)


@settings(max_examples=300, deadline=None)
@given(text=texts)
def test_what_was_there_comes_back(text: str) -> None:
    """Every token is put back, and nothing that only looks like one."""
    redactor = Redactor()
    assert redactor.restore(redactor.text(text)) == text


def test_every_cut_of_a_key() -> None:
    """It becomes one token, wherever it is cut."""
    text = f"before\n  {KEY}\nafter mail a@b.co\n"
    whole = "before\n  <PRIVATE_KEY_1>\nafter mail <EMAIL_1>\n"
    assert Redactor().text(text) == whole
    for cut in range(len(text)):
        assert in_pieces(text, [cut]) == whole


@pytest.mark.parametrize("kind", ["token", "jwt", "card", "iban", "email", "phone"])
def test_every_cut_of_a_value(kind: str) -> None:
    """A secret that is split across two pieces is found."""
    value = VALUES.make(kind)
    text = f"key is {value}\nnext"
    whole = Redactor().text(text)
    assert whole == f"key is <{kind.upper()}_1>\nnext"
    assert {in_pieces(text, [cut]) for cut in range(len(text))} == {whole}


LONG = {
    "base64": lambda: VALUES.some("abcdefghijklmnopqrstuvwxyzABCDEF0123456789+/", 3 * WINDOW),
    "one line of JSON": lambda: ",".join(f'{{"id": {n}, "password": "{VALUES.password()}", "mail": "{VALUES.email()}"}}' for n in range(3000)),
    "words": lambda: "plain words and nothing else " * 8000,
    "an endless key": lambda: "-----BEGIN PRIVATE KEY-----\n" + "\n".join(VALUES.some("abcXYZ019+/", 64) for _ in range(3000)),
    "an endless key in one line": lambda: "k='-----BEGIN PRIVATE KEY-----\\n" + VALUES.some("abcXYZ019+/", 3 * WINDOW) + "' and more",
    "a key, then a long line": lambda: KEY[: len(KEY) // 2] + "\n" + "x" * (2 * WINDOW) + "\n",
    "spaces": lambda: " " * (3 * WINDOW),
    "digits": lambda: "1234 " * WINDOW,
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
def test_long_lines(name: str) -> None:
    """Longer than what is held back: still the same, however it is cut, and the hold has a bound."""
    text = LONG[name]()
    whole = Redactor().text(text)
    for seed in range(3):
        chance = random.Random(seed)
        stream = Redactor().stream()
        parts, place, most = [], 0, 0
        while place < len(text):
            size = chance.choice([1, 7, 200, 4096, 65536, 100_000])
            parts.append(stream.feed(text[place : place + size]))
            most = max(most, stream.held)
            place += size
        assert "".join(parts) + stream.finish() == whole
        assert most <= WINDOW + LONGEST


def test_secrets_in_a_long_line_are_found() -> None:
    """None is lost where a line is cut into windows."""
    text = LONG["one line of JSON"]()
    redacted = Redactor().text(text)
    assert redacted == Redactor().text(text.replace("},{", "},\n{")).replace("},\n{", "},{")
    assert "@" not in redacted.replace("P@ss", "")


def test_nothing_of_an_endless_key_comes_out() -> None:
    """It becomes several tokens."""
    for name in ("an endless key", "an endless key in one line"):
        redacted = Redactor().text(LONG[name]())
        assert re.fullmatch(r"(k=')?(<PRIVATE_KEY_\d+>)+(' and more)?", redacted)


def test_a_key_without_its_end() -> None:
    """`head -4 id_rsa`: what follows is not part of it."""
    lines = KEY.splitlines()[:4]
    text = "\n".join([*lines, "the end of it", "more"])
    assert Redactor().text(text) == "<PRIVATE_KEY_1>\nthe end of it\nmore"


def test_as_soon_as_possible() -> None:
    """Plain words come out before their line ends; what could become something does not."""
    stream = Redactor().stream()
    assert stream.feed("What is your name, dear friend ") == ""  # `what` may become WhatsApp
    assert Redactor().stream().feed("Please enter the first line ") == "Please enter the first line "
    assert Redactor().stream().feed("Please enter the password ") == ""
    assert Redactor().stream().feed("a whole line 202-555-0143\nand ") == "a whole line <PHONE_1>\nand "


def test_bytes() -> None:
    """UTF-8 that is cut in the middle of a letter, and bytes that are no UTF-8 at all."""
    data = "é mail a@b.co 日本\n".encode() + b"\xff\xfe\x80 a@b.co \xe6\n" + b"\xc3"
    wanted = "é mail <EMAIL_1> 日本\n".encode() + b"\xff\xfe\x80 <EMAIL_1> \xe6\n" + b"\xc3"
    for size in (1, 2, 3, 100):
        stream = Redactor().byte_stream()
        pieces = [stream.feed(data[place : place + size]) for place in range(0, len(data), size)]
        assert b"".join(pieces) + stream.finish() == wanted


@pytest.mark.parametrize("form", FORMS)
def test_what_tools_print_is_the_same_in_pieces(form: str) -> None:
    """Cut through an escape sequence, too."""
    examples = [example for example in corpus(rounds=1) if example.spans][::4]
    text = "".join(f"{escaped(example, form).text}\n" for example in examples)
    whole = Redactor(("secrets", "personal")).text(text)
    for size in (7, 501):
        stream = Redactor(("secrets", "personal")).stream()
        pieces = [stream.feed(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join(pieces) + stream.finish() == whole
