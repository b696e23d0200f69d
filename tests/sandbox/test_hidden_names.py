"""What is remembered of a search for denied names in an interpreter's directory, and when it is searched again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar import PolicyError
from belljar.backends import hidden_names
from belljar.backends.hidden_names import with_hidden
from belljar.backends.runtimes import Installation, Runtime
from belljar.policy.load.resolve import resolve

Look = Callable[..., tuple[str, ...]]


class _Nothing(dict[str, bytes]):
    """Remembers nothing."""

    def __setitem__(self, _key: str, _value: bytes) -> None:
        pass


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An interpreter's directory with packages, some of them deep."""
    path = tmp_path / "python"
    for name in ("lib/python3.11/json", "lib/python3.11/site-packages/a/b/c", "bin"):
        (path / name).mkdir(parents=True)
    (path / "lib/python3.11/.env").write_text("secret")
    return path


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each search. A search of directories that were made just now is remembered as well."""
    done: list[str] = []
    search = hidden_names._search

    def counted(shown: Installation, *rest: object, **named: object) -> object:
        done.append(shown.path)
        return search(shown, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(hidden_names, "_search", counted)
    monkeypatch.setattr(hidden_names, "_FRESH_NS", -(10**11))
    monkeypatch.setattr(hidden_names, "_KNOWN", _Nothing())  # as in another process
    return done


@pytest.fixture
def look(prefix: Path, tmp_path: Path) -> Look:
    """What is hidden in the interpreter's directory."""
    parts = tuple((name, f"{prefix}/{name}") for name in ("bin", "lib/python3.11"))
    runtime = Runtime("python", f"{prefix}/bin/python3", (str(prefix),), None, (Installation(str(prefix), parts),))

    def hidden(preset: str = "aicode", *patterns: str) -> tuple[str, ...]:
        policy = resolve(preset, layers=[{"fs": {"deny_globs": ["**/.env", *patterns]}}])
        (shown,) = with_hidden(runtime, policy, state=str(tmp_path / "state")).installations
        return shown.hidden

    return hidden


def test_a_search_is_remembered_until_a_directory_changes(look: Look, prefix: Path, searches: list[str]) -> None:
    assert look() == look() == ("lib/python3.11/.env",)
    assert len(searches) == 1
    (prefix / "lib/python3.11/site-packages/a/b/c/.env").write_text("secret")
    assert set(look()) == {"lib/python3.11/.env", "lib/python3.11/site-packages/a/b/c/.env"}
    (prefix / "lib/python3.11/.env").unlink()
    assert look() == ("lib/python3.11/site-packages/a/b/c/.env",)
    assert len(searches) == 3


def test_a_process_remembers_it_too(
    look: Look, tmp_path: Path, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the state directory can't be written."""
    monkeypatch.setattr(hidden_names, "_KNOWN", {})
    look()
    for kept in (tmp_path / "state" / "interpreters").iterdir():
        kept.unlink()
    assert look() == ("lib/python3.11/.env",)
    assert len(searches) == 1


def test_a_time_that_was_set_back_hides_no_change(look: Look, prefix: Path, searches: list[str]) -> None:
    """As `tar` and `rsync` do, which set the time of a directory to that of the original."""
    look()
    deep = prefix / "lib/python3.11/site-packages/a"
    before = deep.stat()
    (deep / ".env").write_text("secret")
    os.utime(deep, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "lib/python3.11/site-packages/a/.env" in look()
    assert len(searches) == 2


def test_other_patterns_are_another_search(look: Look, prefix: Path, searches: list[str]) -> None:
    (prefix / "lib/python3.11/key.pem").write_text("secret")
    assert look() == ("lib/python3.11/.env",)
    assert set(look("aicode", "**/*.pem")) == {"lib/python3.11/.env", "lib/python3.11/key.pem"}
    assert len(searches) == 2


def test_a_directory_that_changed_just_now_is_not_remembered(
    look: Look, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may change again within one tick of the kernel's clock."""
    monkeypatch.setattr(hidden_names, "_FRESH_NS", 10**12)
    assert look() == look() == ("lib/python3.11/.env",)
    assert len(searches) == 2


def test_a_large_directory(look: Look, prefix: Path, searches: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A start looks at what is near the top, and searches again after an hour; a strict policy has all looked at."""
    monkeypatch.setattr(hidden_names, "_NEAREST", 4)
    assert look() == look("strict") == ("lib/python3.11/.env",)
    (prefix / "lib/python3.11/site-packages/a/b/c/.env").write_text("secret")
    assert look() == ("lib/python3.11/.env",)
    assert len(look("strict")) == 2
    assert len(searches) == 3
    now = hidden_names.time.time()
    monkeypatch.setattr(hidden_names.time, "time", lambda: now + 3601)
    assert len(look()) == 2
    (prefix / "lib/python3.11/site-packages/installed").mkdir()
    look()
    assert len(searches) == 5


@pytest.mark.parametrize(
    "content", [b"", b"belljar 1", b"belljar 1\x00x\x000", b"belljar 1\x000\x009\x00a", b"\xff\x00"]
)
def test_a_damaged_file_is_not_used(look: Look, tmp_path: Path, searches: list[str], content: bytes) -> None:
    look()
    (kept,) = (tmp_path / "state" / "interpreters").iterdir()
    kept.write_bytes(content)
    assert look() == ("lib/python3.11/.env",)
    assert len(searches) == 2


def test_what_others_could_have_written_is_not_used(look: Look, tmp_path: Path, searches: list[str]) -> None:
    look()
    (kept,) = (tmp_path / "state" / "interpreters").iterdir()
    kept.chmod(0o622)
    look()
    assert len(searches) == 2


def test_a_pattern_that_denies_the_interpreter_is_refused(
    look: Look, prefix: Path, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hidden_names, "_MOST_HIDDEN", 2)
    for name in ("one.txt", "two.txt", "three.txt"):
        (prefix / "lib/python3.11" / name).write_text("")
    with pytest.raises(PolicyError, match=r"fs\.deny_globs denies 4 files of the interpreter"):
        look("aicode", "**/*.txt")
    assert len(searches) == 1
