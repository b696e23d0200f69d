"""Whose turn it is, where runs have to wait."""

from __future__ import annotations

from belljar.backends.fair_queue import FairQueue


def turns(*added: str) -> FairQueue[str]:
    """Each is a caller's letter and a number."""
    made: FairQueue[str] = FairQueue()
    for waiter in added:
        made.add(waiter[0], waiter)
    return made


def test_callers_in_turn() -> None:
    """One of each, in the order in which each came; who comes later has the next turn but one at most."""
    waiting = turns("a1", "a2", "a3", "b1")
    assert waiting.next() == "a1"
    waiting.add("c", "c1")
    assert [waiting.next() for _ in range(len(waiting))] == ["b1", "a2", "c1", "a3"]
    assert not waiting


def test_one_that_is_called_off() -> None:
    """Is taken out once, and its caller with it if there was no other."""
    waiting = turns("a1", "b1", "b2")
    assert waiting.remove("a", "a1")
    assert not waiting.remove("a", "a1")
    assert waiting.remove("b", "b1")
    assert (len(waiting), waiting.next(), len(waiting)) == (1, "b2", 0)
