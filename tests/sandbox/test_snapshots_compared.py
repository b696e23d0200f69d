"""Snapshots on the host: compared, and written into a directory. What is in them was the guest's, or is a forgery."""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belljar.backends.contract import ChangedTree
from belljar.errors import UsageError
from belljar.sandbox.files import text_diff
from belljar.sandbox.files.comparing import compare
from belljar.sandbox.files.restoring import restore
from belljar.sandbox.files.snapshot_files import SnapshotFiles
from belljar.sandbox.files.snapshots import RESTORE, Held, opened, take
from belljar.sandbox.files.text_diff import unified

HOSTILE = "\x1b[31mred\n\u202e=cmd"


def member(name: str, content: bytes | str = b"", **more: Any) -> tuple[tarfile.TarInfo, bytes]:
    """One entry of an archive."""
    data = content.encode() if isinstance(content, str) else content
    made = tarfile.TarInfo(name)
    made.size, made.mode = len(data), 0o644
    for key, value in more.items():
        setattr(made, key, value)
    return made, data


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def folder(name: str, mode: int = 0o755) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=mode)


def holes(size: int | str, *ranges: str, content: bytes = b"x") -> tuple[tarfile.TarInfo, bytes]:
    """A file with holes, as the header of a snapshot tells of it."""
    return member("holes", content, pax_headers={"BELLJAR.data": " ".join([str(size), *ranges])})


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[..., str]:
    """Writes a snapshot as belljar does, with anything in it."""
    numbers = iter(range(1000))

    def write(*members: tuple[tarfile.TarInfo, bytes], base: str | None = None, deleted: tuple[str, ...] = ()) -> str:
        path = tmp_path / f"snapshot-{next(numbers)}.tar"
        head = {"format": 1, "created": 1.0, "files": 1, "size": 1, "base": base, "deleted": deleted}
        with path.open("wb") as file:
            file.write(json.dumps(head).encode() + b"\n")
            with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
                for made, data in members:
                    archive.addfile(made, io.BytesIO(data))
        return str(path)

    return write


def differences(old: str, new: str) -> dict[str, tuple[str, str]]:
    with SnapshotFiles(old) as first, SnapshotFiles(new) as second:
        return {one.path: (one.kind, one.text or one.note) for one in compare(first, second)}


class TestDiff:
    """What differs."""

    def test_everything(self, snapshot: Callable[..., str]) -> None:
        """Added, changed, removed; text as a diff, other files by their size, links by where they lead, modes."""
        old = snapshot(
            member("same", "x"), member("text", "a\nb\n"), member("gone", "x\n"), member("mode", "x"), link("l", "a")
        )
        new = snapshot(
            member("same", "x"),
            member("text", "a\nc\n"),
            member("new", b"\0\1"),
            member("mode", "x", mode=0o755),
            link("l", "b"),
            folder("d"),
        )
        assert differences(old, new) == {
            "text": ("changed", "--- a/text\n+++ b/text\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"),
            "gone": ("removed", "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"),
            "new": ("added", "binary or large, not shown"),
            "mode": ("changed", "mode 0644, then 0755"),
            "l": ("changed", "--- a/l\n+++ b/l\n@@ -1 +1 @@\n-link to a\n+link to b\n"),
            "d": ("added", ""),
        }
        assert differences(old, old) == {}

    def test_the_same_size(self, snapshot: Callable[..., str]) -> None:
        """Is not the same content, also beyond what is shown."""
        big = b"x" * (3 << 20)
        old, new = snapshot(member("f", big)), snapshot(member("f", big[:-1] + b"y"))
        assert differences(old, new) == {"f": ("changed", "binary or large, not shown")}

    def test_changes_of_a_directory(self, snapshot: Callable[..., str]) -> None:
        """What neither snapshot has is as it was there, and what one of them deleted is told."""
        old = snapshot(member("a", "1\n"), base="/b", deleted=("x", "y"))
        new = snapshot(member("c", "1\n"), base="/b", deleted=("y", "z", "a"))
        kinds = {path: kind for path, (kind, _text) in differences(old, new).items()}
        assert kinds == {"a": "removed", "c": "changed", "x": "added", "z": "removed"}
        with pytest.raises(UsageError, match=r"changes of /b.*all of its files"):
            differences(old, snapshot())

    def test_all_that_is_shown_is_bounded(self, snapshot: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
        """What differs after that is named."""
        monkeypatch.setattr("belljar.sandbox.files.comparing.MAX_SHOWN_BYTES", 100)
        found = differences(snapshot(), snapshot(*(member(f"f{n}", "line\n") for n in range(9))))
        assert len(found) == 9
        assert sum("@@" in text for _kind, text in found.values()) == 2
        assert found["f8"] == ("added", "too much differs to show it all: not shown")

    def test_at_a_terminal(self, snapshot: Callable[..., str]) -> None:
        """Names and text are escaped, and the exit code tells that something differs."""
        old, new = snapshot(), snapshot(member(HOSTILE, "\x1b[2J\u202e\n"))
        done = subprocess.run([sys.executable, "-m", "belljar", "diff", old, new], capture_output=True, check=False)
        assert done.returncode == 1
        assert b"added file, 8 bytes: \\x1b[31mred\\x0a\\u202e=cmd" in done.stdout
        assert b"\x1b" not in done.stdout
        assert "\u202e".encode() not in done.stdout
        told = [sys.executable, "-m", "belljar", "diff", "--json", old, new]
        (one,) = json.loads(subprocess.run(told, capture_output=True, check=False).stdout)
        assert (one["path"], one["kind"], one["before"]) == (HOSTILE, "added", None)


class TestText:
    """The diff of two texts."""

    def test_it_leads_from_one_to_the_other(self) -> None:
        """Whatever differs: applied, it gives the other text."""
        chance = random.Random(7)
        for _ in range(300):
            old = [chance.choice("abcdef") + "\n" for _ in range(chance.randrange(40))]
            new = [line for line in old if chance.random() > 0.1]
            for _ in range(chance.randrange(4)):
                new.insert(chance.randrange(len(new) + 1), chance.choice("xyz") + "\n")
            before, after = "".join(old), "".join(new)[: -1 if chance.random() < 0.3 else None]
            text = unified(before, after, "a", "b")
            assert bool(text) == (before != after)
            assert applied(before, text) == after

    def test_a_search_that_would_take_long_is_not_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lines in such numbers are shown as they are: difflib gets none of them."""
        looked: list[int] = []

        class Searching(text_diff.SequenceMatcher[str]):
            def get_opcodes(self) -> Any:
                looked.append(max(len(self.a), len(self.b)))
                return super().get_opcodes()

        monkeypatch.setattr(text_diff, "SequenceMatcher", Searching)
        chance = random.Random(7)
        for count in (1000, 50_000):
            before, after = ("same\n" + "".join(f"{chance.randrange(500)}\n" for _ in range(count)) for _ in "ab")
            assert applied(before, unified(before, after, "a", "b")) == after
        assert looked == [1000] or max(looked) <= 1000

    def test_only_a_line_feed_ends_a_line(self) -> None:
        """Else text could be made that looks like a part of the diff."""
        assert unified("", "a\r+++ b\x0c\u2028x\n", "a", "b").count("\n") == 4


def applied(before: str, diff: str) -> str:
    """What a diff makes of a text."""
    *whole, rest = before.split("\n")
    lines = [f"{line}\n" for line in whole] + ([rest] if rest else [])
    result: list[str] = []
    at = 0
    for line in re.sub(r"\n\\ No newline at end of file\n", "\0", diff).splitlines(keepends=True)[2:]:
        for piece in line.replace("\0", "\0\n").splitlines(keepends=True):
            text = piece.replace("\0\n", "")
            if found := re.match(r"@@ -(\d+)(?:,(\d+))?", text):
                start = int(found[1]) - (found[2] != "0")
                result += lines[at:start]
                at = start
            elif text.startswith("+"):
                result.append(text[1:])
            elif text:
                assert lines[at] == text[1:]
                if text.startswith(" "):
                    result.append(text[1:])
                at += 1
    return "".join([*result, *lines[at:]])


FORGED: dict[str, Callable[[], tuple[tarfile.TarInfo, bytes]]] = {
    "a path that climbs": lambda: member("../outside", "x"),
    "an absolute path": lambda: member("/tmp/outside", "x"),
    "a device": lambda: member("null", type=tarfile.CHRTYPE, devmajor=1, devminor=3),
    "a pipe": lambda: member("pipe", type=tarfile.FIFOTYPE),
    "a hard link": lambda: member("hard", type=tarfile.LNKTYPE, linkname="/etc/passwd"),
    "the same name twice": lambda: member("fine", "again"),
    "no name": lambda: member("", "x"),
    "a link to a name that is none": lambda: member("l", type=tarfile.SYMTYPE, pax_headers={"linkpath": "a\0b"}),
    "no time": lambda: member("t", pax_headers={"mtime": "nan"}),
    "a time that never comes": lambda: member("t", pax_headers={"mtime": "1e300"}),
    "data beyond the end": lambda: holes(10, "10-11"),
    "data that go backwards": lambda: holes(10, "5-6", "2-3", content=b"xy"),
    "data twice": lambda: holes(10, "5-7", "6-8", content=b"1234"),
    "less data than it says": lambda: holes(10, "5-7"),
    "more data than it says": lambda: holes(10, "5-6", content=b"xy"),
    "no data at all": lambda: holes(10, "5-5", content=b""),
    "a size that is no number": lambda: holes("-1", content=b""),
    "a number that is huge": lambda: holes("9" * 5000, content=b""),
    "a range that is none": lambda: holes(10, "5-6-7"),
    "an archive's own holes": lambda: member(
        "holes",
        b"1\n0\n512\n".ljust(512, b"\0") + b"x" * 512,
        pax_headers={
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "holes",
            "GNU.sparse.realsize": "512",
        },
    ),
    "too deep": lambda: member("/".join("a" * 3000)),
}


def test_the_hint_after_a_protected_file(snapshot: Callable[..., str], tmp_path: Path) -> None:
    """Names the option that writes it, and the option does."""
    path = snapshot(member(".envrc", "export A=1"), member("plain", "x"))
    words = [sys.executable, "-m", "belljar", "restore"]
    done = subprocess.run([*words, path, str(tmp_path / "out")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.splitlines()[1:]) == (
        1,
        ["hint: --protected writes what a tool would act on, into another new directory"],
    )
    assert not (tmp_path / "out/.envrc").exists()
    subprocess.run([*words, "--protected", path, str(tmp_path / "all")], capture_output=True, check=True)
    assert (tmp_path / "all/.envrc").read_text() == "export A=1"
    missing = subprocess.run([*words, "nosuch", str(tmp_path / "no")], capture_output=True, text=True, check=False)
    assert missing.stderr.endswith("hint: `belljar snapshot ls` lists them\n")


class TestForged:
    """A file that is no snapshot of belljar's, or not any more."""

    @pytest.mark.parametrize("forged", FORGED.values(), ids=FORGED.keys())
    def test_what_no_snapshot_holds(
        self, snapshot: Callable[..., str], tmp_path: Path, forged: Callable[[], tuple[tarfile.TarInfo, bytes]]
    ) -> None:
        """Is refused as a whole, before anything is written; the same without it is not."""
        path = snapshot(member("fine", "x"), forged())
        with pytest.raises(UsageError):
            SnapshotFiles(path)
        done = subprocess.run(
            [sys.executable, "-m", "belljar", "restore", path, str(tmp_path / "out")], capture_output=True, check=False
        )
        assert done.returncode == 2
        assert b"Traceback" not in done.stderr
        assert not (tmp_path / "out").exists()
        with SnapshotFiles(snapshot(member("fine", "x"))) as files:
            assert list(files.files) == ["fine"]

    def test_too_many_names(self, snapshot: Callable[..., str]) -> None:
        """They are held in memory, so they are bounded as those of a jar are."""
        with pytest.raises(UsageError, match="names that are too long"):
            SnapshotFiles(snapshot(*(member(f"{number}/{'n' * 60_000}") for number in range(300))))

    @pytest.mark.parametrize("kind", [b"x", b"L"])
    def test_headers_without_end(self, snapshot: Callable[..., str], kind: bytes) -> None:
        """Each says that another one follows: as deep as a reader goes."""
        path = Path(snapshot(member("fine", "x")))
        head, _line, archive = path.read_bytes().partition(b"\n")
        header, data = member("x", b"9 path=a\n", type=kind)
        more = header.tobuf(tarfile.USTAR_FORMAT) + data.ljust(512, b"\0")
        path.write_bytes(head + b"\n" + more * 3000 + archive)
        with pytest.raises(UsageError):
            SnapshotFiles(str(path))

    @pytest.mark.parametrize(
        "wrong",
        [
            {"created": "then"},
            {"created": 1e300},
            {"created": float("nan")},
            {"files": "\x1b[31m"},
            {"size": None},
            {"base": {"a": 1}},
            {"deleted": "abc"},
            {"deleted": [["a"]]},
        ],
        ids=str,
    )
    def test_a_head_that_makes_no_sense(self, snapshot: Callable[..., str], wrong: dict[str, Any]) -> None:
        """Is no snapshot's; so whoever lists them has nothing to show that can't be shown."""
        path = Path(snapshot(member("fine", "x")))
        head, _line, archive = path.read_bytes().partition(b"\n")
        path.write_bytes(json.dumps({**json.loads(head), **wrong}).encode() + b"\n" + archive)
        with pytest.raises(UsageError, match="no snapshot of belljar's"):
            opened(str(path))

    def test_a_head_without_end(self, tmp_path: Path) -> None:
        """Of JSON that is nested deeper than a reader goes; and a head of which nothing is there."""
        for number, head in enumerate((b"[" * 100_000, b'{"format": 1}')):
            (tmp_path / f"{number}.tar").write_bytes(head + b"\n")
            with pytest.raises(UsageError, match="no snapshot of belljar's"):
                opened(str(tmp_path / f"{number}.tar"))

    def test_what_is_no_file(self, tmp_path: Path) -> None:
        """A pipe, on which one would wait for ever; and a directory."""
        os.mkfifo(tmp_path / "pipe.tar")
        for path in (tmp_path / "pipe.tar", tmp_path):
            with pytest.raises(UsageError, match="is not a file"):
                opened(str(path))

    def test_cut_off(self, snapshot: Callable[..., str]) -> None:
        """At any place."""
        path = Path(snapshot(member("one", "x" * 3000), member("two", "y" * 3000)))
        whole = path.read_bytes()
        for length in (0, 10, 200, 700, 1500, 4000, 5000):
            path.write_bytes(whole[:length])
            with pytest.raises(UsageError):
                SnapshotFiles(str(path))


class TestRestore:
    """Files on the host."""

    def test_all_of_it(self, snapshot: Callable[..., str], tmp_path: Path) -> None:
        """Content, permissions, links; a directory that the code closed can be opened; the setuid bit is not taken."""
        path = snapshot(
            folder("closed", 0), member("closed/f", "x"), member("set", "x", mode=0o6755), link("in", "closed/f"),
            member("deep/er/f", b"\0" * (1 << 21) + b"y"), member(HOSTILE, "z"),
        )  # fmt: skip
        with SnapshotFiles(path) as files:
            done = restore(files, str(tmp_path / "out"))
        assert (done.refused, done.written) == ((), 6)
        out = tmp_path / "out"
        assert (out / "closed/f").read_text() == (out / "in").read_text() == "x"
        assert (out / "set").stat().st_mode & 0o7777 == 0o755
        assert (out / "deep/er/f").read_bytes() == b"\0" * (1 << 21) + b"y"
        assert (out / HOSTILE).read_text() == "z"

    LEADING_OUT = ("/etc/passwd", "../outside", "a/../../outside", "a/..")

    @pytest.mark.parametrize("target", LEADING_OUT)
    def test_links_that_lead_out(self, snapshot: Callable[..., str], tmp_path: Path, target: str) -> None:
        """Are left out, and named; the rest is written."""
        with SnapshotFiles(snapshot(link("evil", target), member("fine", "x"))) as files:
            done = restore(files, str(tmp_path / "out"))
        assert [path for path, _why in done.refused] == ["evil"]
        assert os.listdir(tmp_path / "out") == ["fine"]

    def test_nothing_is_written_through_a_link(self, snapshot: Callable[..., str], tmp_path: Path) -> None:
        """Not through one that stays inside either."""
        (tmp_path / "outside").mkdir()
        with SnapshotFiles(snapshot(folder("d"), link("l", "d"), member("l/f", "x"))) as files:
            done = restore(files, str(tmp_path / "out"))
        assert [path for path, _why in done.refused] == ["l/f"]
        assert os.listdir(tmp_path / "out/d") == []

    def test_only_into_an_empty_directory(self, snapshot: Callable[..., str], tmp_path: Path) -> None:
        """And not into one that a link leads to."""
        (tmp_path / "full").mkdir()
        (tmp_path / "full/f").touch()
        (tmp_path / "empty").mkdir()
        (tmp_path / "link").symlink_to("empty")
        with SnapshotFiles(snapshot(member("fine", "x"))) as files:
            for name in ("full", "link", "full/f", "not/there"):
                with pytest.raises(UsageError):
                    restore(files, str(tmp_path / name))
            assert restore(files, str(tmp_path / "empty")).written == 1


TERABYTE = 1 << 40


def with_holes(path: Path, *places: int) -> None:
    """A terabyte, with four bytes at each of these places."""
    with path.open("wb") as file:
        os.truncate(file.fileno(), TERABYTE)
        for place in places:
            os.pwrite(file.fileno(), b"data", place)


class TestHoles:
    """A terabyte of nothing takes neither the room nor the time of one."""

    @pytest.fixture
    def jar(self, tmp_path: Path) -> Path:
        """What the code left."""
        path = tmp_path / "jar"
        path.mkdir()
        (path / "plain").write_text("plain")
        with_holes(path / "image", 0, 5 << 30, TERABYTE - 4)
        with_holes(path / "nothing")
        return path

    def taken(self, jar: Path, name: str, **more: Any) -> str:
        """A snapshot of it."""
        held = Held(ChangedTree(os.open(jar, os.O_RDONLY | os.O_DIRECTORY), layered=False), None, (), {})
        try:
            return take(held, most_bytes=1 << 20, path=str(jar.parent / name), **more).path
        finally:
            os.close(held.tree.descriptor)

    def test_kept_and_read(self, jar: Path) -> None:
        """The snapshot holds the data, and says where they belong."""
        path = self.taken(jar, "one.tar")
        assert os.stat(path).st_size < 1 << 17
        with SnapshotFiles(path) as files:
            image = files.files["image"]
            assert (image.size, files.files["nothing"].size) == (TERABYTE, TERABYTE)
            assert files.read(image, 6) == b"data\0\0"
            assert files.read(image, 100, TERABYTE - 6) == b"\0\0data"
            assert files.read(image, 8, (5 << 30) - 2) == b"\0\0data\0\0"
            assert files.read(image, 3, 2 << 30) == bytes(3)

    def test_restored_on_the_host(self, jar: Path, tmp_path: Path) -> None:
        """With their holes."""
        with SnapshotFiles(self.taken(jar, "one.tar")) as files:
            assert restore(files, str(tmp_path / "out")).refused == ()
        with (tmp_path / "out/image").open("rb") as file:
            assert os.fstat(file.fileno()).st_size == TERABYTE
            assert os.fstat(file.fileno()).st_blocks < 1000
            assert [os.pread(file.fileno(), 4, at) for at in (0, 5 << 30, TERABYTE - 4)] == [b"data"] * 3
        assert (tmp_path / "out/plain").read_text() == "plain"

    def test_restored_in_a_jar(self, jar: Path, tmp_path: Path) -> None:
        """By the program that a jar runs."""
        (tmp_path / "again").mkdir()
        with open(self.taken(jar, "one.tar"), "rb") as file:
            subprocess.run([sys.executable, "-c", RESTORE, str(tmp_path / "again")], stdin=file, check=True)
        with (tmp_path / "again/image").open("rb") as file:
            assert os.fstat(file.fileno()).st_blocks < 1000
            assert [os.pread(file.fileno(), 4, at) for at in (0, 5 << 30, TERABYTE - 4)] == [b"data"] * 3
        assert (tmp_path / "again/nothing").stat().st_size == TERABYTE

    def test_compared(self, jar: Path) -> None:
        """By their data, wherever the holes are."""
        before = self.taken(jar, "one.tar")
        with (jar / "image").open("r+b") as file:
            os.pwrite(file.fileno(), bytes(4096), 9 << 30)  # zeros, and no hole any more
        assert "image" not in differences(before, self.taken(jar, "two.tar"))
        with (jar / "image").open("r+b") as file:
            os.pwrite(file.fileno(), b"x", 9 << 30)
        assert differences(before, self.taken(jar, "three.tar")) == {"image": ("changed", "binary or large, not shown")}

    def test_what_does_not_fit_costs_no_other_file(self, jar: Path) -> None:
        """Evidence is what could be kept, and says what could not: a hard link counts each time."""
        (jar / "large").write_bytes(b"x" * 700_000)
        (jar / "larger").hardlink_to(jar / "large")
        with pytest.raises(UsageError, match="'larger' does not fit"):
            self.taken(jar, "one.tar")
        left_out: dict[str, str] = {}
        with SnapshotFiles(self.taken(jar, "two.tar", left_out=left_out)) as files:
            assert set(files.files) == {"image", "large", "nothing", "plain"}
        assert list(left_out) == ["larger"]
