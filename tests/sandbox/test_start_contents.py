"""Files that git does not have as they are: found by its index, in each of its formats, and read within bounds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from belljar.sandbox.files import start_contents
from belljar.sandbox.files.host_files import HostFiles
from belljar.sandbox.files.start_contents import read_contents


def _git(directory: Path, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *identity, *words], cwd=directory, env=environment, capture_output=True, check=True)


def _found(directory: Path) -> dict[str, tuple[int, int, int]]:
    files = {}
    for path in directory.rglob("*"):
        if path.is_file() and ".git" not in path.parts:
            status = path.lstat()
            files[str(path.relative_to(directory))] = (status.st_ino, status.st_ctime_ns, status.st_size)
    return files


@pytest.mark.parametrize(
    ("version", "kind"), [(2, "sha1"), (4, "sha1"), (2, "sha256"), (4, "sha256")], ids=lambda one: str(one)
)
def test_only_what_git_lacks_is_read(tmp_path: Path, version: int, kind: str) -> None:
    """Committed files are left to git. Edited and untracked ones are read, also in a directory of the repository."""
    _git(tmp_path, "init", "-q", f"--object-format={kind}")
    (tmp_path / "part").mkdir()
    names = ["clean", "edited", "part/clean", "part/clean with a longer name", "part/edited", "later"]
    for name in names:
        (tmp_path / name).write_text(f"{name}\n")
    _git(tmp_path, "add", ".")
    _git(tmp_path, "commit", "-qm", "first")
    _git(tmp_path, "update-index", f"--index-version={version}", "--force-write-index")
    _git(tmp_path, "add", "--intent-to-add", "later")  # an entry with more flags, in version 3 and later
    index = tmp_path / ".git/index"
    after = max((tmp_path / name).stat().st_ctime_ns for name in names) + 1_000_000_000
    os.utime(index, ns=(after, after))  # files as new as the index could be others, so that they would be read
    for name in ("edited", "part/edited"):
        (tmp_path / name).write_text("more\n")
    (tmp_path / "part/untracked").write_text("new\n")
    (tmp_path / "part/untracked").chmod(0o755)
    contents = read_contents(str(tmp_path), _found(tmp_path))
    assert contents == {
        "edited": (b"more\n", 0o644),
        "part/edited": (b"more\n", 0o644),
        "part/untracked": (b"new\n", 0o755),
    }
    part = read_contents(str(tmp_path / "part"), _found(tmp_path / "part"))
    assert part == {"edited": (b"more\n", 0o644), "untracked": (b"new\n", 0o755)}


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that were changed last are read. A large one, a link and one that was changed since are not."""
    for number in range(4):
        (tmp_path / f"file{number}").write_text(str(number))
        found = _found(tmp_path)
    (tmp_path / "large").write_bytes(bytes(start_contents.MOST_FILE_BYTES + 1))
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "changed").write_text("before")
    found = {path: (one[0], number, one[2]) for number, (path, one) in enumerate(sorted(_found(tmp_path).items()))}
    assert read_contents(str(tmp_path), found) == {}, "none has this time of change"
    found = _found(tmp_path)
    (tmp_path / "changed").write_text("after!")
    monkeypatch.setattr(start_contents, "MOST_FILES", 4)
    newest = sorted(found, key=lambda path: found[path][1], reverse=True)[:4]
    contents = read_contents(str(tmp_path), found)
    assert set(contents) == {path for path in newest if path.startswith("file")}


@pytest.mark.parametrize("damage", [b"", b"DIRC", b"DIRC\0\0\0\2\xff\xff\xff\xff", b"none of git's"])
def test_a_damaged_index_names_no_file(tmp_path: Path, damage: bytes) -> None:
    """All files count as unknown to git."""
    _git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    (tmp_path / ".git/index").write_bytes(damage)
    files = HostFiles(str(tmp_path))
    files.wait()
    assert files.content("file") is None, "nothing is read before somebody asks for it"
    files.read_contents()
    assert files.content("file") == (b"1", 0o644)
