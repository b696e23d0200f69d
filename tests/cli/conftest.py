"""Commands are run as people run them: in a process of their own, in an empty directory, with a clean environment."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


@dataclass(frozen=True)
class HostJars:
    """Whether jars can be made here, and what belljar says after each of them that is true of this host alone."""

    why_not: str
    degraded: str


@pytest.fixture(scope="session")
def host_jars() -> HostJars:
    """Try one."""
    done = subprocess.run([*BELLJAR, "run", "-c", "pass"], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        return HostJars(done.stderr.partition("\n")[0] or f"exit {done.returncode}", "")
    return HostJars("", done.stderr)


@pytest.fixture
def jar(host_jars: HostJars, belljar: Callable[..., Ran]) -> Callable[..., Ran]:
    """`belljar`, on a host where jars can be made; without the line on what this host holds less well."""
    if host_jars.why_not:
        if "bubblewrap" in os.environ.get("BELLJAR_MUST_WORK", ""):
            pytest.fail(f"bubblewrap must work here: {host_jars.why_not}")
        pytest.skip(f"no jar can be made on this host: {host_jars.why_not}")

    def call(*words: str | Path, **options: Any) -> Ran:
        ran = belljar(*words, **options)
        return Ran(ran.code, ran.out, ran.err.replace(host_jars.degraded, "") if host_jars.degraded else ran.err)

    return call
