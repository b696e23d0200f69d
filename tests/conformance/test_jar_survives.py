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
