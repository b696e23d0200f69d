"""The same attacks on container engines, and those that only a container invites.

A container takes a second to start, so rows run together: one Sandbox and few runs for a whole table. Their controls do
not depend on the backend; they run with the rows of the tables themselves, one directory up.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator

import pytest

from belljar import Sandbox


@pytest.fixture(params=["docker", "gvisor", "podman"], scope="session")
def backend(request: pytest.FixtureRequest, need_backend: Callable[[str], None]) -> str:
    """A container engine."""
    need_backend(request.param)
    return str(request.param)


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A process of the user who runs the tests, outside of every jar."""
    with subprocess.Popen(["sleep", "120"]) as process:
        yield process.pid
        assert process.poll() is None, "the neighbour was ended"
        process.kill()


@pytest.fixture
def roomy(open_jar: Callable[..., Sandbox]) -> Sandbox:
    """A jar of the test's own, with time for a batch."""
    return open_jar(overrides=["proc.timeout_ms=60s"])
