"""JSON by the parts of the standard library that are written in C: the same text, the same values."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from belljar._startup import json_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, st.booleans())
def test_as_the_standard_library(value: object, sort: bool) -> None:
    text = json_text.dumps(value, sort_keys=sort)
    assert text == json.dumps(value, sort_keys=sort, separators=(",", ":"))
    assert json_text.loads(text) == value


def test_names_of_files_that_are_no_text() -> None:
    """Bytes that are no UTF-8 travel as lone surrogates."""
    assert json_text.loads(json_text.dumps(["\udc80"])) == ["\udc80"]


def test_numbers_that_are_none() -> None:
    assert math.isnan(json_text.loads(json_text.dumps(math.nan)))
    assert json_text.loads(json_text.dumps(-math.inf)) == -math.inf


@pytest.mark.parametrize("text", ["", "{", "{}x", " 1", "nul", '"\n"', "[1,]"])
def test_what_is_no_json(text: str) -> None:
    with pytest.raises(ValueError):
        json_text.loads(text)


def test_what_can_not_be_written() -> None:
    with pytest.raises(TypeError, match="set can't be written as JSON"):
        json_text.dumps({"a": {1}})


def test_without_the_parts_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "_json", None)
    assert json_text.loads(json_text.dumps({"a": [1, "b"]})) == {"a": [1, "b"]}
