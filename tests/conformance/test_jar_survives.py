"""What one run, or one caller, does wrong harms no other: the Sandbox goes on."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from jars import OpenJar, sh, told
from trees import plant

from belljar import BelljarError, Sandbox

NONSENSE = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
with socket.socket() as s:
    for address in (-1, 1 << 63, (1 << 63) - 1, 0, 1):
        for length in (16, -1, 0, 1 << 31):
            libc.connect(s.fileno(), ctypes.c_void_p(address), ctypes.c_uint(length))
print("tried")
"""


def test_pointers_that_lead_nowhere(open_jar: OpenJar) -> None:
    """System calls that belljar looks at, with arguments that mean nothing."""
    jar = open_jar({})
    assert told(jar.run(NONSENSE)) == "tried\n"
    assert told(sh(jar, "echo still here")) == "still here\n"


def test_text_that_is_no_text(open_jar: OpenJar) -> None:
    """A lone surrogate can be no argument and no path: an error for whoever asked, and nothing else."""
    jar: Sandbox = open_jar({})
    with pytest.raises(BelljarError):
        jar.exec(["echo", "\ud800"])
    with pytest.raises((BelljarError, OSError)):
        jar.files.read("\ud800")
    assert told(sh(jar, "echo still here")) == "still here\n"


@pytest.mark.parametrize("how", [{}, {"rw": True, "cow": True}], ids=["read-only", "copy-on-write"])
def test_a_directory_that_is_made_anew(open_jar: OpenJar, project: Path, how: dict[str, bool]) -> None:
    """Removed and made again by the host, as build tools do all the time: what is denied in it stays denied."""
    plant(project, {"conf/plain": "visible", "plain": "visible"})
    mounts = [{"path": "/data", "source": str(project), **how}]
    jar = open_jar({"fs": {"mounts": mounts, "deny_globs": ["**/*.key"]}})
    assert told(sh(jar, "cat /data/plain")) == "visible"
    shutil.rmtree(project / "conf")
    plant(
        project,
        {"conf/one.key": "sentinel-secret", "conf/.env": "sentinel-secret", "conf/deep/two.key": "sentinel-secret"},
    )
    found = sh(jar, "cat /data/conf/one.key /data/conf/.env /data/conf/deep/two.key; true").stdout
    assert "sentinel-secret" not in found


def test_what_the_host_made_meanwhile_is_not_deleted(open_jar: OpenJar, project: Path) -> None:
    """The code removed a directory; the host has put a file there since: that one stays."""
    plant(project, {"src/old": "old"})
    jar = open_jar({}, workspace=project)
    told(sh(jar, "rm -r src"))
    plant(project, {"src/new": "precious"})
    with jar.changes() as changes:
        refused = dict(changes.apply().refused)
    assert "src" in refused
    assert (project / "src/new").read_text() == "precious"


@pytest.mark.parametrize("snapshot", [False, True], ids=["live", "snapshot"])
def test_the_other_name_of_a_denied_file_is_not_told(open_jar: OpenJar, project: Path, snapshot: bool) -> None:
    """A hard link: not in the list of changes, not in the diff, and not deleted by apply."""
    plant(project, {".env": "sentinel-secret", "plain": "visible"})
    (project / "innocent").hardlink_to(project / ".env")
    jar = open_jar({"fs": {"snapshot": snapshot}}, workspace=project)
    told(sh(jar, "echo more >> plain"))
    with jar.changes() as changes:
        assert [change.path for change in changes] == ["plain"]
    told(sh(jar, "echo mine > innocent"))
    with jar.changes() as changes:
        assert "sentinel-secret" not in changes.diff()
        assert changes.apply().refused == () or "innocent" in dict(changes.apply().refused)
    assert (project / ".env").read_text() == "sentinel-secret"


@pytest.mark.parametrize("snapshot", [False, True], ids=["live", "snapshot"])
def test_what_is_mounted_in_a_workspace_is_no_change_of_it(open_jar: OpenJar, project: Path, snapshot: bool) -> None:
    """A second mount inside the first: its files are its own."""
    plant(project, {"deps/one": "1", "ws/plain": "visible", "ws/inner/": None})
    mounts = [{"path": "/workspace/inner", "source": str(project / "deps")}]
    jar = open_jar({"fs": {"snapshot": snapshot, "mounts": mounts}}, workspace=project / "ws")
    assert told(sh(jar, "cat inner/one; echo more >> plain")) == "1"
    with jar.changes() as changes:
        assert [change.path for change in changes] == ["plain"]
