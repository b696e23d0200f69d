"""What is passed over to be fast has nothing in it: the rules that the shortcuts rest on."""

from __future__ import annotations

import random

import pytest
from redaction_values import Values

from belljar.redaction import Redactor
from belljar.redaction.finders.shapes import Shapes
from belljar.redaction.finders.vendors import _BEFORE_LONG_WORDS, CONTEXT, SHORTEST, VENDORS
from belljar.redaction.view import TextView

VALUES = Values(17)


@pytest.mark.parametrize("row", [*VENDORS, *_BEFORE_LONG_WORDS], ids=lambda row: f"{row.whose} {row.prefix}")
def test_a_prefix_is_no_hexadecimal_number(row: tuple[str, str, str, bool]) -> None:
    """Digests and UUIDs are passed over, so no prefix may be made of their digits alone."""
    assert set(row[1].lower()) - set("0123456789abcdef-_.")
    assert len(row[1]) <= CONTEXT or row[1].replace("_", "").replace("-", "").isalnum()


@pytest.mark.parametrize(
    "text",
    [
        "hvs." + "0123456789abcdef" * 2,
        "ya29.0a1b2c3d-4e5f-6a7b-8c9d-0e1f2a3b4c5d",
        "8123456789:AAbbccddeeff00112233445566778899aab",
    ],
)
def test_hexadecimal_after_a_sign(text: str) -> None:
    """A word of hexadecimal digits alone is a token if what is before it says so."""
    assert len(text) > SHORTEST
    assert Redactor().text(f"see {text} there\n") == "see <TOKEN_1> there\n"


SHAPES = (b"000-00-0000", b"000.000.000-00", b"00 00 00 00 00", b"000) 0000 0000", b"AA 00 00 00 A", b"0" * 15)


def test_shapes_are_found_where_they_are() -> None:
    """Each where it begins a word, with few of them and with so many that each is looked for by itself."""
    chance = random.Random(3)
    for many in (3, 900):
        pieces = [chance.choice([*SHAPES, b"word", b"2026-03-01 12:00", b"x12-34"]) for _ in range(many * 6)]
        text = b", ".join(pieces).replace(b"A", b"K").replace(b"0", b"7").decode()
        view, wanted, place = TextView(text), [], 0
        for piece in pieces:
            if piece in SHAPES:
                wanted.append((place, piece))
            place += len(piece) + 2
        found = Shapes((shape, shape) for shape in SHAPES).word_starts(view)
        assert sorted(set(found)) == wanted


def test_a_shared_access_signature() -> None:
    """`sig=` is a name and its sign at once."""
    text = f"https://files.example.com/c?sv=2020&sig={VALUES.secret()}&se=1 sig=5 sigma=0.5\n"
    assert "sig=<NAMED_SECRET_1>&se=1 sig=5 sigma=0.5" in Redactor().text(text)
