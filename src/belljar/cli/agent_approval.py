"""The end of an agent's run at a terminal: a person says which of its changes come back."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from belljar.agents.review import Review
from belljar.cli.pager import show
from belljar.cli.stopping import ignore_further
from belljar.cli.style import supports_colour
from belljar.cli.terminal import visible
from belljar.cli.work_listing import coloured
from belljar.sandbox.changes import Change
from belljar.sandbox.kept.store import Work
from belljar.sandbox.trusted_names import in_bytecode

_MOST_LISTED = 50


NOT_ALL_APPLIED = 3
"""The exit code if the agent's is 0, and something that was asked for did not come back."""


@dataclass(frozen=True)
class Decided:
    """What came back, and what could not."""

    applied: tuple[str, ...] = ()
    not_applied: tuple[tuple[str, str], ...] = ()
    merged: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    incomplete: bool = False
    """Whether something that was asked for did not come back."""

    @classmethod
    def of(
        cls,
        review: Review,
        files: Collection[str] | None,
        *,
        git: bool,
        protected: Collection[str],
        ignored: bool,
        all_of_it: bool = False,
    ) -> Decided:
        """Apply, and tell. From here on nothing interrupts it: half of the changes would be worse than either.

        `all_of_it` says that everything was asked for, so that what needs another word counts as missing.
        """
        ignore_further()
        done = review.apply(files, git=git, protected=protected, ignored=ignored)
        applied = set(done.applied)
        left = [change for change in (*review.protected, *review.refused) if change.path not in applied]
        told = {change.path: change.refusal for change in left}
        missing = all_of_it and any(not in_bytecode(path) and ".git" not in path.split("/") for path in told)
        if review.ignored and not ignored:
            told |= dict.fromkeys(review.ignored_groups, review.ignored[0].refusal)
        told |= dict(done.refused)
        if done.conflicts or done.failed:
            told |= {review.where: f"nothing was applied: {done.failed}"} if done.failed else dict(done.conflicts)
        missing = missing or bool(done.refused or done.conflicts or done.failed)
        conflicts = tuple(path for path, _why in done.conflicts)
        return cls(done.applied, tuple(sorted(told.items())), done.merged, conflicts, missing)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        refused = [{"path": path, "why": why} for path, why in self.not_applied]
        told = {"applied": list(self.applied), "not_applied": refused}
        return {**told, "merged": list(self.merged), "conflicts": list(self.conflicts)}


def tell_decided(decided: Decided, work: Work | None, *, quiet: bool) -> None:
    """What came back, and how the rest can be had."""
    data = sum(".git" in path.split("/") for path in decided.applied)
    files = [path for path in decided.applied if ".git" not in path.split("/")]
    lines = []
    if not quiet:
        for path in files[:_MOST_LISTED]:
            note = " (merged with your own changes)" if path in decided.merged else ""
            lines.append(f"belljar: applied: {visible(path)}{note}")
        if len(files) > _MOST_LISTED:
            lines.append(f"belljar: applied: {len(files) - _MOST_LISTED:,} more")
    if data and not quiet:
        lines.append(f"belljar: applied: commits and branches of git ({data} files)")
    lines += [f"belljar: not applied: {visible(path)}: {visible(why)}" for path, why in decided.not_applied]
    if decided.conflicts:
        lines.append("belljar: nothing was applied, since not all of it can be")
    if work is not None:
        lines += _told(work, decided)
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def _told(work: Work, decided: Decided) -> list[str]:
    """Return where the work is, unless nothing of it is left to decide about."""
    state = work.state()["state"]
    if state == "applied" and not decided.not_applied:
        return []
    what = "the rest is kept" if decided.applied else "nothing was applied; the work is kept"
    skip = " --skip-conflicts" if decided.conflicts else ""
    shows = f"`belljar review {work.run}` shows it"
    brings = f"`belljar apply {work.run}{skip}` brings it in"
    return [f"belljar: {what}: {shows}, {brings}, `belljar discard {work.run}` removes it"]


def ask(review: Review) -> Decided:
    """Ask the person at the terminal. Who says nothing more (end of file) applies nothing more."""
    while True:
        answer = _answer("belljar: apply the changes? [a]ll, [n]one, [f]ile by file, show the [d]iff: ")
        if answer.startswith("d"):
            _show(review.diff())
        elif answer.startswith("a"):
            protected = _ask_protected(review)
            return Decided.of(review, None, git=True, protected=protected, ignored=_ask_ignored(review))
        elif answer.startswith("f"):
            files = [change.path for change in review.files if _yes(review, change)]
            git = bool(review.git_count) and _is_yes(
                f"belljar: commits and branches of git ({review.git_count} files)?"
            )
            protected = _ask_protected(review)
            return Decided.of(review, files, git=git, protected=protected, ignored=_ask_ignored(review))
        elif answer.startswith("n"):
            return Decided()


def _ask_protected(review: Review) -> list[str]:
    """A yes of its own for each file that makes a tool on this host do something; `q` is a no to the rest."""
    chosen = []
    for position, change in enumerate(review.protected):
        left = len(review.protected) - position
        more = f", or q for none of the {left} that are left" if position and left > 1 else ""
        answer = _asked(review, change, more)
        if answer.startswith("q"):
            break
        if answer.startswith("y"):
            chosen.append(change.path)
    return chosen


def _ask_ignored(review: Review) -> bool:
    """Ask separately about files that git ignores, because `git diff` does not show them afterwards."""
    if not review.ignored:
        return False
    names = review.ignored_groups
    sys.stderr.write("belljar: git ignores these, so that `git diff` does not show them:\n")
    sys.stderr.write("".join(f"  {visible(name)}\n" for name in names[:_MOST_LISTED]))
    if len(names) > _MOST_LISTED:
        sys.stderr.write(f"  and {len(names) - _MOST_LISTED} more\n")
    while (answer := _answer("belljar: apply them? [y/N], show the [d]iff: ")).startswith("d"):
        _show(review.diff({change.path for change in review.ignored}))
    return answer.startswith("y")


def _show(diff: str) -> None:
    sys.stderr.flush()
    show(coloured(diff, colour=supports_colour(1)))


def _yes(review: Review, change: Change) -> bool:
    return _asked(review, change).startswith("y")


def _asked(review: Review, change: Change, more: str = "") -> str:
    sys.stderr.write(coloured(review.diff({change.path}), colour=supports_colour(2)))
    why = f" ({visible(change.refusal)})" if change.protected else ""
    return _answer(f"belljar: {change.kind} {visible(change.path)}{why}: apply? [y/N{more}] ")


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
