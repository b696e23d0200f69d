"""Git's own files that come out of a jar, as the real git writes them and as someone forges them."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
import time
from pathlib import Path

import pytest

from belljar.backends.contract import ChangedTree
from belljar.sandbox.changes import Changes
from belljar.sandbox.git_data import index_is_plain, packed_refs_are_plain


def git(directory: Path, *words: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-c", "safe.directory=*", "-c", "user.name=A", "-c", "user.email=a@example.com", *words]
    subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True)


def repository(directory: Path, *options: str, files: int = 40) -> Path:
    """With names that share their beginnings, one longer than an index has room to say."""
    git(directory.parent, "init", "-q", *options, directory.name)
    for number in range(files):
        path = directory / f"d{number % 3}/file-{number}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(number))
    (directory / ".github").mkdir()
    (directory / ".github/x").write_text("x")
    git(directory, "add", ".")
    return directory


def forged(*names: bytes, extension: bytes = b"") -> bytes:
    entries = b""
    for name in names:
        entry = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100755, 0, 0, 0) + bytes(20) + struct.pack(">H", len(name))
        entries += (entry + name).ljust((len(entry) + len(name) + 8) & ~7, b"\0")
    body = b"DIRC" + struct.pack(">2I", 2, len(names)) + entries + extension
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


@pytest.mark.parametrize("version", ["2", "3", "4"])
def test_an_index_that_git_wrote_is_plain(tmp_path: Path, version: str) -> None:
    """Of every version, with what git puts behind the entries."""
    made = repository(tmp_path / "made")
    git(made, "update-index", "--index-version", version)
    git(made, "commit", "-q", "-m", "x")
    git(made, "update-index", "--untracked-cache")
    git(made, "status")
    (made / "added").write_text("x")
    git(made, "add", "-N", "added")  # a flag that makes entries longer
    assert index_is_plain((made / ".git/index").read_bytes())


@pytest.mark.parametrize("version", ["2", "4"])
def test_an_index_that_is_read_by_several_threads(tmp_path: Path, version: str) -> None:
    """It says where its blocks begin; a block that begins elsewhere holds other names than those that were checked."""
    made = repository(tmp_path / "made", files=30)
    git(made, "-c", "index.threads=4", "update-index", "--index-version", version)
    environment = {**os.environ, "GIT_TEST_INDEX_THREADS": "4", "HOME": "/nonexistent"}
    command = ["git", "-c", "safe.directory=*", "-c", "index.threads=4", "update-index", "--force-write-index"]
    subprocess.run(command, cwd=made, env=environment, check=True, capture_output=True)
    data = (made / ".git/index").read_bytes()
    assert b"IEOT" in data
    assert index_is_plain(data)
    at = data.index(b"IEOT") + 12
    assert not index_is_plain(data[:at] + struct.pack(">I", 200) + data[at + 4 :])


def test_an_index_with_longer_hashes(tmp_path: Path) -> None:
    """Of a repository with SHA-256."""
    made = repository(tmp_path / "made", "--object-format=sha256")
    data = (made / ".git/index").read_bytes()
    assert index_is_plain(data, hash_size=32)
    assert not index_is_plain(data)


FORGED = [
    b".git/hooks/post-checkout",
    b"sub/.GIT/config",
    b"../outside",
    b"/etc/x",
    b"a//b",
    b"a/./b",
    b"git~1/config",
    ".g\u200cit/config".encode(),
]


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_name_is_seen(name: bytes) -> None:
    """Git itself would write such a file where it says."""
    assert index_is_plain(forged(b"src/a", b"src/b"))
    assert not index_is_plain(forged(b"src/a", name))


def test_an_index_that_is_cut_or_continued_elsewhere() -> None:
    """Nothing of it is believed."""
    whole = forged(b"src/a")
    assert not any(index_is_plain(whole[:length]) for length in range(len(whole)))
    assert not index_is_plain(forged(b"src/a", extension=b"link" + struct.pack(">I", 20) + bytes(20)))
    assert not index_is_plain(forged(b"src/a", extension=b"EOIE" + struct.pack(">2I", 24, 12) + bytes(20)))


def bomb(name: bytes, entries: int) -> bytes:
    """An index of version 4 in which every name but the first is all of the one before, and one letter."""
    fields = struct.pack(">10I", 0, 0, 0, 0, 0, 0, 0o100644, 0, 0, 0) + bytes(20)
    first = fields + struct.pack(">H", min(len(name), 0xFFF)) + b"\0" + name + b"\0"
    following = fields + struct.pack(">H", min(len(name), 0xFFF)) + b"\1x\0"
    body = b"DIRC" + struct.pack(">2I", 4, entries) + first + following * (entries - 1)
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def test_an_index_that_is_small_and_holds_terabytes_of_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of 14 MB said 200 GB of names, and to read it took most of an hour."""
    assert index_is_plain(bomb(b"a" * 4096, 100))
    before = time.monotonic()
    assert not index_is_plain(bomb(b"a" * (1 << 20), 200_000))  # no file has such a name
    monkeypatch.setattr("belljar.sandbox.git_data._MOST_NAMES", 1 << 20)
    assert not index_is_plain(bomb(b"a/" * 2047 + b"a", 200_000))
    assert time.monotonic() - before < 15


def test_refs_that_replace_objects() -> None:
    """Git shows one commit in the place of another."""
    line = b"0123456789012345678901234567890123456789 refs/heads/main\n"
    assert packed_refs_are_plain(line)
    assert not packed_refs_are_plain(line + line.replace(b"heads/main", b"replace/" + b"0" * 40))


@pytest.mark.parametrize(("name", "comes_back"), [(b"src/a", True), (b".git/hooks/post-checkout", False)])
def test_the_host_gets_no_forged_index(tmp_path: Path, name: bytes, comes_back: bool) -> None:
    """`git checkout -- .` on the host would write the hook, and run it."""
    host = repository(tmp_path / "host")
    (tmp_path / "jar/.git").mkdir(parents=True)
    (tmp_path / "jar/.git/index").write_bytes(forged(name))
    tree = ChangedTree(os.open(tmp_path / "jar", os.O_RDONLY | os.O_DIRECTORY), True)
    with Changes(tree, str(host), "/workspace", (), since_ns=2**62, applied={}) as changes:
        assert (".git/index" in changes.apply().applied) is comes_back
    assert ((host / ".git/index").read_bytes() == forged(name)) is comes_back


def test_a_hook_in_the_project_needs_a_word_of_its_own(tmp_path: Path) -> None:
    """Git runs it at the next commit, wherever the project has it."""
    host = repository(tmp_path / "host")
    git(host, "config", "core.hooksPath", "scripts/hooks")
    (tmp_path / "jar/scripts/hooks").mkdir(parents=True)
    (tmp_path / "jar/scripts/hooks/pre-commit").write_text("#!/bin/sh\n")
    (tmp_path / "jar/scripts/other").write_text("x")
    tree = ChangedTree(os.open(tmp_path / "jar", os.O_RDONLY | os.O_DIRECTORY), True)
    with Changes(tree, str(host), "/workspace", (), since_ns=2**62, applied={}) as changes:
        assert [change.path for change in changes if change.protected] == ["scripts/hooks/pre-commit"]


def test_what_was_judged_is_what_is_written(tmp_path: Path) -> None:
    """Code that still runs puts another index and another link there, after the first ones were looked at."""
    host = repository(tmp_path / "host")
    before = (host / ".git/index").read_bytes()
    (tmp_path / "jar/.git").mkdir(parents=True)
    index, link = tmp_path / "jar/.git/index", tmp_path / "jar/notes"
    index.write_bytes(forged(b"src/a"))
    link.symlink_to("README")
    tree = ChangedTree(os.open(tmp_path / "jar", os.O_RDONLY | os.O_DIRECTORY), True)
    with Changes(tree, str(host), "/workspace", (), since_ns=2**62, applied={}) as changes:
        assert not any(change.refusal for change in changes)
        index.write_bytes(forged(b".git/hooks/post-checkout"))
        link.unlink()
        link.symlink_to(".git/config")
        done = changes.apply()
    assert [path for path, _why in done.refused] == [".git/index", "notes"]
    assert (host / ".git/index").read_bytes() == before
    assert not (host / "notes").is_symlink()
