"""`belljar snapshot`: keep the files of a run or session, from another process than the one that has it."""

from __future__ import annotations

import sys
from typing import Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli.terminal.progress import waiting
    from belljar.policy.keys.units import counted, show_size
    from belljar.sandbox.files.snapshots import path_of

    (target,) = expect_words(COMMAND, parsed, 1, 1)
    if (name := parsed.text("--name")) is not None:
        path_of(name)  # or say what is wrong with it before anything stands still
    with waiting(f"snapshot of {target}", "reading its files"):
        taken = _take(target, name)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(taken)
        return 0
    sys.stdout.write(f"{taken['id']}\n")
    files = counted(int(taken["files"]), "file")
    sys.stderr.write(f"belljar: {files}, {show_size(int(taken['size']))}: {taken['path']}\n")
    return 0


def _take(target: str, name: str | None) -> dict[str, Any]:
    from belljar.sandbox.record.remote import one_running, order, sessions

    if (found := one_running(target)) is not None:
        return order("snapshot", found, name=name)
    if target in sessions():
        return order("snapshot", target, name=name)
    raise _why_not(target)


def _why_not(target: str) -> UsageError:
    import os

    from belljar.audit.store import RunStore
    from belljar.sandbox.session.open_sessions import kept_path

    if target.replace("-", "").isalnum() and os.path.exists(path := kept_path(target)):
        return UsageError(
            f"the session {target} was ended for being idle or old, and its files are kept for some time",
            hint=f"belljar restore {path} DIR",
        )
    with RunStore() as store:
        row = store.run(target)
    if row is None:
        return UsageError(f"there is no run or session {target!r}", hint="`belljar ps` lists what is in progress")
    return UsageError(
        f"{row['run']} has ended, and its files are gone with its jar",
        hint="keep what a run makes: belljar run --artifacts DIR; or use a session, and its snapshots",
    )


COMMAND = CliCommand(
    "snapshot",
    "Keep the files of a run or session, as they are now.",
    usage="snapshot [OPTIONS] RUN|SESSION",
    run=run,
    options=(Option("--name", "NAME", "what to call it: letters, digits, - and _ (default: a new name)"), JSON),
    details="""
The process that has the run reads its workspace; the code stands still meanwhile, so that it is the files of one
moment. Of a copy-on-write workspace a snapshot holds the changes. Prints the snapshot's name. It stays in the state
directory until it is removed. RUN may be the beginning or the end of a name, if no other has the same.
""",
    examples=(
        ("snapshot 01a1e4e2ffbe-8c01c265 --name before", "keep them as `before`"),
        ("diff before after", "what differs between two"),
    ),
)
