"""Listings of an earlier opening: they count for directories that are the same, and never show what is denied."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.backends import denied_walk, remembered_listings
from belljar.backends.denied_walk import Denied, find_denied
from belljar.backends.remembered_listings import Remembered, key_of, read_text, write_text
from belljar.policy.globs import DenyGlobs

PATTERNS = ("**/.env", "**/*.pem", "**/secrets/**")
GLOBS = DenyGlobs(PATTERNS)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory whose listings are kept however small it is, and count at once if nothing changes any more."""
    monkeypatch.setattr(remembered_listings, "LEAST_NAMES", 0)
    monkeypatch.setattr(denied_walk, "_SETTLED_NS", 0)
    top = tmp_path / "project"
    (top / "src/deep").mkdir(parents=True)
    (top / "other").mkdir()
    for name in ("a.py", "src/.env", "src/b.py", "src/deep/key.pem", "other/\nnew line", "other/odd\x01"):
        (top / name).write_text("x")
    os.mkfifo(top / "src/pipe")
    wait_for_another_tick(top)
    return top


def wait_for_another_tick(directory: Path) -> None:
    """Wait until a change would have another ctime."""
    before = time.time_ns()
    while os.stat(directory).st_ctime_ns >= before or time.time_ns() < before + 20_000_000:
        time.sleep(0.005)


def walk(root: Path, text: str) -> tuple[Denied, Remembered]:
    """Walk as a stage does: with the listings of before, and keep those of now."""
    remembered, key = Remembered(text), key_of("/host", "/jar", PATTERNS)
    found = find_denied(str(root), "/host", "/jar", GLOBS, known=remembered.listings(key, str(root)))
    remembered.keep(key, str(root), found)
    return found, remembered


def test_a_second_walk_reads_no_directory_and_finds_the_same(root: Path) -> None:
    first, kept = walk(root, "")
    assert kept.changed
    assert first.listed_again == 4
    second, again = walk(root, kept.text)
    assert (second.listed_again, again.changed) == (0, False)
    assert again.text == kept.text
    for name in ("paths", "sockets", "directories", "names"):
        assert getattr(second, name) == getattr(first, name), name
    assert sorted(second.paths) == ["src/.env", "src/deep/key.pem"]


def _add(root: Path) -> None:
    (root / "src/deep/.env").write_text("later")


def _rename(root: Path) -> None:
    (root / "src/b.py").rename(root / "src/deep/.env")


def _link(root: Path) -> None:
    os.link(root / "a.py", root / "src/deep/.env")


def _replace_directory(root: Path) -> None:
    (root / "src/deep").rename(root / "gone")
    (root / "src/deep").mkdir()
    (root / "src/deep/.env").write_text("another directory of this name")
    past = os.stat(root / "gone")
    os.utime(root / "src/deep", ns=(past.st_atime_ns, past.st_mtime_ns))


def _exchange(root: Path) -> None:
    (root / "new").mkdir()
    (root / "new/.env").write_text("made beside it")
    (root / "src/deep/key.pem").unlink()
    (root / "new").rename(root / "src/deep")


def _forge_time(root: Path) -> None:
    past = os.stat(root / "src/deep")
    (root / "src/deep/.env").write_text("as if nothing happened")
    os.utime(root / "src/deep", ns=(past.st_atime_ns, past.st_mtime_ns))


@pytest.mark.parametrize("change", [_add, _rename, _link, _replace_directory, _exchange, _forge_time])
def test_a_directory_that_changed_is_read_again(root: Path, change: Callable[[Path], None]) -> None:
    _first, kept = walk(root, "")
    change(root)
    second, again = walk(root, kept.text)
    assert "src/deep/.env" in second.paths
    assert again.changed
    assert 0 < second.listed_again < 5


def test_a_directory_that_changed_just_now_is_not_remembered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two changes within a tick have one ctime."""
    monkeypatch.setattr(denied_walk, "_SETTLED_NS", 2_000_000_000)
    _first, kept = walk(root, "")
    assert walk(root, kept.text)[0].listed_again == 4


def test_other_names_of_a_denied_file_are_found_although_nothing_else_changed(root: Path) -> None:
    _first, kept = walk(root, "")
    os.link(root / "src/.env", root / "other/plain")
    assert "other/plain" in walk(root, kept.text)[0].paths


@pytest.mark.parametrize(
    "key",
    [
        key_of("/host", "/jar", (*PATTERNS, "**/*.py")),
        key_of("/host", "/elsewhere", PATTERNS),
        key_of("/elsewhere", "/jar", PATTERNS),
    ],
)
def test_listings_do_not_count_for_other_patterns_or_places(root: Path, key: str) -> None:
    _first, kept = walk(root, "")
    assert Remembered(kept.text).listings(key, str(root)) == {}


def test_a_file_system_without_reliable_ctimes_is_not_remembered(root: Path) -> None:
    _first, kept = walk(root, "")
    assert Remembered(kept.text).listings(key_of("/host", "/jar", PATTERNS), "/proc") == {}


@pytest.mark.parametrize("damage", [lambda text: text[:-3], lambda text: text.replace("\0", " "), lambda _text: "x"])
def test_a_damaged_text_is_not_used(root: Path, damage: Callable[[str], str]) -> None:
    first, kept = walk(root, "")
    assert sorted(walk(root, damage(kept.text))[0].paths) == sorted(first.paths)


def test_what_a_jar_has_another_mount_over_counts_as_not_visible(root: Path) -> None:
    found = find_denied(str(root), "/host", "/jar", GLOBS, covered={"src"})
    assert sorted(found.directories) == ["", "other", "src"]
    assert found.names == 5
    assert "src/deep/key.pem" in found.paths  # for its other names


def test_a_file_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    path = str(tmp_path / "kept")
    write_text(path, "text\udcff")
    assert read_text(path) == "text\udcff"
    os.chmod(path, 0o620)
    assert read_text(path) == ""
    os.chmod(path, 0o600)
    os.rename(path, f"{path}.real")
    os.symlink(f"{path}.real", path)
    assert read_text(path) == ""


@pytest.mark.host
@pytest.mark.backend("bubblewrap")
def test_a_name_denied_since_the_last_opening_is_not_in_the_jar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With so many names that they are remembered; the second opening uses what the first one saw."""
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path / "state"))
    project = tmp_path / "project"
    for directory in ("one", "two"):
        (project / directory).mkdir(parents=True)
        for number in range(remembered_listings.LEAST_NAMES // 2 + 1):
            (project / directory / f"file{number}").touch()
    deadline = time.time_ns() + denied_walk._SETTLED_NS + 100_000_000
    while time.time_ns() < deadline:
        time.sleep(0.1)

    def names(directory: str) -> list[str]:
        with Sandbox(workspace=project) as jar:
            ran = jar.exec(["ls", "-A", directory])
            assert ran.ok, ran
            return ran.stdout.split()

    assert ".env" not in names("one")
    (kept,) = (tmp_path / "state/listings").iterdir()
    before = kept.read_bytes()
    assert b"/one" in before
    assert ".env" not in names("two")
    assert kept.read_bytes() == before
    (project / "one/.env").write_text("TOKEN=1")
    (project / "two/id_rsa_of_work").write_text("x")
    assert ".env" not in names("one")
    assert "id_rsa_of_work" not in names("two")
    assert "file1" in names("two")
