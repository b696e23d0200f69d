"""`belljar apply`: kept work of an agent's run, into its project."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.cli.agent.approval import Moves
    from belljar.sandbox.kept.applying import ApplyOutcome
    from belljar.sandbox.kept.store import KeptWork
    from belljar.sandbox.repository.incoming import Incoming, Moved

_NOT_ALL_APPLIED = 3


def run(parsed: Parsed) -> int:
    """Do it. 3 if something that was asked for was not applied."""
    from belljar.cli.terminal.stopping import ignore_further
    from belljar.sandbox.kept.applying import apply
    from belljar.sandbox.kept.store import find
    from belljar.sandbox.repository.kept_moves import load

    name, *paths = parsed.all_words() or [""]
    if not name:
        raise UsageError("which run?", hint="belljar apply RUN; `belljar review` lists them")
    work = find(name)
    commits = load(work.path, work.project, work.run)
    moves = _wanted_moves(commits, parsed, some=bool(paths))
    ignore_further()  # half of the changes would be worse than either
    done = apply(
        work,
        [_inside(work, path) for path in paths] or None,
        protected=None if parsed.flag("--apply-protected") else (),
        ignored=parsed.flag("--apply-ignored"),
        skip_conflicts=parsed.flag("--skip-conflicts"),
    )
    moved = None if moves is None else _move(work, commits, done, moves)
    ignored = {path for path, row in work.rows.items() if row.change.ignored}
    refused = [(path, why) for path, why in done.refused if paths or path not in ignored]
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        sides = {
            name: [{"path": path, "why": why} for path, why in found]
            for name, found in (("conflicts", done.conflicts), ("not_applied", done.refused))
        }
        told = {"run": work.run, "project": work.project, "state": work.state()["state"]}
        branches = {
            "moved": list(moved.moved) if moved else [],
            "not_moved": [{"ref": name, "why": why} for name, why in moved.left] if moved else [],
        }
        files = {"applied": list(done.applied), "merged": list(done.merged), **sides, "failed": done.failed}
        print_json({**told, **files, **branches})
    else:
        _tell(work, done, left_ignored=len(done.refused) - len(refused), refused=refused)
        _tell_branches(work, commits, moved)
    return _NOT_ALL_APPLIED if done.conflicts or done.failed or refused or (moved and moved.left) else 0


def _wanted_moves(commits: Incoming, parsed: Parsed, *, some: bool) -> Moves | None:
    """Which refs move: as the option says, or the person at the terminal; None if nobody says so."""
    from belljar.cli.agent.approval import Moves, ask_moves
    from belljar.cli.terminal.style import is_terminal

    if parsed.flag("--branches"):
        return Moves(protected=parsed.flag("--apply-protected"))
    if commits.moves and not some and is_terminal(0) and is_terminal(2) and not parsed.flag("--json"):
        return ask_moves(commits, each=True)
    return None


def _move(work: KeptWork, commits: Incoming, done: ApplyOutcome, moves: Moves) -> Moved:
    """Move refs, unless the files could not be applied. A ref whose commits change a file that did not come stays."""
    from belljar.sandbox.repository.incoming import Moved

    if done.failed or done.conflicts:
        why = "the files were not applied" if done.failed or not done.applied else "not all files were applied"
        return Moved((), tuple((move.short, why) for move in commits.moves if move.may_move))
    applied = {*work.state()["applied"], *done.applied}
    shown = [row.change for row in work.rows.values()]
    held = {one.path for one in shown if one.what != "directory" or one.kind == "deleted" or one.refusal} - applied
    return commits.move(moves.wanted, held=held, protected=moves.protected, although=moves.although)


def _tell_branches(work: KeptWork, commits: Incoming, moved: Moved | None) -> None:
    told: set[str] = set()
    if moved is not None:
        told = {*moved.moved, *(name for name, _why in moved.left)}
        sys.stdout.write("".join(f"moved: {visible(name)}\n" for name in moved.moved))
        sys.stderr.write("".join(f"belljar: not moved: {visible(name)}: {visible(why)}\n" for name, why in moved.left))
    lines = commits.lines(besides=told)
    sys.stderr.write("".join(f"belljar: kept: {visible(line)}\n" for line in lines))
    if lines and moved is None:
        sys.stderr.write(f"hint: `belljar apply {work.run} --branches` moves your branches to the agent's commits\n")


def _inside(work: KeptWork, path: str) -> str:
    """A path as the work has it: relative to the project, or as a person names it from where they are."""
    path = path.rstrip("/")
    if path in work.rows or any(one.startswith(f"{path}/") for one in work.rows):
        return path
    relative = os.path.relpath(os.path.join(os.getcwd(), path), work.project)
    return path if relative.startswith("..") else relative


def _tell(work: KeptWork, done: ApplyOutcome, *, left_ignored: int, refused: list[tuple[str, str]]) -> None:
    for path in done.applied:
        note = " (merged with your own changes)" if path in done.merged else ""
        sys.stdout.write(f"{visible(path)}{note}\n")
    lines = [f"not applied: {visible(path)}: {visible(why)}" for path, why in refused]
    lines += [f"conflict: {visible(path)}: {visible(why)}" for path, why in done.conflicts]
    if left_ignored:
        lines.append(f"{left_ignored} that git ignores were left out: --apply-ignored brings them in")
    if done.failed:
        lines.append(f"nothing was applied: {visible(done.failed)}")
    elif done.conflicts and not done.applied:
        lines.append("nothing was applied, since not all of it can be")
    sys.stderr.write("".join(f"belljar: {line}\n" for line in lines))
    if done.conflicts:
        rest = f"`belljar apply {work.run} --skip-conflicts` brings in the rest"
        sys.stderr.write(f"hint: `belljar review {work.run}` shows what the agent changed; {rest}\n")
    elif any(work.rows[path].change.protected for path, _why in refused if path in work.rows):
        sys.stderr.write("hint: --apply-protected brings in what a tool would act on\n")


COMMAND = CliCommand(
    "apply",
    "Bring kept work of an agent's run into its project.",
    usage="apply [OPTIONS] RUN [PATH…]",
    run=run,
    options=(
        Option("--apply-protected", "", "also what a tool here would act on by itself, as git hooks"),
        Option("--apply-ignored", "", "also what git ignores, which `git diff` does not show"),
        Option("--branches", "", "also move branches and tags to the commits of the run"),
        Option("--skip-conflicts", "", "apply the rest if something can't be merged"),
        JSON,
    ),
    details="""
RUN may be the beginning or the end of its name; PATH is a file of the project, or a directory with all that is in it.
Everything is applied, or nothing: on an error, all files are put back as they were. What you changed since the run
began is merged with the agent's change. If that is not possible, nothing is applied, unless --skip-conflicts says
otherwise. What needs another word (protected and ignored files) is left out.

Branches and tags move as at the end of a run: --branches moves those that nothing speaks against, and with
--apply-protected also those whose commits hold protected files. At a terminal, and without PATH, you are asked about
each. A branch stays if its commits change a file that did not come back, or if you moved it meanwhile.
Prints the paths that were applied, and the refs that moved. The exit code is 3 if something was not.
""",
    examples=(
        ("apply 01a1e4e2ffbe-8c01c265", "all that a run did"),
        ("apply 8c01c265 --branches", "with its commits"),
        ("apply 8c01c265 src tests/test_sums.py", "some of it"),
    ),
)
