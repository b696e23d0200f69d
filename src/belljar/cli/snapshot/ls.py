"""`belljar snapshot ls`: the snapshots that there are."""

from __future__ import annotations

import sys
import time

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible


def run(parsed: Parsed) -> int:
    """List them."""
    from belljar.policy.keys.units import show_size
    from belljar.sandbox.files.snapshot_files import every_snapshot

    expect_words(COMMAND, parsed, 0, 0)
    found = every_snapshot()
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(found)
        return 0
    from belljar.cli.terminal.table import aligned

    rows = [
        (
            visible(one.id),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(one.created)),
            str(one.files),
            show_size(one.size),
            visible(one.base or ""),
        )
        for one in found
    ]
    if rows:
        sys.stdout.write(aligned([("SNAPSHOT", "MADE", "FILES", "SIZE", "CHANGES OF"), *rows]))
    else:
        sys.stderr.write("belljar: there are none yet; this makes one: belljar snapshot RUN\n")
    return 0


COMMAND = CliCommand(
    "snapshot ls",
    "List the snapshots.",
    usage="snapshot ls [OPTIONS]",
    run=run,
    options=(JSON,),
    examples=(("snapshot ls", "the oldest first"), ("snapshot ls --json", "for a program")),
)
