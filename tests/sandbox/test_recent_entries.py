"""Files as new as the index: a copy of the index that is newer must not hide that they were written again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from belljar.sandbox.repository.recent_entries import mark_recent

SECOND = 1_700_000_000


def git(directory: Path, *words: str, **variables: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", **variables}
    return subprocess.run(
        ["git", *words], cwd=directory, env=environment, capture_output=True, text=True, check=True
    ).stdout


def make_repository(directory: Path, version: int, object_format: str, *, skip_hash: bool = False) -> Path:
    directory.mkdir()
    git(directory, "init", "-q", f"--object-format={object_format}")
    git(directory, "config", "index.skipHash", str(skip_hash).lower())
    long = "d" * 100 + "/" + "e" * 100
    (directory / long).mkdir(parents=True)
    names = [*(f"file{'x' * number}" for number in range(17)), f"{long}/deep"]
    for number, name in enumerate(names):
        (directory / name).write_text("before\n")
        os.utime(directory / name, (SECOND + number, SECOND + number))
    git(directory, "add", ".")
    (directory / "later").write_text("x")
    git(directory, "add", "--intent-to-add", "later")  # has flags of version 3
    git(directory, "update-index", f"--index-version={version}")
    return directory


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("skip_hash", [False, True])
def test_files_as_new_as_the_index_are_marked(
    tmp_path: Path, version: int, object_format: str, *, skip_hash: bool
) -> None:
    project = make_repository(tmp_path / "project", version, object_format, skip_hash=skip_hash)
    index = (project / ".git/index").read_bytes()
    marked = mark_recent(index, SECOND + 5, object_format=object_format)
    assert marked is not None
    (tmp_path / "index").write_bytes(marked)
    told = git(project, "ls-files", "--debug", GIT_INDEX_FILE=str(tmp_path / "index"))
    sizes = [line.split()[1] for line in told.splitlines() if line.strip().startswith("size:")]
    assert sizes.count("7") == 5
    assert sizes.count("0") == 14  # with `later`, which has none anyway
    assert git(project, "status", "--short", GIT_INDEX_FILE=str(tmp_path / "index")).count("\nA") == 17


def test_a_file_written_again_within_the_second_is_found(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project", 2, "sha1")
    (project / "file").write_text("after!\n")
    os.utime(project / "file", (SECOND, SECOND))
    index = (project / ".git/index").read_bytes()
    by_time_and_size = (
        "-c",
        "core.checkStat=minimal",
        "-c",
        "core.trustctime=false",
        "diff",
        "--name-only",
        "--",
        "file",
    )
    for content, found in ((index, ""), (mark_recent(index, SECOND, object_format="sha1"), "file\n")):
        assert content is not None
        (tmp_path / "index").write_bytes(content)
        assert git(project, *by_time_and_size, GIT_INDEX_FILE=str(tmp_path / "index")) == found


def test_an_index_without_such_files_stays_as_it_is(tmp_path: Path) -> None:
    project = make_repository(tmp_path / "project", 2, "sha1")
    index = (project / ".git/index").read_bytes()
    assert mark_recent(index, SECOND + 100, object_format="sha1") == index


@pytest.mark.parametrize(
    "index", [b"", b"DIRC", b"DIRC\0\0\0\2\0\0\0\1", b"DIRC\0\0\0\7\0\0\0\0" + bytes(20), b"x" * 100]
)
def test_what_is_no_index_is_not_read(index: bytes) -> None:
    assert mark_recent(index, SECOND, object_format="sha1") is None
