"""Mistakes at the Python API: each is a UsageError whose hint is the thing to write."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.errors import UsageError

pytestmark = [pytest.mark.backend("bubblewrap"), pytest.mark.host]


def pooled(code: Any) -> Any:
    with belljar.Pool(size=1) as pool:
        return pool.run(code)


SCRIPT: Any = Path("script.py")
MISTAKES: list[tuple[str, Callable[[], Any], str, str]] = [
    ("one setting", lambda: belljar.run("1", overrides="proc.pids=3"), "a list", "overrides=['proc.pids=3']"),
    ("a path", lambda: belljar.run(SCRIPT), "this is PosixPath", "path.read_bytes()"),
    ("a path in a pool", lambda: pooled(SCRIPT), "this is PosixPath", "path.read_bytes()"),
    ("no time", lambda: belljar.run("1", timeout=0), "wanted seconds, more than 0", "timeout=5"),
    ("a wrong time", lambda: belljar.Pool(size=1, timeout=-1), "wanted seconds, more than 0", "timeout='5s'"),
]


@pytest.mark.parametrize(("mistake", "says", "hint"), [row[1:] for row in MISTAKES], ids=[row[0] for row in MISTAKES])
def test_a_mistake(mistake: Callable[[], Any], says: str, hint: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        mistake()
    assert hint in (caught.value.hint or "")


def test_a_number_is_seconds_for_a_step() -> None:
    with belljar.Session() as session:
        assert session.run("import time; time.sleep(60)", timeout=0.5).outcome == "timeout"
        assert session.run("import time; time.sleep(0.1)", timeout="30s").outcome == "ok"
        with pytest.raises(UsageError, match="wanted seconds"):
            session.run("1", timeout=0)


def test_a_number_is_seconds_for_a_run() -> None:
    """Five would have been five milliseconds."""
    assert belljar.run("import time; time.sleep(0.3); print('slept')", timeout=30).stdout == "slept\n"
