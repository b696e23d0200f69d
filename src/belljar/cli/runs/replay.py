"""`belljar replay`: run again what ran, under the same policy, and say what differs."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words
from belljar.cli.terminal.progress import waiting
from belljar.cli.terminal.safe_text import visible


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.run.replay import replay

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    with waiting(name, "running it again"):
        again = replay(name)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(
            {
                "replayed": again.run_id,
                "differences": again.differences,
                "notes": again.notes,
                "result": again.result.to_dict(),
            }
        )
    else:
        sys.stdout.write(f"{again.run_id} ran again as {again.result.run_id}: {again.result.outcome}\n")
        for what, before, after in again.differences:
            sys.stdout.write(f"  {what}: {visible(str(before))} before, {visible(str(after))} now\n")
        if not again.differences:
            sys.stdout.write("  nothing differs\n")
        for note in again.notes:
            sys.stderr.write(f"belljar: {note}\n")
    return 1 if again.differences else 0


COMMAND = CliCommand(
    "replay",
    "Run again what ran, under the same policy, and say what differs.",
    usage="replay [OPTIONS] RUN",
    run=run,
    options=(JSON,),
    details="""
The policy is the one whose text was stored with the run; code, arguments and standard input (up to a megabyte) are
those that were stored; all are checked against the audit log. Compared are the end, what was printed, what was refused
and which files were made. A directory of the host's that the policy mounts is as it is now, and so is what it passes on
from the environment. Files that were written into the workspace are not stored. Sessions are not replayed. Exits with 1
if something differs.
""",
    examples=(("replay 01a1e4e2ffbe-8c01c265", "does it end the same way?"),),
)
