"""`belljar review`: the work of agents' runs, as it is kept."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible, visible_lines
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.sandbox.files.changes import Change, Changes
    from belljar.sandbox.kept.store import KeptWork, Summary


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.files.journal import finish_interrupted
    from belljar.sandbox.kept.store import find

    words = expect_words(COMMAND, parsed, 0, 1)
    for directory in finish_interrupted():
        sys.stderr.write(f"belljar: an apply in {visible(directory)} was interrupted, and has been undone\n")
    if not words:
        if parsed.flag("--patch"):
            raise UsageError("which run?", hint="belljar review RUN --patch; `belljar review` lists them")
        return _list(parsed)
    work = find(words[0])
    if parsed.flag("--patch"):
        return _patch(work, parsed)
    return _show(work, parsed)


def _list(parsed: Parsed) -> int:
    from belljar.sandbox.kept.store import kept

    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json([{**_head(work), "changes": work.count} for work in kept()])
        return 0
    from belljar.cli.terminal.table import aligned

    rows = [("RUN", "WHEN", "STATE", "CHANGES", "AGENT", "PROJECT")]
    for work in kept():
        head = _head(work)
        row = (work.run, _when(head["created"]), head["state"], f"{work.files:,}", head["agent"], head["project"])
        rows.append(tuple(visible(str(cell)) for cell in row))  # type: ignore[arg-type]
    if len(rows) == 1:
        sys.stderr.write("belljar: no work of an agent is kept\n")
    else:
        sys.stdout.write(aligned(rows))
    return 0


def _head(work: Summary) -> dict[str, Any]:
    """What is known of kept work, but for the changes."""
    state = work.state()
    told = {name: work.about.get(name, "") for name in ("project", "agent", "command", "created", "outcome", "reason")}
    return {"run": work.run, **told, "state": state["state"], "applied": state["applied"], "why": state["why"]}


def _when(moment: object) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(moment if isinstance(moment, int | float) else 0))


def _show(work: KeptWork, parsed: Parsed) -> int:
    from belljar.cli.agent.work_listing import coloured, listing
    from belljar.cli.terminal.style import supports_colour
    from belljar.sandbox.repository.kept_moves import waiting

    head = {**_head(work), "refs": waiting(work.path)}
    if head["state"] == "discarded" or not os.path.isdir(work.project):
        return _show_names(work, head, parsed)
    from belljar.sandbox.kept.applying import judged

    with judged(work) as changes:
        if parsed.flag("--json"):
            from belljar.cli.terminal.document import print_json

            found = [_plain(work, change) for change in changes]
            print_json({**head, "directory": work.path, "changes": found, "diff": changes.diff()})
            return 0
        colour = supports_colour(1)
        lines = _head_lines(head) + listing(changes, colour=colour, most=1000)
        text = "".join(f"{line}\n" for line in lines)
        diff = "" if parsed.flag("--names") else "\n" + coloured(changes.diff(), colour=colour)
    from belljar.cli.terminal.pager import show

    show(text + diff)
    return 0


def _show_names(work: KeptWork, head: dict[str, Any], parsed: Parsed) -> int:
    """What is left to show where the files, or the project, have gone."""
    changes = [row.change for row in work.rows.values()]
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({**head, "directory": work.path, "changes": [_plain(work, change) for change in changes]})
        return 0
    from belljar.cli.agent.work_listing import listing

    sys.stdout.write("".join(f"{line}\n" for line in (*_head_lines(head), *listing(changes, colour=False))))
    return 0


def _head_lines(head: dict[str, Any]) -> list[str]:
    rows = [("run", head["run"]), ("project", head["project"]), ("agent", " ".join(map(str, head["command"])))]
    rows += [("kept", _when(head["created"])), ("state", head["state"])]
    rows += [("why", head["why"])] if head["why"] else []
    rows += [("commits", name) for name in head["refs"]]
    return [f"{name:<8} {visible(str(value))}" for name, value in rows]


def _plain(work: KeptWork, change: Change) -> dict[str, Any]:
    row = work.rows[change.path]
    told = {name: getattr(change, name) for name in ("path", "kind", "what", "protected", "ignored", "meanwhile")}
    told["mode"] = f"{change.mode:04o}"
    told["why"] = change.refusal
    told["digest"] = row.after.digest if row.after is not None else ""
    told["not_kept"] = row.after.missing if row.after is not None else ""
    return told


def _patch(work: KeptWork, parsed: Parsed) -> int:
    """Write a patch; 1 if something is not in it."""
    from belljar.cli.terminal.style import is_terminal
    from belljar.sandbox.kept.applying import judged
    from belljar.sandbox.kept.patch import Patch

    with judged(work) as changes:
        paths = {change.path for change in changes if _wanted(change, parsed)}
        left = _other(changes, parsed)
    patch = Patch(work, paths)
    sys.stdout.flush()
    at_terminal = is_terminal(1)  # then nothing applies it, and escape sequences in it would act
    for piece in patch:
        shown = visible_lines(piece.decode("utf-8", "surrogateescape")).encode() if at_terminal else piece
        sys.stdout.buffer.write(shown)
    sys.stdout.buffer.flush()
    for path, why in [*left, *patch.left_out.items()]:
        sys.stderr.write(f"belljar: not in the patch: {visible(path)}: {visible(why)}\n")
    return 1 if patch.left_out else 0


def _wanted(change: Change, parsed: Parsed) -> bool:
    if change.protected:
        return parsed.flag("--protected")
    return parsed.flag("--ignored") if change.ignored else not change.refusal


def _other(changes: Changes, parsed: Parsed) -> list[tuple[str, str]]:
    return [(one.path, one.refusal) for one in changes if one.refusal and not one.ignored and not _wanted(one, parsed)]


COMMAND = CliCommand(
    "review",
    "Show the work of an agent's run that is kept, or list all that is.",
    usage="review [OPTIONS] [RUN]",
    run=run,
    options=(
        Option("--patch", "", "write a patch to standard output that `git apply` takes, binary files included"),
        Option("--protected", "", "with --patch: also what a tool here would act on by itself, as git hooks"),
        Option("--ignored", "", "with --patch: also what git ignores"),
        Option("--names", "", "name what changed, and show no content"),
        JSON,
    ),
    details="""
Every run of `belljar claude` and `belljar agent` keeps its work: files with their modes, links and deletions, and what
was there before. RUN may be the beginning or the end of its name. Without RUN all kept work is listed, the newest
first: `pending` (nothing was applied), `partly applied`, `applied`, `discarded`, or `refused` (the run was killed or
quarantined, so that nothing was applied by itself). The last 100 runs are kept, within 8 GiB, until `belljar prune`.
""",
    examples=(
        ("review", "list what is kept"),
        ("review 01a1e4e2ffbe-8c01c265", "what a run did, in a pager"),
        ("review 8c01c265 --patch > work.patch", "a patch of it"),
    ),
)
