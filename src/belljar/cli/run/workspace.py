"""What comes back from a workspace after a run: the diff, what was applied or refused, the artifacts."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from belljar.cli.parsing import Parsed
from belljar.cli.terminal.safe_text import visible, visible_lines
from belljar.cli.terminal.style import is_terminal
from belljar.errors import UsageError

if TYPE_CHECKING:
    from typing import Any

    from belljar.sandbox.files.changes import Changes
    from belljar.sandbox.record.result import RunResult
    from belljar.sandbox.run.sandbox import Sandbox

DIFF_BEGINS, DIFF_ENDS = "# belljar: diff {token} begins\n", "# belljar: diff {token} ends\n"


class Workspace:
    """What was asked for and what came of it; None where nothing was asked."""

    __slots__ = ("applied", "diff", "diff_file", "hints", "incomplete", "kept", "not_saved", "refused", "saved")

    def __init__(self) -> None:
        self.diff: str | None = None
        self.diff_file: str | None = None
        self.applied: tuple[str, ...] | None = None
        self.refused: tuple[tuple[str, str], ...] = ()
        self.saved: list[str] | None = None
        self.not_saved: list[tuple[str, str]] = []
        self.hints: list[str] = []
        self.incomplete = False
        """Whether something that `--apply` asked for was not applied."""
        self.kept = ""
        """The run whose work is kept, if it is."""

    def to_dict(self) -> dict[str, Any]:
        """The fields that `--json` adds to the result's, each only if its option was given."""
        found: dict[str, Any] = {}
        if self.diff is not None:
            found["diff"] = self.diff
        if self.diff_file is not None:
            found["diff_file"] = self.diff_file
        if self.applied is not None:
            found["applied"] = list(self.applied)
            found["not_applied"] = [{"path": path, "why": why} for path, why in self.refused]
            found["kept"] = self.kept or None
        if self.saved is not None:
            found["saved"] = self.saved
            found["not_saved"] = [{"path": path, "why": why} for path, why in self.not_saved]
        return found

    def print_diff(self, *, in_a_line: bool) -> None:
        """Print the diff to standard output, where the code's own output went before."""
        if self.diff is not None:
            print_marked_diff(self.diff, in_a_line=in_a_line)

    def tell(self, *, quiet: bool) -> None:
        """What was brought back, and always what was not."""
        lines = []
        if self.applied is not None and not quiet:
            lines += [f"belljar: applied: {visible(path)}" for path in self.applied] or ["belljar: nothing to apply"]
        lines += [f"belljar: not applied: {visible(path)}: {visible(why)}" for path, why in self.refused]
        if self.saved is not None and not quiet:
            nothing = [] if self.not_saved else ["belljar: no artifacts to save"]
            lines += [f"belljar: saved: {visible(path)}" for path in self.saved] or nothing
        lines += [f"belljar: not saved: {visible(path)}: {visible(why)}" for path, why in self.not_saved]
        lines += [] if quiet else [f"hint: {hint}" for hint in self.hints]
        sys.stderr.write("".join(f"{line}\n" for line in lines))


def print_marked_diff(text: str, *, in_a_line: bool = True) -> None:
    """Print a diff between two lines that the code can't have printed: their token is made after the code has ended.

    The last line of standard output has the token, so a reader finds where the diff begins. A line of the diff itself
    begins with a space, a sign or a word of belljar's, whatever a file holds.
    """
    token = os.urandom(16).hex()
    before = "\n" if in_a_line else ""
    _print_text(before + DIFF_BEGINS.format(token=token) + text + DIFF_ENDS.format(token=token))


def write_diff(path: str, text: str) -> None:
    """Write a diff to a file that the caller named: at once, in place of what is there. Raises UsageError."""
    from belljar.sandbox.files.apply import write_file

    data = text.encode("utf-8", "surrogateescape")
    path = os.path.abspath(path)
    try:
        if os.path.exists(path) and not os.path.isfile(path):  # a pipe, or /dev/stderr
            _write_all(os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC), data, close=True)
            return
        directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_file(directory, os.path.basename(path), lambda fresh: _write_all(fresh, data))
        finally:
            os.close(directory)
    except OSError as error:
        raise UsageError(f"--diff-file {path}: {error.strerror or error}") from error


def _print_text(text: str) -> None:
    """Text of the code's, on standard output: as it is, or filtered for a terminal."""
    sys.stdout.flush()
    _write_all(1, (visible_lines(text) if is_terminal(1) else text).encode("utf-8", "surrogateescape"))


def _write_all(descriptor: int, content: bytes, *, close: bool = False) -> None:
    try:
        data = memoryview(content)
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        if close:
            os.close(descriptor)


def settle(jar: Sandbox, result: RunResult, parsed: Parsed) -> Workspace:
    """After the run, while the jar is still open: take out what the options ask for."""
    brought = Workspace()
    if result.outcome == "refused":
        return brought  # nothing ran, so there is nothing to take out
    file = parsed.text("--diff-file")
    if parsed.flag("--diff") or parsed.flag("--apply") or file is not None:
        with jar.changes() as changes:
            if parsed.flag("--diff"):
                brought.diff = changes.diff()
            if file is not None:
                write_diff(file, changes.diff() if brought.diff is None else brought.diff)
                brought.diff_file = file
            if parsed.flag("--apply"):
                _apply(changes, result, parsed, brought)
    if directory := parsed.text("--artifacts"):
        saved = jar.save_artifacts(result, directory, overwrite=parsed.flag("--overwrite"))
        brought.saved, brought.not_saved = list(saved), saved.refused
        if saved.were_there:
            brought.hints.append("--overwrite replaces files that are there")
    return brought


def _apply(changes: Changes, result: RunResult, parsed: Parsed, brought: Workspace) -> None:
    protected, ignored = parsed.flag("--apply-protected"), parsed.flag("--apply-ignored")
    killed = result.outcome == "killed"
    left_out = set() if ignored else {change.path for change in changes if change.ignored}
    refused = [change for change in changes if change.refusal and not change.ignored]
    if len(changes) and (killed or [change for change in refused if not (change.protected and protected)]):
        _keep(changes, result, brought)
    if killed:
        brought.applied, brought.incomplete = (), bool(len(changes))
        brought.refused = ((".", f"the run was killed: {result.reason}"),) if brought.incomplete else ()
        return
    wanted = {change.path for change in changes if change.path not in left_out}
    done = changes.apply(wanted, protected=protected, ignored=ignored)
    brought.applied, brought.refused, brought.incomplete = done.applied, done.refused, bool(done.refused)
    if brought.kept and done.applied:
        from belljar.sandbox.kept.store import find

        find(brought.kept).set_state("partly applied", applied=done.applied)
    if left_out:
        why = next(change.refusal for change in changes if change.ignored)
        brought.refused += tuple((name, why) for name in changes.ignored_groups())
        brought.hints.append("--apply-ignored brings back what git ignores")
    if not protected and any(change.protected for change in changes):
        brought.hints.append("--apply-protected brings back what a tool would act on")


def _keep(changes: Changes, result: RunResult, brought: Workspace) -> None:
    """Keep the work of a run of which something does not come back."""
    from belljar.sandbox.kept.store import keep

    about = {"agent": "run", "command": [], "outcome": str(result.outcome), "reason": result.reason}
    work = keep(result.run_id, changes, list(changes), about)
    if result.outcome == "killed":
        work.set_state("refused", why=result.reason)
    brought.kept = work.run
    brought.hints.append(
        f"the work is kept: `belljar review {work.run}` shows it, `belljar apply {work.run}` applies it"
    )
