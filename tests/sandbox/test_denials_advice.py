"""Advice is followed literally: each kind of denial, then what it says to type, and the same code succeeds."""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import belljar
from belljar.sandbox.record.result import Denial, RunResult

pytestmark = [pytest.mark.backend("bubblewrap"), pytest.mark.host]


@pytest.fixture
def outside() -> Iterator[Path]:
    """A directory that is neither in /tmp, so that a mount can have its own path, nor in anybody's home."""
    if not os.access("/opt", os.W_OK):
        pytest.skip("this user can make no directory outside of /tmp and homes")
    with tempfile.TemporaryDirectory(dir="/opt", prefix="belljar advice-") as directory:
        yield Path(directory)


def run(code: str, **options: Any) -> RunResult:
    with belljar.Sandbox(one_shot=True, **options) as jar:
        return jar.run(code, explain_denials=True)


def followed(result: RunResult, target: str) -> tuple[list[str], Denial]:
    """Return what the advice types after `--set`."""
    (denial,) = (each for each in result.denials if each.target == target)
    words = shlex.split(denial.allow.partition(", and open ")[0])
    assert words[::2] == ["--set"] * (len(words) // 2), denial.allow
    return words[1::2], denial


def test_a_file_that_no_mount_shows(outside: Path) -> None:
    (outside / "f").write_text("content")
    code = f"print(open({str(outside / 'f')!r}).read())"
    refused = run(code)
    assert refused.outcome == "failed"
    overrides, denial = followed(refused, f"read {outside}/f")
    assert denial.rule == "fs.mounts"
    assert run(code, overrides=overrides).stdout == "content\n"


def test_a_file_in_tmp(tmp_path: Path) -> None:
    """/tmp is each run's own, and a directory beneath it can be mounted there."""
    (tmp_path / "f").write_text("content")
    code = f"print(open({str(tmp_path / 'f')!r}).read())"
    overrides, _denial = followed(run(code), f"read {tmp_path}/f")
    assert run(code, overrides=overrides).stdout == "content\n"


def test_a_file_whose_path_the_jar_needs_itself() -> None:
    """/tmp itself is each run's own: the advice says under which name the file is there."""
    with tempfile.NamedTemporaryFile(dir="/tmp") as file:
        code = f"print(open({file.name!r}).read())"
        (denial,) = (each for each in run(code).denials if each.target == f"read {file.name}")
        assert denial.allow.endswith(f", and open /data/tmp/{os.path.basename(file.name)} instead")


def test_a_file_that_two_patterns_hide_and_no_mount_shows(outside: Path) -> None:
    """Every rule that stands in the way is named and undone, and nothing else is."""
    (outside / ".env").write_text("content")
    (outside / "id_rsa").write_text("secret")
    code = f"print(open({str(outside / '.env')!r}).read()); open({str(outside / 'id_rsa')!r})"
    own = {"fs": {"deny_globs": ["/opt/**/.e*"]}}
    overrides, denial = followed(run(code, policy=own), f"read {outside}/.env")
    assert "**/.env" in denial.rule
    assert "/opt/**/.e*" in denial.rule
    after = run(code, policy=own, overrides=overrides)
    assert after.stdout == "content\n"
    assert after.outcome == "failed", "the other denied file stays denied"


def test_an_absolute_pattern_is_not_taken_back_for_one_file(outside: Path) -> None:
    """A mount is enough: an absolute pattern says nothing about a directory that someone mounts from it."""
    (outside / "f").write_text("content")
    code = f"print(open({str(outside / 'f')!r}).read())"
    own = {"fs": {"deny_globs": ["/opt/**"]}}
    overrides, denial = followed(run(code, policy=own), f"read {outside}/f")
    assert "/opt/**" in denial.rule
    assert not any("!/opt" in override for override in overrides)
    assert run(code, policy=own, overrides=overrides).stdout == "content\n"


def test_a_hidden_file_of_the_workspace(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("content")
    code = "print(open('.env').read())"
    overrides, _ = followed(run(code, workspace=tmp_path), "read /workspace/.env")
    assert run(code, workspace=tmp_path, overrides=overrides).stdout == "content\n"


def test_a_read_only_mount(outside: Path) -> None:
    own = {"fs": {"mounts": [{"path": "/deps", "source": str(outside)}]}}
    code = "open('/deps/new', 'w').write('x'); print('written')"
    overrides, _ = followed(run(code, policy=own), "write /deps/new")
    assert run(code, policy=own, overrides=overrides).stdout == "written\n"
    assert not (outside / "new").exists(), "the advice is a copy-on-write mount"


def test_a_file_in_a_home_directory(monkeypatch: pytest.MonkeyPatch, outside: Path) -> None:
    """The whole home is never offered for one file."""
    monkeypatch.setenv("HOME", str(outside))
    (outside / "notes.txt").write_text("x")
    result = run(f"open({str(outside / 'notes.txt')!r})")
    (denial,) = (each for each in result.denials if each.target.endswith("notes.txt"))
    assert denial.allow.startswith("copy it into the workspace")
    assert "--set" not in denial.allow


LARGE_FILE = (
    "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"  # Python ignores it
    "open('f', 'wb').write(bytes(3 << 19))"
)
FIVE_CHILDREN = (
    "import subprocess; children = [subprocess.Popen(['sleep', '0.5']) for _ in range(5)]\n"
    "for child in children: child.wait()"
)
LIMITS = [
    ("proc.file_size_mb=1", LARGE_FILE, "write a larger file"),
    ("proc.timeout_ms=1500", "import time; time.sleep(1.6)", "run on"),
    ("proc.output_mb=1", "print('x' * (3 << 19))", "write more output"),
    ("proc.pids=4", FIVE_CHILDREN, "fork"),
]


@pytest.mark.parametrize(("setting", "code", "target"), LIMITS, ids=[row[0] for row in LIMITS])
def test_limits(setting: str, code: str, target: str) -> None:
    if target == "fork" and os.geteuid() != 0:
        pytest.skip("only a control group counts the processes that it refuses")
    refused = run(code, overrides=[setting])
    assert not refused.ok
    overrides, _ = followed(refused, target)
    assert run(code, overrides=[setting, *overrides]).outcome == "ok"
