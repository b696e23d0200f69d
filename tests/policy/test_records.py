"""Records are dataclasses in all that belljar asks of one; each test runs on both kinds."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from belljar.policy import records


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
