"""The run store where it can't be as it should: damaged, full, locked, in the way of others, by hand."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from belljar.audit.log import audit_log, record
from belljar.audit.store import RunStore


def ran(*names: str) -> None:
    """Runs, as far as the log tells."""
    for name in names:
        audit_log().append(
            {"event": "created", "run": name, "kind": "run", "backend": "bubblewrap", "policy": "sha256:0"},
            {"event": "usage", "run": name, "samples": [[1.0, 0.5, 1000, 1]]},
            {"event": "finished", "run": name, "outcome": "ok", "duration": 0.5},
        )


@pytest.fixture
def path() -> Path:
    """Of a store that has two runs."""
    ran("a-1", "b-2")
    with RunStore() as store:
        assert not store.in_memory
        return Path(store.path)


def names() -> list[str]:
    """The runs that it has, whatever it is."""
    with RunStore() as store:
        return sorted(row["run"] for row in store.runs())


def by_hand(path: Path, statement: str) -> None:
    """Do something to it that belljar does not."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


def directory_in_the_way(path: Path) -> None:
    """An empty one."""
    path.unlink()
    path.mkdir()


def link_in_the_way(path: Path) -> None:
    """To a file of someone else's, which stays as it is."""
    other = path.with_name("other")
    other.write_text("not ours")
    path.unlink()
    path.symlink_to(other)


def pipe_in_the_way(path: Path) -> None:
    """Nobody reads from it."""
    path.unlink()
    os.mkfifo(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a directory": directory_in_the_way,
    "a link": link_in_the_way,
    "a pipe": pipe_in_the_way,
    "runs deleted": lambda path: by_hand(path, "delete from runs"),
    "one run deleted": lambda path: by_hand(path, "delete from runs where run = 'a-1'"),
    "records deleted": lambda path: by_hand(path, "delete from events where run = 'b-2'"),
    "samples deleted": lambda path: by_hand(path, "delete from samples"),
    "its place deleted": lambda path: by_hand(path, "delete from place"),
    "a table dropped": lambda path: by_hand(path, "drop table events"),
    "other columns": lambda path: by_hand(path, "alter table place add column another text"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_made_anew(path: Path, damage: Callable[[Path], object]) -> None:
    """What is not what was written is made again from the log, and in its place."""
    damage(path)
    with RunStore() as store:
        assert (store.rebuilt, store.in_memory) == (True, False)
    assert names() == ["a-1", "b-2"]
    assert path.is_file()
    assert not path.is_symlink()
    with RunStore() as store:
        assert not store.rebuilt
        assert len(store.samples("a-1")) == 1
    assert not path.with_name("other").exists() or path.with_name("other").read_text() == "not ours"


def test_a_directory_with_something_in_it(path: Path) -> None:
    """Is nobody's to remove: the index is in memory."""
    path.unlink()
    path.mkdir()
    (path / "mine").touch()
    assert names() == ["a-1", "b-2"]
    assert (path / "mine").exists()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for nobody."""
    monkeypatch.setattr("belljar.audit.store._PATIENCE_SECONDS", 0.05)


@pytest.fixture
def locked(path: Path) -> Iterator[Path]:
    """A store that another connection writes to, and does not let go of."""
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("begin immediate")
        yield path
        database.execute("rollback")


@pytest.mark.usefixtures("impatient")
def test_locked_by_another(locked: Path) -> None:
    """It stays where it is, and whoever asks gets an answer."""
    before = locked.stat().st_ino
    record("later")
    ran("c-3")
    with RunStore() as store:
        assert (store.in_memory, store.rebuilt) == (True, False)
        assert len(store.runs()) == 3
    assert locked.stat().st_ino == before


@pytest.mark.usefixtures("impatient")
def test_made_anew_by_another(path: Path) -> None:
    """One that does not get done is not waited for."""
    path.write_bytes(os.urandom(10_000))
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with RunStore() as store:
            assert store.in_memory
            assert len(store.runs()) == 2
    finally:
        os.close(descriptor)


FULL = """
import os, sys
from belljar.audit.log import audit_log
from belljar.audit.store import RunStore
for number in range(40):
    audit_log().append({"event": "created", "run": f"r-{number}", "text": "x" * 500})
if sys.argv[2] == "begun":
    RunStore().close()
    for number in range(40, 80):
        audit_log().append({"event": "created", "run": f"r-{number}", "text": "x" * 500})
with open(sys.argv[1] + "/ballast", "wb", buffering=0) as file:
    try:
        while file.write(b"0" * 1024):
            pass
    except OSError:
        pass
with RunStore() as store:
    assert store.in_memory and not store.rebuilt
    print(len(store.runs(limit=1000)))
os.unlink(sys.argv[1] + "/ballast")
with RunStore() as store:
    assert not store.in_memory and not store.rebuilt
    print(len(store.runs(limit=1000)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk has to be mounted, which only root may do")
@pytest.mark.parametrize("begun", ["begun", "new"])
def test_a_full_disk(tmp_path: Path, begun: str) -> None:
    """Who asks what ran gets an answer; with room again it is where it was."""
    inside = f"mount -t tmpfs -o size=512k none {tmp_path} && BELLJAR_STATE_DIR={tmp_path}/state exec {sys.executable}"
    command = ["unshare", "--mount", "sh", "-c", f'{inside} -c "$0" "$1" "$2"', FULL, str(tmp_path), begun]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == (["80", "80"] if begun == "begun" else ["40", "40"])
