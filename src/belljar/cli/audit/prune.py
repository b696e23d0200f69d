"""`belljar prune`: remove what is old."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.progress import waiting
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.retention import prune
    from belljar.coding_agents.home_store import prune as prune_homes
    from belljar.policy.keys.units import counted, show_size, size

    expect_words(COMMAND, parsed, 0, 0)
    older, most = parsed.text("--older"), parsed.text("--max-size")
    if older is None and most is None:
        raise UsageError("what is old?", hint="belljar prune --older 30d, or belljar prune --max-size 1g")
    days = None
    if older is not None:
        number = older.removesuffix("d")
        if not number.isascii() or not number.isdigit():
            raise UsageError(f"--older {older}: wanted days, such as 30d")
        days = float(number)
    limit = None if most is None else size(most)
    if most is not None and limit is None:
        raise UsageError(f"--max-size {most}: wanted a size, such as 500m")
    with waiting("the audit log", "looking whether it is in order, and removing old days"):
        done = prune(older_days=days, most_bytes=limit)
        homes = [] if days is None else prune_homes(days)
    files, total = list(done.files), done.size
    if days is not None:
        import time

        from belljar.sandbox.kept.store import forget_before

        kept, more = forget_before(time.time() - days * 86_400)
        files, total = files + kept, total + more
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"files": files, "bytes": total, "homes": homes})
        return 0
    sys.stdout.write(f"removed {counted(len(files), 'file')}, {show_size(total)}\n")
    sys.stdout.write(f"forgot what agents kept of {counted(len(homes), 'project')}\n" if homes else "")
    return 0


COMMAND = CliCommand(
    "prune",
    "Remove old days of the audit log, with the code and output of their runs.",
    usage="prune [OPTIONS]",
    run=run,
    options=(
        Option("--older", "DAYS", "days before this many, such as 30d"),
        Option("--max-size", "SIZE", "the oldest days, until what is left is no larger"),
        JSON,
    ),
    details="""
The log is verified first, and what is left can still be: it begins where the last day that was removed ended. The day
that is being written stays. If --max-size needs more room than that, what runs printed goes, the oldest first.

`ps --all` and `inspect` know nothing of those days any more, and policies and plans that no record names go as well.
What `metrics` had counted stays counted. With --older, the kept work of agents' runs (`belljar review`) that is as old
goes as well, applied or not, and what an agent kept of its calls in a project, if no call used it for so long.
""",
    examples=(("prune --older 30d", "keep a month"), ("prune --max-size 1g", "keep a gigabyte")),
)
