"""The end of an agent's run at a terminal: a person says which of its changes come back."""

from __future__ import annotations

import select
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from belljar.cli.agent.work_listing import coloured
from belljar.cli.terminal.pager import show
from belljar.cli.terminal.safe_text import visible
from belljar.cli.terminal.stopping import ignore_further
from belljar.cli.terminal.style import supports_colour
from belljar.coding_agents.review import Review
from belljar.sandbox.files.changes import Change
from belljar.sandbox.files.trusted_names import in_bytecode
from belljar.sandbox.kept.store import KeptWork
from belljar.sandbox.repository.incoming import Incoming, Moved

_MOST_LISTED = 50
_LOOK_UP_SECONDS = 0.25


NOT_ALL_APPLIED = 3
"""The exit code if the agent's is 0, and something that was asked for did not come back."""


@dataclass(frozen=True)
class Moves:
    """Which refs move: all of them unless names are given."""

    wanted: tuple[str, ...] | None = None
    protected: bool = False
    although: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decided:
    """What came back, and what could not."""

    applied: tuple[str, ...] = ()
    not_applied: tuple[tuple[str, str], ...] = ()
    moved: tuple[str, ...] = ()
    not_moved: tuple[tuple[str, str], ...] = ()
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
        protected: Collection[str],
        ignored: bool,
        moves: Moves,
        all_of_it: bool = False,
    ) -> Decided:
        """Apply, and tell. From here on nothing interrupts it: half of the changes would be worse than either.

        `all_of_it` says that everything was asked for, so that what needs another word counts as missing.
        """
        ignore_further()
        done = review.apply(files, protected=protected, ignored=ignored)
        applied = set(done.applied)
        left = [change for change in (*review.protected, *review.refused) if change.path not in applied]
        told = {change.path: change.refusal for change in left}
        missing = all_of_it and any(not in_bytecode(path) and ".git" not in path.split("/") for path in told)
        if review.ignored and not ignored:
            told |= dict.fromkeys(review.ignored_groups, review.ignored[0].refusal)
        told |= dict(done.refused)
        branches = Moved()
        if done.failed:
            told |= {review.where: f"nothing was applied: {done.failed}"}
        elif done.conflicts:
            told |= dict(done.conflicts)
        else:
            branches = review.move(applied, moves.wanted, protected=moves.protected, although=moves.although)
        missing = missing or bool(done.refused or done.conflicts or done.failed or branches.left)
        conflicts = tuple(path for path, _why in done.conflicts)
        refused = tuple(sorted(told.items()))
        return cls(done.applied, refused, branches.moved, branches.left, done.merged, conflicts, missing)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        refused = [{"path": path, "why": why} for path, why in self.not_applied]
        left = [{"ref": name, "why": why} for name, why in self.not_moved]
        told = {"applied": list(self.applied), "not_applied": refused, "moved": list(self.moved), "not_moved": left}
        return {**told, "merged": list(self.merged), "conflicts": list(self.conflicts)}


def tell_decided(review: Review, decided: Decided, *, quiet: bool) -> None:
    """What came back, and how the rest can be had."""
    lines = []
    if not quiet:
        for path in decided.applied[:_MOST_LISTED]:
            note = " (merged with your own changes)" if path in decided.merged else ""
            lines.append(f"belljar: applied: {visible(path)}{note}")
        if len(decided.applied) > _MOST_LISTED:
            lines.append(f"belljar: applied: {len(decided.applied) - _MOST_LISTED:,} more")
        lines += [f"belljar: moved: {visible(name)}" for name in decided.moved]
    lines += [f"belljar: not applied: {visible(path)}: {visible(why)}" for path, why in decided.not_applied]
    lines += [f"belljar: not moved: {visible(name)}: {visible(why)}" for name, why in decided.not_moved]
    told = {*decided.moved, *(name for name, _why in decided.not_moved)}
    lines += [f"belljar: kept: {visible(line)}" for line in review.commits.lines(besides=told)]
    lines += [f"belljar: {visible(line)}" for line in (*review.commits.notes, *review.commits.problems)]
    if decided.conflicts:
        lines.append("belljar: nothing was applied, since not all of it can be")
    if review.work is not None:
        lines += _told(review.work, decided)
    sys.stderr.write("".join(f"{line}\n" for line in lines))


def _told(work: KeptWork, decided: Decided) -> list[str]:
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
            ignored = _ask_ignored(review)
            return Decided.of(
                review, None, protected=protected, ignored=ignored, moves=ask_moves(review.commits, each=False)
            )
        elif answer.startswith("f"):
            files = [change.path for change in review.files if _yes(review, change)]
            protected = _ask_protected(review)
            ignored = _ask_ignored(review)
            return Decided.of(
                review, files, protected=protected, ignored=ignored, moves=ask_moves(review.commits, each=True)
            )
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


def ask_moves(commits: Incoming, *, each: bool) -> Moves:
    """Ask for each branch and tag; with `each` false only for those that something speaks against."""
    wanted, although = [], []
    for move in commits.moves:
        if not move.may_move:
            continue
        against = commits.against(move)
        if not each and not against:
            wanted.append(move.short)
            continue
        sys.stderr.write("".join(f"  {visible(line)}\n" for line in move.lines()))
        sys.stderr.write("".join(f"  {visible(why)}\n" for why in against))
        while (answer := _answer(f"belljar: move {visible(move.short)}? [y/N], show the [d]iff: ")).startswith("d"):
            _show(commits.diff(move))
        if answer.startswith("y"):
            wanted.append(move.short)
            although.append(move.short)
    return Moves(tuple(wanted), although=tuple(although))


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


def _answer(question: str) -> str:
    """One line, in small letters; `n` at the end of the input."""
    sys.stderr.write(question)
    sys.stderr.flush()
    while not select.select([0], [], [], _LOOK_UP_SECONDS)[0]:
        pass  # a signal that comes just before a read does not end it
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        return "n"
    return line.strip().lower()
