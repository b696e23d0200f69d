"""`belljar` as a process: how it is called, and what it did."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
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
    return {**kept, "BELLJAR_STATE_DIR": str(directory / "state"), **extra}
