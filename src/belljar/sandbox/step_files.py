"""What a step showed, as files of the host's: names of our own, created anew, through no link."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from belljar.sandbox.step import StepResult

if TYPE_CHECKING:
    from belljar.sandbox.sandbox import Sandbox


def save(sandbox: Sandbox, result: StepResult, directory: str) -> list[str]:
    """Write the rich results, and the files that the step made, into the directory."""
    os.makedirs(directory, exist_ok=True)
    written = [_write(directory, f"step-{result.step}-{rich.name}", rich.data) for rich in result.results]
    return written + sandbox.save_files([artifact.path for artifact in result.artifacts], directory)


def _write(directory: str, name: str, data: bytes) -> str:
    path = os.path.join(directory, name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o644), "wb") as file:
        file.write(data)
    return path
