"""`belljar audit verify`: what it says, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.audit.log import directory, record


def verify(*words: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    command = [sys.executable, "-m", "belljar", "audit", "verify", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("json_flag", [[], ["--json"]], ids=["text", "json"])
def test_a_directory_without_a_log(tmp_path: Path, json_flag: list[str]) -> None:
    """Is not one that is in order. The user's own may be new, though."""
    for path, problem in ((tmp_path / "none", "is no directory"), (tmp_path, "there is no audit log in")):
        done = verify(*json_flag, str(path))
        assert (done.returncode, done.stdout) == (2, "")
        assert problem in done.stderr
        assert "hint: " in done.stderr
    assert verify(*json_flag).returncode == 0


def test_one_that_a_killed_process_left() -> None:
    """Its last record is there, and it is said why nobody was told."""
    record("first")
    head = Path(directory(), "head").read_bytes()
    record("second")
    Path(directory(), "head").write_bytes(head)
    done = verify(directory())
    assert done.returncode == 0
    assert "2 records, all as they were written" in done.stdout
    assert "1 of them, at its end, by a process that was killed" in done.stdout
    told = json.loads(verify("--json").stdout)
    assert (told["ok"], told["records"], told["unacknowledged"]) == (True, 2, 1)
