"""Denied names that the host makes while code runs, where no whiteout could be laid on ahead.

Where overlayfs can show a set of names and no others, none of them is ever there. Elsewhere the stage looks out for
them, the code races it, and the report says so: `whiteouts` is that way, on every kernel.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_control import control, ordinary_user, python
from attack_search import SEARCH, SECRET, search_later

from belljar import Sandbox
from belljar.backends.bubblewrap.host.facts import kernel_version
from belljar.backends.contract import Status
from belljar.sandbox.record.events import Output

OpenJar = Callable[..., Sandbox]


NAMES = ["new/.env", "new/.ssh/id", "new/deeper/id_rsa", "id_rsa.backup-of-today"]


@pytest.fixture
def whiteouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a kernel that can't show a set of names."""
    monkeypatch.setenv("BELLJAR_FROZEN_NAMES", "none")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("whiteouts")
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
"""Where nothing new ever appears, it is not waited for long."""


def _race(project: Path, said: Iterator[str]) -> str:
    """The host makes a directory and, when the code stands in it, a denied file there; what the code found."""
    assert "go" in next(said)
    (project / "new").mkdir()
    assert "in" in next(said)
    (project / "new" / ".env").write_text(SECRET)
    (project / "new" / "last").touch()
    return "".join(said).strip()


WAYS = {"snapshot": "fs.snapshot=true", "names": "fs.snapshot=false", "whiteouts": "fs.snapshot=false"}


@pytest.mark.parametrize("way", WAYS)
def test_race_for_a_new_directory(open_jar: OpenJar, project: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Code that stands in a new directory before belljar saw it: what is enforced holds, or the report has said so."""
    if way == "whiteouts":
        monkeypatch.setenv("BELLJAR_FROZEN_NAMES", "none")
    jar = open_jar(workspace=project, overrides=[WAYS[way]])
    enforced = jar.plan(argv=["true"]).report.clause("fs.deny_globs").status is Status.ENFORCED
    assert enforced is (way == "snapshot" or (way == "names" and kernel_version() >= (6, 16)))
    events = jar.stream(RACE, args=[NO_PATIENCE if enforced else PATIENCE])
    found = _race(project, (event.data.decode() for event in events if isinstance(event, Output)))
    assert found == "hidden" or not enforced
    shutil.rmtree(project / "new")
    outside = [*ordinary_user(), python(), "-I", "-c", RACE, PATIENCE]
    with subprocess.Popen(outside, cwd=project, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert _race(project, process.stdout) == SECRET
