"""Which process belljar takes for a container's, before it kills it and all below it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from belljar.backends import kernel
from belljar.backends.container.jar.ending import FirstProcess

WAITS = "import sys; sys.stdin.read()"


class Engine:
    """What an engine says of a container: the number of its first process, as the engine counts."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def state(self) -> dict[str, object]:
        return {"Pid": self._pid, "Running": True}


@pytest.fixture(params=[False, True], ids=["beside us", "in a container"])
def process(request: pytest.FixtureRequest) -> Iterator[tuple[int, bool]]:
    """A process that waits, and whether it has mounts of its own, as every container has."""
    apart = bool(request.param)
    if apart and os.geteuid():
        pytest.skip("only root makes a mount namespace without a user namespace")
    enter = (lambda: kernel.unshare(kernel.CLONE_NEWNS)) if apart else None
    with subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, preexec_fn=enter) as child:
        yield child.pid, apart
        child.kill()


def test_only_a_process_with_mounts_of_its_own_is_taken(process: tuple[int, bool]) -> None:
    """In a container with the host's name belljar reads the engine's numbers, which are other processes' there."""
    pid, apart = process
    before = len(os.listdir("/proc/self/fd"))
    found = FirstProcess.of(Engine(pid))  # type: ignore[arg-type]
    assert (found is not None) == apart
    if found is not None:
        found.close()
    assert len(os.listdir("/proc/self/fd")) == before
