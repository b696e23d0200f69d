"""A live mount on every backend: the host's sockets and named pipes are hidden, and no link is followed to a source."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from belljar import Sandbox, SandboxUnavailableError

OpenJar = Callable[..., Sandbox]

KNOCK = """
import os, socket, sys
for name in ("door", "deep/door"):
    try: socket.socket(socket.AF_UNIX).connect(name); print("connected", name)
    except OSError: pass
try: os.write(os.open("pipe", os.O_WRONLY | os.O_NONBLOCK), b"word"); print("written")
except OSError: pass
print(open("plain").read())
"""


@pytest.fixture
def doors(project: Path, as_root: bool) -> Iterator[Path]:
    """A directory with sockets that somebody listens on, and a pipe that somebody reads. Anybody may use them."""
    (project / "deep").mkdir()
    (project / "plain").write_text("plain")
    os.mkfifo(project / "pipe")
    reader = os.open(project / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with closing(socket.socket(socket.AF_UNIX)) as one, closing(socket.socket(socket.AF_UNIX)) as two:
        for end, path in ((one, project / "door"), (two, project / "deep" / "door")):
            end.bind(os.path.relpath(path))  # a path of the tests may be longer than an address
            end.listen()
        for path in (project, project / "deep", project / "door", project / "deep" / "door", project / "pipe"):
            path.chmod(0o755 if as_root and path.is_dir() else 0o777)
        yield project
    os.close(reader)


def test_no_door_to_the_host_opens(open_jar: OpenJar, doors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the same code opens on the host (the control) it does not open in a live mount."""
    jar = open_jar({"on_degraded": "allow", "proc": {"uid": os.getuid() or 1000}}, workspace=doors, live=True)
    result = jar.run(KNOCK)
    assert result.stdout == "plain\n", result
    assert result.enforcement.clause("fs.deny_globs").status == "degraded"
    monkeypatch.chdir(doors)
    with closing(socket.socket(socket.AF_UNIX)) as end:
        end.connect("door")
    os.close(os.open("pipe", os.O_WRONLY | os.O_NONBLOCK))


@pytest.mark.parametrize("how", [{}, {"rw": True, "cow": True}, {"rw": True}], ids=["read-only", "cow", "live"])
def test_a_source_that_became_a_link(open_jar: OpenJar, project: Path, tmp_path: Path, how: dict[str, bool]) -> None:
    """After the policy was read, the way to a source leads through no link: in its middle, or at its end."""
    (tmp_path / "other" / "data").mkdir(parents=True)
    (project / "data").mkdir()
    (project / "data").chmod(0o777)
    mount = {"path": "/data", "source": str(project / "data"), **how}
    policy = {"on_degraded": "allow", "fs": {"mounts": [mount]}}
    jar = open_jar(policy)
    (project / "data").rename(tmp_path / "moved")
    (project / "data").symlink_to(tmp_path / "other" / "data")
    with pytest.raises(SandboxUnavailableError, match="somebody put a link there"):
        jar.exec(["ls", "/data"])
    (project / "data").unlink()
    project.rename(tmp_path / "before")
    project.symlink_to(tmp_path / "other")
    with pytest.raises(SandboxUnavailableError, match="somebody put a link there"):
        jar.exec(["ls", "/data"])
