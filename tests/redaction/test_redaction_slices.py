"""Slices of output: bounded, with what was left out in numbers, and a handle to the whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar.redaction.slices import OutputStore, cut, first_rows, handle_of

LINES = "".join(f"line {number}\n" for number in range(100))


def test_head_and_tail() -> None:
    """The first and the last lines, and a line between them that says what is missing."""
    piece = cut(LINES, head=2, tail=1)
    assert (piece.head, piece.tail, piece.lines, piece.left_out_lines) == ("line 0\nline 1\n", "line 99\n", 100, 97)
    assert (
        str(piece)
        == f"line 0\nline 1\n[768 of 790 characters left out, 97 of 100 lines; the whole is {piece.handle}]\nline 99\n"
    )


def test_what_is_short_stays_whole() -> None:
    """And says so."""
    piece = cut("a\nb\n")
    assert piece.whole
    assert str(piece) == "a\nb\n"


@given(st.text(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 50))
def test_never_more_than_asked(text: str, head: int, tail: int, characters: int) -> None:
    """Whatever the text; and the numbers add up."""
    piece = cut(text, head=head, tail=tail, characters=characters)
    assert len(piece.head) + len(piece.tail) <= characters
    assert len(piece.head) + len(piece.tail) + piece.left_out_characters == len(text)
    assert text.startswith(piece.head)
    assert text.endswith(piece.tail)


def test_rows() -> None:
    """The first of a table."""
    rows = first_rows([[number] for number in range(30)], 3, handle="out-1")
    assert (rows.first, rows.total, rows.left_out, rows.handle) == ([[0], [1], [2]], 30, 27, "out-1")


def test_a_shelf() -> None:
    """Keeps wholes by handle, the newest as far as they fit."""
    shelf = OutputStore(most_characters=1000)
    handle = shelf.put(LINES)
    assert handle == handle_of(LINES) == shelf.put(LINES)
    assert shelf.get(handle, 7, 6) == "line 1"
    shelf.put("x" * 900)
    assert shelf.get(handle) is None
    assert shelf.get(shelf.put("y" * 2000)) is None


@pytest.mark.parametrize("text", ["\udc80", "é", ""])
def test_any_text_has_a_handle(text: str) -> None:
    """Also one that is no UTF-8."""
    assert handle_of(text).startswith("out-")
