"""Single files of a hostile tree, copied: what costs nothing to make costs little to keep."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from belljar.sandbox.kept.copying import Copier, Room


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
