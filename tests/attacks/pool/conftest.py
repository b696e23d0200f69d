"""The same attacks on the jars of a pool. Their controls run with the tables themselves, one directory up."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest

from belljar import Pool, RunResult

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "containers"))

_BECOME = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


class _NoFiles:
    """Every run has a workspace of its own: there is nothing to list."""

    def list(self) -> list[Any]:
        return []


class PooledJar:
    """As much of a `Sandbox` as the attacks use, with a pool behind it."""

    backend_name = "bubblewrap"
    files = _NoFiles()

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def run(self, code: str, *, language: str = "python", **options: Any) -> RunResult:
        if language == "bash":
            return self.exec(["bash", "-c", code])
        return self._pool.run(code, **options)

    def exec(self, argv: Sequence[str]) -> RunResult:
        return self._pool.run(_BECOME, args=argv)

    def kill(self) -> None:
        self._pool.kill()


@pytest.fixture
def open_jar(backend: str) -> Iterator[Callable[..., PooledJar]]:
    """Opens pools, and closes each of them."""
    assert backend == "bubblewrap"
    with ExitStack() as stack:

        def open_one(policy: Any = None, **options: Any) -> PooledJar:
            return PooledJar(stack.enter_context(Pool(policy, size=2, **options)))

        yield open_one


@pytest.fixture
def roomy(open_jar: Callable[..., PooledJar]) -> PooledJar:
    """With time for a batch."""
    return open_jar(overrides=["proc.timeout_ms=60s"])


@pytest.fixture
def neighbour() -> Iterator[int]:
    """A process of the user who runs the tests, outside of every jar."""
    with subprocess.Popen(["sleep", "120"]) as process:
        yield process.pid
        assert process.poll() is None, "the neighbour was ended"
        process.kill()


@pytest.fixture
def engine_environment() -> dict[str, str]:
    """No engine is needed."""
    return {}
