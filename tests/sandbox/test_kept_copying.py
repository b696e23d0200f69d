"""Single files of a hostile tree, copied: what costs nothing to make costs little to keep."""

from __future__ import annotations

import hashlib
import json
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


def _kept_work(state: str, run: str, *, objects: int) -> tuple[Path, Path]:
    """Work of a run that changed one file, with objects of git's that could not be taken in."""
    work, commits = Path(state, "changes", run), Path(state, "commits", f"{run}-0")
    (work / "after").mkdir(parents=True)
    (commits / "packs").mkdir(parents=True)
    change = {"path": "a", "kind": "added", "what": "file"}
    row = {"change": change, "after": None, "before": None, "known": True, "within": {}}
    (work / "manifest.json").write_text(json.dumps({"project": "/p", "run": run, "changes": [row]}))
    (commits / "packs/0.pack").write_bytes(bytes([1]) * objects)
    return work, commits


def test_objects_that_could_not_be_taken_in_count_and_go_with_the_work(
    state_directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the limit of all kept work, in `discard`, and when they are old. Those of a run that is ending stay."""
    monkeypatch.setattr(store, "MAX_TOTAL_BYTES", 200 << 10)
    old, new = (_kept_work(state_directory, run, objects=150 << 10) for run in ("1-old", "2-new"))
    ending, lost = Path(state_directory, "commits/3-ending-0"), Path(state_directory, "commits/0-lost-0")
    ending.mkdir()
    lost.mkdir()
    os.utime(lost, (0, 0))
    store._forget_old(os.path.join(state_directory, "changes"))
    assert [path.exists() for path in (*old, *new, ending, lost)] == [False, False, True, True, True, False]
    store.find("2-new").discard()
    assert [path.exists() for path in new] == [True, False]
    os.utime(ending, (0, 0))
    removed, _size = store.forget_before(1000.0)
    assert removed == [str(ending)]


def test_a_list_reads_no_manifest(state_directory: str) -> None:
    """A manifest may have 100 MB; work of before there were summaries has nothing else."""
    work, _commits = _kept_work(state_directory, "1-with", objects=1)
    summary = {"project": "/p", "run": "1-with", "count": 70_000, "files": 60_000}
    (work / "summary.json").write_text(json.dumps(summary))
    (work / "manifest.json").write_text("not read")
    _kept_work(state_directory, "0-without", objects=1)
    assert [(one.run, one.count, one.files) for one in store.kept()] == [
        ("1-with", 70_000, 60_000),
        ("0-without", 1, 1),
    ]
