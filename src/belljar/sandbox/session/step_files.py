"""What a step showed, as files of the host's: names of our own, written as artifacts are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from belljar.sandbox.files.artifacts import Saved
from belljar.sandbox.session.step import StepResult

if TYPE_CHECKING:
    from belljar.sandbox.run.sandbox import Sandbox


def save(sandbox: Sandbox, result: StepResult, directory: str, *, overwrite: bool, protected: bool) -> Saved:
    """Write the rich results, and the files that the step made, into the directory."""
    shown = {f"step-{result.step}-{rich.name}": rich.data for rich in result.results}
    made = [artifact.path for artifact in result.artifacts]
    return sandbox.save_files(made, directory, data=shown, overwrite=overwrite, protected=protected)
