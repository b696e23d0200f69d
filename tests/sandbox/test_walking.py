"""walk, open_beneath and remove_tree: what a guest left, seen and removed without stepping on it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.backends.bubblewrap.stage.tree import remove_in_place
from belljar.backends.contract import ChangedTree
from belljar.backends.hostile_files import MAX_NAMES, open_beneath, walk
from belljar.errors import UsageError
from belljar.guest.tree import remove_tree
from belljar.policy.load.resolve import resolve
from belljar.sandbox.files.artifacts import save
from belljar.sandbox.files.snapshots import Held, take


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """A descriptor of the guest's directory, `tmp_path/guest`."""
    (tmp_path / "guest").mkdir()
    descriptor = os.open(tmp_path / "guest", os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture
def guest(root: int, tmp_path: Path) -> Path:
    """The same by name."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("precious")
    return tmp_path / "guest"


def deep(path: Path, levels: int) -> None:
    """A tree whose full path is longer than any name may be."""
    current = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d" * 20, dir_fd=current)
        below = os.open("d" * 20, os.O_RDONLY | os.O_DIRECTORY, dir_fd=current)
        os.close(current)
        current = below
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=current))
    os.close(current)


class TestWalk:
    """Every entry once, no link followed, bounded."""

    def test_long_names(self, root: int, guest: Path) -> None:
        """At the end of long paths there is room for few names: the guest chooses how much memory a path takes."""
        current = os.dup(root)
        for _ in range(190):
            os.mkdir("d" * 255, dir_fd=current)
            below = os.open("d" * 255, os.O_RDONLY | os.O_DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
        for number in range(300):
            os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY, dir_fd=current))
        os.close(current)
        found = list(walk(root))
        assert 190 < len(found) < 490
        assert sum(len(entry.path) for entry in found) <= MAX_NAMES
        with pytest.raises(OSError, match="characters"):
            list(walk(root, whole=True))
        with pytest.raises(UsageError, match="characters"):
            take(Held(ChangedTree(root, layered=False), None, (), {}), most_bytes=1 << 20, path=f"{guest.parent}/x.tar")
        assert {path.name for path in guest.parent.iterdir()} == {"guest", "outside"}

    def test_kinds(self, root: int, guest: Path) -> None:
        """Files, directories, links and the rest."""
        (guest / "d" / "e").mkdir(parents=True)
        (guest / "d" / "e" / "f").write_text("abc")
        (guest / "link").symlink_to("../outside")
        os.mkfifo(guest / "pipe")
        found = {entry.path: (entry.kind, entry.size if entry.kind == "file" else None) for entry in walk(root)}
        expected = {"d": "directory", "d/e": "directory", "d/e/f": "file", "link": "link", "pipe": "other"}
        assert {path: kind for path, (kind, _size) in found.items()} == expected
        assert found["d/e/f"] == ("file", 3)
        assert {entry.path for entry in walk(root, recursive=False)} == {"d", "link", "pipe"}

    @pytest.mark.parametrize("own", [False, True])
    def test_closed_directories(self, root: int, guest: Path, own: bool) -> None:
        """Opened if they are the jar's, left alone if they are the host's."""
        (guest / "d").mkdir()
        (guest / "d" / "f").write_text("x")
        (guest / "d").chmod(0)
        found = {entry.path for entry in walk(root, own=own)}
        assert found == ({"d", "d/f"} if own or os.geteuid() == 0 else {"d"})
        if not own:
            assert (guest / "d").stat().st_mode & 0o777 == 0
        (guest / "d").chmod(0o700)

    def test_depth_is_bounded(self, root: int, guest: Path) -> None:
        """600 levels end neither in an error nor in a long wait."""
        deep(guest, 600)
        assert 100 < len(list(walk(root))) <= 601
        remove_tree(root, "d" * 20)
        assert os.listdir(guest) == []


PATHS = ["link", "link/file", "d/../../outside/file", "../outside/file", "d/up/outside/file"]


@pytest.mark.parametrize("path", PATHS)
def test_opening_beneath_follows_no_link_and_does_not_climb(root: int, guest: Path, path: str) -> None:
    """By whatever name."""
    (guest / "d").mkdir()
    (guest / "d" / "up").symlink_to("../..")
    (guest / "link").symlink_to("../outside")
    with pytest.raises(OSError):
        os.close(open_beneath(root, path, os.O_RDONLY, own=True))


def test_opening_a_pipe_does_not_wait(root: int, guest: Path) -> None:
    """Nobody writes to it, and we do not care."""
    os.mkfifo(guest / "pipe")
    os.close(open_beneath(root, "pipe", os.O_RDONLY))


@pytest.mark.parametrize("remove", [remove_tree, remove_in_place])
class TestRemoving:
    """All of it goes, and nothing else."""

    def test_a_wild_tree(self, root: int, guest: Path, tmp_path: Path, remove) -> None:  # type: ignore[no-untyped-def]
        """Closed directories, links out, pipes, names of every kind."""
        for name in ("t/closed/inner", "t/a b", "t/-rf", "t/new\nline"):
            (guest / name).mkdir(parents=True)
            (guest / name / "file").write_text("x")
        (guest / "t" / "link").symlink_to(tmp_path / "outside")
        (guest / "t" / "file").symlink_to(tmp_path / "outside" / "file")
        os.mkfifo(guest / "t" / "pipe")
        (guest / "t" / "closed").chmod(0)
        remove(root, "t")
        assert os.listdir(guest) == []
        assert (tmp_path / "outside" / "file").read_text() == "precious"

    def test_a_deep_tree(self, root: int, guest: Path, remove) -> None:  # type: ignore[no-untyped-def]
        """1,500 levels, with few descriptors and no recursion."""
        (guest / "t").mkdir()
        deep(guest / "t", 1500)
        before = len(os.listdir("/proc/self/fd"))
        remove(root, "t")
        assert os.listdir(guest) == []
        assert len(os.listdir("/proc/self/fd")) == before

    def test_a_link_is_not_a_tree(self, root: int, guest: Path, tmp_path: Path, remove) -> None:  # type: ignore[no-untyped-def]
        """Asked to remove what is a link, it refuses and touches nothing behind it."""
        (guest / "link").symlink_to(tmp_path / "outside")
        with pytest.raises(OSError):
            remove(root, "link")
        assert (tmp_path / "outside" / "file").read_text() == "precious"


def test_saving_skips_what_is_no_file_any_more(root: int, guest: Path, tmp_path: Path) -> None:
    """Links, pipes, directories and what is gone; the rest is copied."""
    (guest / "sub").mkdir()
    (guest / "sub" / "file").write_bytes(b"a\0b")
    (guest / "link").symlink_to(tmp_path / "outside" / "file")
    os.mkfifo(guest / "pipe")
    wanted = ["sub/file", "link", "pipe", "sub", "none", "../outside/file"]
    saved = save(root, wanted, str(tmp_path / "saved"), resolve(managed=None))
    assert saved == [str(tmp_path / "saved" / "sub" / "file")]
    assert (tmp_path / "saved" / "sub" / "file").read_bytes() == b"a\0b"
    assert sorted(os.listdir(tmp_path / "saved")) == ["sub"]
