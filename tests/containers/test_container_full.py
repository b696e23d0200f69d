"""Volumes that the code has filled: another run starts in them, as long as the code has left it its room."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from belljar import Sandbox, SandboxUnavailableError
from belljar.guest.container.volume_server import RESERVES

SMALL = {"fs": {"size_mb": 2, "inodes": 64}, "proc": {"mem_mb": 256}}
FILL = "i=0; while true > f$i; do i=$((i+1)); done 2>/dev/null; cat /dev/zero > f0 2>/dev/null"
TAKE_THE_RESERVE = "chmod 755 /run/jar && rm -rf /run/jar/.* /tmp/home 2>/dev/null"


@pytest.fixture(params=["docker", "gvisor", "podman"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each of them."""
    request.getfixturevalue("need_backend")(request.param)
    return str(request.param)


def crowd(jar: Sandbox) -> None:
    """Run after run takes all it can. gVisor lets go of some removed files when a run has ended: room for another."""
    for _ in range(10):
        jar.exec(["sh", "-c", f"{TAKE_THE_RESERVE}; {FILL}"])


def test_code_that_takes_the_room_of_the_next(engine: str) -> None:
    """A run that can't be started is no run that failed: the error says what to remove, and then the next one works."""
    with Sandbox(SMALL, backend=engine) as jar:
        with pytest.raises(SandboxUnavailableError, match="could not be started: No space left") as caught:
            crowd(jar)
        assert "files.remove" in caught.value.hint
        for entry in jar.files.list():
            jar.files.remove(entry.path)
        for _ in range(3):
            assert jar.run("print('started')").stdout == "started\n"


def test_code_that_fills_all_it_may(engine: str) -> None:
    """What its own file took is there for that of the next run, and of the one after."""
    fill = "file = open('full', 'wb', 0)\nwhile True: file.write(bytes(4096))"
    with Sandbox(SMALL, backend=engine) as jar:
        for _ in range(2):
            assert "No space left" in jar.run(fill).stderr
            assert jar.run("print('started')").stdout == "started\n"


def test_a_reserve_is_all_or_nothing(tmp_path: Path) -> None:
    """Where only a part of it could be written, there is an error, and nothing is held."""
    size = max(RESERVES.values())
    program = f"""
import os, resource, sys
from belljar.guest.container.volume_server import _fill_up
directory = os.open(sys.argv[1], os.O_RDONLY)
_fill_up(directory, "whole", {size})
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    _fill_up(directory, "part", {size})
except OSError:
    print("refused")
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    assert os.path.getsize(tmp_path / "whole") == size
    assert os.path.getsize(tmp_path / "part") == 0
