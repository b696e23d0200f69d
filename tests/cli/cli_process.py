"""`belljar` as a process: how it is called, and what it did."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

BELLJAR = [sys.executable, "-m", "belljar"]


@dataclass(frozen=True)
class Ran:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def environment(directory: Path, **extra: str) -> dict[str, str]:
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "BELLJAR_CGROUP", "XDG_RUNTIME_DIR", "PYTHONPATH")
        if name in os.environ
    }
    state = directory / "state"
    if not state.exists():  # a large interpreter is searched for denied names once for all tests, not in each of them
        state.mkdir(mode=0o700)
        (state / "interpreters").symlink_to(searched())
    return {**kept, "BELLJAR_STATE_DIR": str(state), **extra}


@cache
def searched() -> Path:
    path = mkdtemp(prefix="belljar-interpreters-")
    atexit.register(shutil.rmtree, path)
    return Path(path)
