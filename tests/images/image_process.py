"""`belljar image` as a process, with a cache that is shared by all tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BELLJAR = [sys.executable, "-m", "belljar"]
BUILD_SECONDS = 570


@dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Call = Callable[..., Done]


def image_cache() -> str:
    """The cache that the engines' own tests name, or one that goes away with the clone."""
    return os.environ.get("BELLJAR_IMAGE_CACHE") or str(ROOT / ".cache/images")


def call(*words: str, **variables: str) -> Done:
    done = subprocess.run(
        [*BELLJAR, "image", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "BELLJAR_IMAGE_CACHE": image_cache(), **variables},
    )
    return Done(done.returncode, done.stdout, done.stderr)
