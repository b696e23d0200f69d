"""`belljar discard`: remove kept work."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words

_MOST = 1000


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.kept.store import find
    from belljar.sandbox.repository.incoming import forget

    chosen = [find(name) for name in expect_words(COMMAND, parsed, 1, _MOST)]  # all are there, or none is removed
    for work in chosen:
        work.discard()
        forget(work.project, work.run)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"discarded": [work.run for work in chosen]})
    else:
        sys.stdout.write("".join(f"{work.run}\n" for work in chosen))
    return 0


COMMAND = CliCommand(
    "discard",
    "Remove kept work of an agent's run.",
    usage="discard [OPTIONS] RUN…",
    run=run,
    options=(JSON,),
    details="""
RUN may be the beginning or the end of its name. The files are removed, the refs that keep its commits in the
project's repository (refs/belljar/RUN), and objects of git's that could not be taken in. `belljar review` goes on
listing the run, with the names of what it had changed.
""",
    examples=(("discard 01a1e4e2ffbe-8c01c265", "remove the files of a run"),),
)
