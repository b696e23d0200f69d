"""Denied names that no whiteout could be laid on ahead: the stage looks out for them, and the code races it."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_control import control, ordinary_user, python
from attack_search import SEARCH, SECRET, search_later

from belljar import Sandbox
from belljar.backends.contract import Status
from belljar.sandbox.events import Output

OpenJar = Callable[..., Sandbox]


@pytest.mark.parametrize("name", ["new/.env", "new/.ssh/id", "new/deeper/id_rsa", "id_rsa.backup-of-today"])
def test_denied_file_in_a_later_directory_is_hidden_soon(open_jar: OpenJar, project: Path, name: str) -> None:
    """What can't be covered ahead (a new directory, a wildcard's tail) is hidden soon, and the report says so."""

    def appear() -> None:
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(SECRET)

    assert search_later(open_jar, project, appear, patience=3) == []
    report = open_jar(workspace=project).plan(argv=["true"]).report
    assert report.clause("fs.deny_globs").lost
    assert f"./{name}" in control(["bash", "-c", SEARCH], cwd=str(project))


RACE = """
import os, sys, time
def wait(name):
    deadline = time.monotonic() + float(sys.argv[1])
    while name not in os.listdir(".") and time.monotonic() < deadline:
        pass
    return name in os.listdir(".")
os.write(1, b"go\\n")
if wait("new"):
    os.chdir("new")
os.write(1, b"in\\n")
wait("last")
try:
    print(open(".env").read())
except OSError:
    print("hidden")
"""
PATIENCE = "20"
NO_PATIENCE = "0.5"
"""In a snapshot nothing new ever appears, so it is not waited for long."""


def _race(project: Path, said: Iterator[str]) -> str:
    """The host makes a directory and, when the code stands in it, a denied file there; what the code found."""
    assert "go" in next(said)
    (project / "new").mkdir()
    assert "in" in next(said)
    time.sleep(0.3)  # far longer than it takes to see a new directory
    (project / "new" / ".env").write_text(SECRET)
    (project / "new" / "last").touch()
    return "".join(said).strip()


@pytest.mark.parametrize("snapshot", [True, False], ids=["snapshot", "overlay"])
def test_race_for_a_new_directory(open_jar: OpenJar, project: Path, snapshot: bool) -> None:
    """Code that stands in a new directory before belljar saw it: a snapshot hides it, or the report has said so."""
    jar = open_jar(workspace=project, overrides=[f"fs.snapshot={str(snapshot).lower()}"])
    clause = jar.plan(argv=["true"]).report.clause("fs.deny_globs")
    events = jar.stream(RACE, args=[NO_PATIENCE if snapshot else PATIENCE])
    found = _race(project, (event.data.decode() for event in events if isinstance(event, Output)))
    assert found == "hidden" or (clause.status is Status.DEGRADED and not snapshot)
    assert snapshot is (clause.status is Status.ENFORCED)
    shutil.rmtree(project / "new")
    outside = [*ordinary_user(), python(), "-I", "-c", RACE, PATIENCE]
    with subprocess.Popen(outside, cwd=project, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert _race(project, process.stdout) == SECRET
