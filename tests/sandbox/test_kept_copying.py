"""Single files of a hostile tree, copied: what costs nothing to make costs little to keep."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from belljar.sandbox.files.copying import Copier, Room
from belljar.sandbox.kept import store


def test_holes_take_no_endless_time(tmp_path: Path) -> None:
    """A hundred thousand files of holes take no room. Their digests would take hours."""
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from/small").write_text("small")
    for name in ("first", "second", "third"):
        with open(tmp_path / f"from/{name}", "wb") as file:
            file.truncate(1 << 20)
    source, room = os.open(tmp_path / "from", os.O_RDONLY), Room(1 << 30, digested=(2 << 20) + 5)
    with Copier(source, str(tmp_path / "to"), room, own=True) as copier:
        sides = {name: copier.copy(name) for name in ("first", "second", "third", "small")}
    os.close(source)
    zeros = hashlib.sha256(bytes(1 << 20)).hexdigest()
    assert [sides[name].digest for name in ("first", "second", "third")] == [zeros, zeros, ""]
    assert sides["small"].digest == hashlib.sha256(b"small").hexdigest()
    assert (tmp_path / "to/third").stat().st_size == 1 << 20
    assert all(side.missing == "" for side in sides.values())


def test_empty_files_count_as_well(state_directory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred runs with a hundred thousand empty files each would take all inodes."""
    monkeypatch.setattr(store, "MAX_TOTAL_BYTES", 25 * 4096)
    place = Path(state_directory, "changes")
    for run in ("1-old", "2-new"):
        (place / run / "after").mkdir(parents=True)
        (place / run / "manifest.json").touch()
        for number in range(20):
            (place / run / "after" / str(number)).touch()
    store._forget_old(str(place))
    assert [one.name for one in place.iterdir()] == ["2-new"]
