"""`belljar snapshot rm`: remove snapshots."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words

_MOST = 1000


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.files.snapshots import opened, path_of

    names = expect_words(COMMAND, parsed, 1, _MOST)
    chosen = [opened(path_of(name)) for name in names]  # all of them are there, or none is removed
    for one in chosen:
        one.remove()
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"removed": names})
    else:
        sys.stdout.write("".join(f"{name}\n" for name in names))
    return 0


COMMAND = CliCommand(
    "snapshot rm",
    "Remove snapshots.",
    usage="snapshot rm [OPTIONS] NAME…",
    run=run,
    options=(JSON,),
    examples=(("snapshot rm before after", "remove two"),),
)
