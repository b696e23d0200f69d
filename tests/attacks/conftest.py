"""What every attack needs: a place that everyone may read. Jars come from tests/conftest.py.

The tables here run on bubblewrap, each row with its control. On container engines the same rows run together, without
the controls, which do not depend on the backend: `containers/`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attack_kill import Scene


@pytest.fixture(scope="session")
def backend(need_backend: Callable[[str], None]) -> str:
    """Bubblewrap; `containers/` has the others."""
    need_backend("bubblewrap")
    return "bubblewrap"


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


@pytest.fixture
def scene(backend: str, arena: Path, project: Path) -> Iterator[Scene]:
    """Where a program that uses belljar is killed."""
    made = Scene(backend, arena, project)
    yield made
    made.close()
