"""Records are dataclasses in all that belljar asks of one, so for named tuples and words; each test runs on both."""

from __future__ import annotations

import copy
import dataclasses
import enum
import json
import pickle
import typing
from typing import Any

import pytest

from belljar._startup import records


def make(library: Any) -> Any:
    class Point:
        """A point."""

        x: int
        y: int = 2
        tags: list[str] = library.field(default_factory=list)
        note: str = library.field(default="", compare=False, repr=False)

        @property
        def total(self) -> int:
            return self.x + self.y

    Point.__module__, Point.__qualname__ = __name__, "Point"
    return library.dataclass(frozen=True, slots=True)(Point)


@pytest.fixture(params=[dataclasses, records], ids=["standard", "ours"])
def point(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = make(request.param)
    monkeypatch.setitem(globals(), "Point", made)
    return made


def test_made_and_shown(point: Any) -> None:
    """Values by place or by name, defaults, and a readable form."""
    assert repr(point(1, tags=["a"], note="hidden")) == "Point(x=1, y=2, tags=['a'])"
    assert point(1).total == 3
    assert point(1).tags is not point(1).tags
    assert point.__doc__ == "A point."


WRONG: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((), {}),
    ((1, 2, [], "", 5), {}),
    ((1,), {"x": 1}),
    ((1,), {"z": 1}),
]


@pytest.mark.parametrize(("values", "named"), WRONG)
def test_wrong_calls(point: Any, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A call that does not fit is a TypeError."""
    with pytest.raises(TypeError):
        point(*values, **named)


def test_compared_and_hashed(point: Any) -> None:
    """Equal by the fields that count, and never to another class."""
    assert point(1, 2, (), "a") == point(1, 2, (), "b")
    assert hash(point(1, 2, (), "a")) == hash(point(1, 2, (), "b"))
    assert point(1) != point(2)
    assert point(1) != (1, 2, [], "")
    with pytest.raises(TypeError):
        hash(point(1))


def test_frozen_with_slots(point: Any) -> None:
    """Nothing changes after it is made, and nothing is added."""
    made = point(1)
    for change in (lambda: setattr(made, "x", 2), lambda: delattr(made, "x")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change()
    assert not hasattr(made, "__dict__")
    assert made.x == 1


def test_copied(point: Any) -> None:
    """`copy`, `pickle`, `replace`, `asdict`, `fields` and `match` work."""
    made = point(1, 5, ["a"], "n")
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    changed = dataclasses.replace(made, y=6)
    assert (changed.x, changed.y, changed.tags, changed.note) == (1, 6, ["a"], "n")
    assert dataclasses.asdict(made) == {"x": 1, "y": 5, "tags": ["a"], "note": "n"}
    assert [entry.name for entry in dataclasses.fields(made)] == ["x", "y", "tags", "note"]
    assert dataclasses.is_dataclass(point)
    match made:
        case point(x, y):
            assert (x, y) == (1, 5)


def test_a_record_is_always_frozen() -> None:
    """There is one form, so that nobody wonders."""
    with pytest.raises(TypeError, match="a record is frozen and has slots"):
        records.dataclass(frozen=False, slots=True)
    with pytest.raises(TypeError, match="a record has no base"):
        records.dataclass(frozen=True, slots=True)(type("Child", (dict,), {}))


# --- named tuples and words ------------------------------------------------------------------------------------------


def make_pair(base: Any) -> Any:
    class Pair(base):  # type: ignore[misc]
        """Two things."""

        left: int
        right: str = "r"

        @property
        def both(self) -> str:
            return f"{self.left}{self.right}"

    Pair.__module__, Pair.__qualname__ = __name__, "Pair"
    return Pair


@pytest.fixture(params=[typing.NamedTuple, records.NamedTuple], ids=["standard", "ours"])
def pair(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = make_pair(request.param)
    monkeypatch.setitem(globals(), "Pair", made)
    return made


def test_a_named_tuple(pair: Any) -> None:
    """It is a tuple with names, and can all that `typing.NamedTuple` can."""
    made = pair(1, right="x")
    assert made == (1, "x") == pair(left=1, right="x") == pair._make([1, "x"])
    assert (made.left, made.right, made.both, pair(1)) == (1, "x", "1x", (1, "r"))
    assert repr(made) == "Pair(left=1, right='x')"
    assert made._replace(left=2) == (2, "x")
    assert made._asdict() == {"left": 1, "right": "x"}
    assert (pair._fields, pair._field_defaults, pair.__doc__) == (("left", "right"), {"right": "r"}, "Two things.")
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
    assert type(pickle.loads(pickle.dumps(made))) is pair
    assert not hasattr(made, "__dict__")
    match made:
        case pair(left, right):
            assert (left, right) == (1, "x")


@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, "a", 3), {}), ((1,), {"left": 1}), ((1,), {"z": 1})])
def test_a_named_tuple_called_wrongly(pair: Any, values: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A call that does not fit is a TypeError; what is replaced has to be there."""
    with pytest.raises(TypeError):
        pair(*values, **named)
    with pytest.raises(TypeError):
        pair._make([1])
    with pytest.raises((ValueError, TypeError)):
        pair(1)._replace(z=1)
    with pytest.raises(AttributeError):
        pair(1).left = 2


def make_colour(base: Any) -> Any:
    class Colour(base):  # type: ignore[misc]
        """What it looks like."""

        RED = "red"
        DARK_BLUE = "dark blue"

    Colour.__module__, Colour.__qualname__ = __name__, "Colour"
    return Colour


@pytest.fixture(params=[enum.StrEnum, records.StrEnum], ids=["standard", "ours"])
def colour(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    made = make_colour(request.param)
    monkeypatch.setitem(globals(), "Colour", made)
    return made


def test_words(colour: Any) -> None:
    """Each is text and one object, whatever way it is come by."""
    blue = colour.DARK_BLUE
    assert blue == "dark blue" == str(blue) == f"{blue}" == blue.value
    assert (blue.name, repr(blue), isinstance(blue, colour)) == ("DARK_BLUE", "<Colour.DARK_BLUE: 'dark blue'>", True)
    assert colour("dark blue") is colour(blue) is colour["DARK_BLUE"] is blue
    assert pickle.loads(pickle.dumps(blue)) is copy.copy(blue) is copy.deepcopy(blue) is blue
    assert (list(colour), len(colour), colour.__doc__) == ([colour.RED, blue], 2, "What it looks like.")
    assert (json.dumps({"is": blue}), {blue: 1}[blue]) == ('{"is": "dark blue"}', 1)
    with pytest.raises(KeyError):
        colour["GREEN"]
    with pytest.raises(ValueError, match="'green' is not a valid Colour"):
        colour("green")
    match blue:
        case colour.RED:
            pytest.fail("it is not red")
        case colour.DARK_BLUE:
            pass
