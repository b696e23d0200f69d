"""The image commands where no engine or no program is: what is missing, and what to type."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from image_files import CLEAN, saved
from image_process import Call

from belljar.backends.container.images import store
from belljar.backends.container.images.sources import building_program
from belljar.backends.container.images.store import Record
from belljar.errors import PrerequisiteError

RECORD = Record("sha256:" + "a" * 64, "x:1", "0123", "sha256:b", 5, "bookworm", "amd64", ("bash 5.2",), ("numpy",))


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["build", "--engine", "rkt"], "there is no engine 'rkt'"),
        (["build", "--with", "git"], "needs a name of its own"),
        (["build", "--name", "belljar-base", "--with", "git"], "the base image's own name"),
        (["build", "--output", "/no/such/directory/x.tar"], "can't be written"),
        (["scan", "--input", "x", "y"], "--input names a file"),
        (["rm"], "too few words"),
        (["sacn"], "did you mean `belljar image scan`?"),
    ],
)
def test_usage(image: Call, words: list[str], text: str) -> None:
    """Nonsense is told before anything is done."""
    done = image(*words)
    assert (done.code, done.out) == (2, "")
    assert text in done.err


@pytest.mark.parametrize("command", ["build", "ls", "inspect", "rm", "scan", "pull"])
def test_help(image: Call, command: str) -> None:
    """Every command has examples and can answer a program."""
    done = image(command, "--help")
    assert done.code == 0
    assert "examples:" in done.out
    assert "--json" in done.out


def test_scan_of_a_file(image: Call, tmp_path: Path) -> None:
    """Without any engine: what `docker save` wrote."""
    for files, code in ((CLEAN, 0), ({**CLEAN, "app/.env": "A=1"}, 1)):
        (tmp_path / "image.tar").write_bytes(saved(files))
        done = image("scan", "--input", str(tmp_path / "image.tar"), "--json")
        assert (done.code, done.json["serious"]) == (code, bool(code))


def test_names_cannot_deceive(image: Call, tmp_path: Path) -> None:
    """A path in an image may hold escape sequences; a terminal gets none."""
    (tmp_path / "image.tar").write_bytes(saved({**CLEAN, "a\x1b[2J/.env": "A=1"}))
    done = image("scan", "--input", str(tmp_path / "image.tar"))
    assert "\x1b" not in done.out
    assert "\\x1b" in done.out


STEPS = """
from belljar.cli.terminal.progress import Progress
with Progress("x") as progress:
    progress("one")
    progress("one")
    progress("two")
    if progress._terminal:
        progress._done.wait(1.2)
"""


def test_progress_in_a_file() -> None:
    """A line for each step, once."""
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "belljar: x: one (0 s)\nbelljar: x: two (0 s)\n")


def test_progress_on_a_terminal() -> None:
    """One line that changes, and is gone at the end."""
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-c", STEPS], stderr=theirs, check=True)
    os.close(theirs)
    shown = os.read(ours, 4096).decode()
    os.close(ours)
    assert shown.startswith("\r\x1b[Kbelljar: x: two (")
    assert shown.endswith("\r\x1b[K")
    assert "\n" not in shown


def test_a_missing_program() -> None:
    """Named with the package that has it, or with another way where there is no apt."""
    with pytest.raises(PrerequisiteError) as raised:
        building_program("no-such-program", "mmdebstrap")
    assert "apt install mmdebstrap" in raised.value.hint or "Dockerfile" in raised.value.hint


def test_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is found again by its recipe; half of it is not taken for the whole."""
    monkeypatch.setenv("BELLJAR_IMAGE_CACHE", str(tmp_path / "cache"))
    assert store.cached("0123") is None
    (tmp_path / "archive").write_bytes(b"image")
    store.keep(str(tmp_path / "archive"), RECORD)
    assert store.cached("0123") == RECORD
    os.unlink(store.archive_path("0123"))
    assert store.cached("0123") is None


def test_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the state directory, until the image is removed."""
    monkeypatch.setenv("BELLJAR_IMAGE_CACHE", str(tmp_path))
    assert store.recall(RECORD.id) is None
    store.remember(RECORD)
    assert store.recall(RECORD.id) == RECORD
    store.forget(RECORD.id, archive=True)
    assert store.recall(RECORD.id) is None
    assert store.recall("sha256:../../etc/passwd") is None


def test_a_build_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scratch directory goes, whatever ends the build; what a killed one left goes with the next."""
    monkeypatch.setenv("BELLJAR_IMAGE_CACHE", str(tmp_path))
    (tmp_path / "build-0123-killed").mkdir()
    (tmp_path / "build-4567-other").mkdir()

    def build() -> None:
        with store.building("0123") as scratch:
            Path(scratch, "file").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0123.lock", "build-4567-other"]
