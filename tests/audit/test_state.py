"""The state directory is its owner's alone, also if it was there before; what is another's is left as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from belljar.audit.log import record
from belljar.state import private_directory, state_directory


def mode(path: Path) -> int:
    """Who may do what with it."""
    return path.stat().st_mode & 0o7777


@pytest.fixture
def state() -> Path:
    """One that was there before, and is open to all."""
    path = Path(state_directory())
    path.chmod(0o755)
    return path


def test_closed_when_something_is_written(state: Path) -> None:
    """With nothing in it, or what belljar put there."""
    record("first")
    assert (mode(state), mode(state / "audit")) == (0o700, 0o700)
    state.chmod(0o750)
    (state / "audit").chmod(0o755)
    (state / "runs.sqlite-wal").touch()
    private_directory(str(state / "audit"))
    assert (mode(state), mode(state / "audit")) == (0o700, 0o700)


def test_where_others_keep_something(state: Path) -> None:
    """It stays as it is, and what belljar keeps there is closed."""
    (state / "a file of the user").touch()
    record("first")
    assert (mode(state), mode(state / "audit")) == (0o755, 0o700)


@pytest.mark.parametrize("before", [0o1777, 0o1755])
def test_a_place_for_all(state: Path, before: int) -> None:
    """As `/tmp` is: nobody is locked out of it."""
    state.chmod(before)
    record("first")
    assert mode(state) == before


def test_what_is_not_the_state_directory(tmp_path: Path) -> None:
    """Neither a directory above, nor one elsewhere, nor one that a link leads to."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    private_directory(str(elsewhere))
    private_directory(str(elsewhere / "a" / "b"))
    os.symlink(elsewhere, Path(state_directory()) / "outputs")
    private_directory(f"{state_directory()}/outputs")
    assert mode(elsewhere) == 0o755
    assert mode(elsewhere / "a") == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_another_users(state: Path) -> None:
    """Is another's to close."""
    os.chown(state, 12345, 12345)
    record("first")
    assert mode(state) == 0o755
