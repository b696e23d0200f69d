"""What every attack needs: bubblewrap that works, jars that are closed, and a place that everyone may read."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]


@pytest.fixture(scope="session", autouse=True)
def _bubblewrap(need_backend: Callable[[str], None]) -> None:
    """These attacks are on bubblewrap."""
    need_backend("bubblewrap")


@pytest.fixture
def open_jar() -> Iterator[OpenJar]:
    """Opens jars on bubblewrap, and closes each of them."""
    with ExitStack() as stack:
        yield lambda policy=None, **options: stack.enter_context(
            Sandbox(policy, **{"backend": "bubblewrap", **options})
        )


@pytest.fixture
def jar(open_jar: OpenJar) -> Sandbox:
    """A jar with the default policy."""
    return open_jar()


@pytest.fixture
def arena() -> Iterator[Path]:
    """A directory that any user may read and write: what a jar does not show is hidden by the jar, not by a mode."""
    path = Path(tempfile.mkdtemp(prefix="belljar-attack-", dir="/tmp"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path, onerror=_open_and_remove)


def _open_and_remove(remove: Callable[..., Any], path: str, _error: Any) -> None:
    os.chmod(os.path.dirname(path), 0o700)
    os.chmod(path, 0o700)
    if remove is os.scandir or remove is os.open:
        shutil.rmtree(path)
    else:
        remove(path)


@pytest.fixture
def project(arena: Path) -> Path:
    """A directory of the host's that becomes a workspace."""
    path = arena / "project"
    path.mkdir()
    path.chmod(0o755)
    return path
