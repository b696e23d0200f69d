"""Fixtures: the programs as files, and a child that makes one call under them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).with_name("seccomp_probe.py")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")


@dataclass(frozen=True)
class Outcome:
    """How the child's call ended; `signal` if it did not live to tell."""

    errno: int
    result: int
    pid: int
    signal: int = 0


Attempt = Callable[..., Outcome]


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every program by a short name, as a path."""
    from belljar.backends.seccomp import filters

    built = {
        "jar": filters.jar_filter(reported=False),
        "jar-reported": filters.jar_filter(reported=True),
        "notify": filters.notify_filter(connects=False, files=False),
        "notify-all": filters.notify_filter(connects=True, files=True),
    }
    directory = tmp_path_factory.mktemp("programs")
    for name, program in built.items():
        (directory / name).write_bytes(program)
    return {name: str(directory / name) for name in built}


@pytest.fixture
def attempt(programs: dict[str, str], tmp_path: Path) -> Attempt:
    """Make one call in a child of its own, in an empty directory, under the named programs."""

    def run(*under: str, **job: Any) -> Outcome:
        job["programs"] = [programs[name] for name in under]
        done = subprocess.run(
            [sys.executable, PROBE, json.dumps(job)],
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        if done.returncode < 0:
            return Outcome(0, 0, 0, signal=-done.returncode)
        assert done.returncode == 0, done.stderr.decode()
        said = json.loads(done.stdout)
        return Outcome(said["errno"], said["result"], said["pid"])

    return run


def number_of(name: str) -> int:
    """Find the number of a call here; skips where this machine has no such call."""
    from belljar.backends.seccomp.libseccomp import resolve
    from belljar.backends.seccomp.rules import NUMBERS

    number = resolve(name)
    number = NUMBERS.get(name) if number is None else number
    if number is None:
        pytest.skip(f"no {name} on this architecture")
    return number


def is_root() -> bool:
    return os.geteuid() == 0


@pytest.fixture
def number() -> Callable[[str], int]:
    return number_of


@pytest.fixture
def root() -> bool:
    return is_root()
