"""What comes back from a workspace after a run: the diff, what was applied or refused, the artifacts."""

from __future__ import annotations

import os
import sys

from belljar.cli.parsing import Parsed
from belljar.cli.style import is_terminal
from belljar.cli.terminal import visible, visible_lines

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.sandbox.result import RunResult
    from belljar.sandbox.sandbox import Sandbox


class Workspace:
    """What was asked for and what came of it; None where nothing was asked."""

    __slots__ = ("applied", "diff", "refused", "saved")

    def __init__(self) -> None:
        self.diff: str | None = None
        self.applied: tuple[str, ...] | None = None
        self.refused: tuple[tuple[str, str], ...] = ()
        self.saved: list[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields that `--json` adds to the result's, each only if its option was given."""
        found: dict[str, Any] = {}
        if self.diff is not None:
            found["diff"] = self.diff
        if self.applied is not None:
            found["applied"] = list(self.applied)
            found["not_applied"] = [{"path": path, "why": why} for path, why in self.refused]
        if self.saved is not None:
            found["saved"] = self.saved
        return found

    def print_diff(self) -> None:
        """The diff is data: it goes to standard output, and is filtered only for a terminal."""
        if self.diff:
            print_text(self.diff)

    def tell(self, *, quiet: bool) -> None:
        """What was brought back, and always what was not."""
        lines = []
        if self.applied is not None and not quiet:
            lines += [f"belljar: applied: {visible(path)}" for path in self.applied] or ["belljar: nothing to apply"]
        lines += [f"belljar: not applied: {visible(path)}: {visible(why)}" for path, why in self.refused]
        if self.saved is not None and not quiet:
            lines += [f"belljar: saved: {visible(path)}" for path in self.saved] or ["belljar: no artifacts to save"]
        sys.stderr.write("".join(f"{line}\n" for line in lines))


def print_text(text: str) -> None:
    """Text of the code's, on standard output: as it is, or filtered for a terminal."""
    data = memoryview((visible_lines(text) if is_terminal(1) else text).encode("utf-8", "surrogateescape"))
    while data:
        data = data[os.write(1, data) :]


def settle(jar: Sandbox, result: RunResult, parsed: Parsed) -> Workspace:
    """After the run, while the jar is still open: take out what the options ask for."""
    brought = Workspace()
    if result.outcome == "refused":
        return brought  # nothing ran, so there is nothing to take out
    if parsed.flag("--diff") or parsed.flag("--apply"):
        with jar.changes() as changes:
            if parsed.flag("--diff"):
                brought.diff = changes.diff()
            if parsed.flag("--apply"):
                applied = changes.apply()
                brought.applied, brought.refused = applied.applied, applied.refused
    if directory := parsed.text("--artifacts"):
        brought.saved = [str(path) for path in jar.save_artifacts(result, directory)]
    return brought
