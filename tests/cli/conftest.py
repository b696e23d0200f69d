"""Commands are run as people run them: in a process of their own, in an empty directory, with a clean environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import BELLJAR, Ran, environment


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The empty directory that commands are run in."""
    directory = tmp_path / "here"
    directory.mkdir()
    return directory


@pytest.fixture
def belljar(here: Path) -> Callable[..., Ran]:
    """Run `belljar WORDS…`."""

    def call(*words: str | Path, stdin: bytes | None = None, cwd: Path | None = None, **variables: str) -> Ran:
        done = subprocess.run(
            [*BELLJAR, *map(str, words)],
            cwd=cwd or here,
            env=environment(here.parent, **variables),
            input=b"" if stdin is None else stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))

    return call


@pytest.fixture(scope="session")
def _bubblewrap() -> str:
    """Why no jar can be made here, or nothing."""
    done = subprocess.run(
        [*BELLJAR, "run", "-q", "-c", "pass"], capture_output=True, text=True, timeout=60, check=False
    )
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit {done.returncode}"


@pytest.fixture
def jar(_bubblewrap: str, belljar: Callable[..., Ran]) -> Callable[..., Ran]:
    """`belljar`, on a host where jars can be made."""
    if _bubblewrap:
        if "bubblewrap" in os.environ.get("BELLJAR_MUST_WORK", ""):
            pytest.fail(f"bubblewrap must work here: {_bubblewrap}")
        pytest.skip(f"no jar can be made on this host: {_bubblewrap}")
    return belljar
