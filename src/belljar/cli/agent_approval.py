"""The end of an agent's run at a terminal: a person says which of its changes come back."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from belljar.agents.review import Kept, Review
from belljar.cli.stopping import ignore_further
from belljar.cli.terminal import visible, visible_lines
from belljar.sandbox.changes import Change


@dataclass(frozen=True)
class Decided:
    """What came back, and what could not."""

    applied: tuple[str, ...] = ()
    not_applied: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, review: Review, files: Collection[str] | None, *, git: bool, protected: Collection[str]) -> Decided:
        """Apply, and tell. From here on nothing interrupts it: half of the changes would be worse than either."""
        ignore_further()
        done = review.apply(files, git=git, protected=protected)
        left = [change for change in (*review.protected, *review.refused) if change.path not in done.applied]
        return cls(done.applied, (*done.refused, *((change.path, change.refusal) for change in left)))

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        refused = [{"path": path, "why": why} for path, why in self.not_applied]
        return {"applied": list(self.applied), "not_applied": refused}


def tell_decided(decided: Decided, kept: Kept, *, quiet: bool) -> None:
    """What came back, and where the rest can be read."""
    data = sum(".git" in path.split("/") for path in decided.applied)
    files = [path for path in decided.applied if ".git" not in path.split("/")]
    lines = [] if quiet else [f"belljar: applied: {visible(path)}" for path in files]
    if data and not quiet:
        lines.append(f"belljar: applied: commits and branches of git ({data} files)")
    lines += [f"belljar: not applied: {visible(path)}: {visible(why)}" for path, why in decided.not_applied]
    if kept.files:
        what = "the diff of the rest" if decided.applied else "nothing was applied; the diff"
        lines.append(f"belljar: {what} is in {' and '.join(map(visible, kept.files))}")
    if kept.not_in_them:
        lines.append(f"belljar: {kept.not_in_them} of its files are no text, or large, and gone with the jar")
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def ask(review: Review) -> Decided:
    """Ask the person at the terminal. Who says nothing more (end of file) applies nothing more."""
    while True:
        answer = _answer("belljar: apply the changes? [a]ll, [n]one, [f]ile by file, show the [d]iff: ")
        if answer.startswith("d"):
            sys.stderr.write(visible_lines(review.diff()))
        elif answer.startswith("a"):
            return Decided.of(review, None, git=True, protected=_ask_protected(review))
        elif answer.startswith("f"):
            files = [change.path for change in review.files if _yes(review, change)]
            git = bool(review.git_count) and _is_yes(
                f"belljar: commits and branches of git ({review.git_count} files)?"
            )
            return Decided.of(review, files, git=git, protected=_ask_protected(review))
        elif answer.startswith("n"):
            return Decided()


def _ask_protected(review: Review) -> list[str]:
    """A yes of its own for each file that makes a tool on this host do something."""
    return [change.path for change in review.protected if _yes(review, change)]


def _yes(review: Review, change: Change) -> bool:
    sys.stderr.write(visible_lines(review.diff({change.path})))
    why = f" ({visible(change.refusal)})" if change.protected else ""
    return _is_yes(f"belljar: {change.kind} {visible(change.path)}{why}: apply?")


def _is_yes(question: str) -> bool:
    return _answer(f"{question} [y/N] ").startswith("y")


def _answer(question: str) -> str:
    """One line, in small letters; `n` at the end of the input."""
    sys.stderr.write(question)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        return "n"
    return line.strip().lower()
