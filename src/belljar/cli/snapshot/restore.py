"""`belljar restore`: the files of a snapshot, in a directory of the host's."""

from __future__ import annotations

import os
import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible


def run(parsed: Parsed) -> int:
    """Do it. 1 if something was not written."""
    from belljar.audit.log import record
    from belljar.sandbox.files.restoring import restore
    from belljar.sandbox.files.snapshot_files import SnapshotFiles

    name, directory = expect_words(COMMAND, parsed, 2, 2)
    with SnapshotFiles(name) as files:
        record("restore", path=files.path, directory=os.path.abspath(directory))
        done = restore(files, directory, protected=parsed.flag("--protected"))
        base, deleted = files.base, sorted(files.deleted)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        refused = [{"path": path, "why": why} for path, why in done.refused]
        told = {"directory": done.directory, "written": done.written, "refused": refused}
        print_json({**told, "base": base, "deleted": deleted})
    else:
        sys.stdout.write(f"{done.directory}: {done.written} files and directories\n")
        if base is not None:
            sys.stderr.write(f"belljar: they are the changes of {visible(base)}; {len(deleted)} were deleted there\n")
        for path, why in done.refused:
            sys.stderr.write(f"belljar: not written: {visible(path)}: {visible(why)}\n")
        if not parsed.flag("--protected") and any("would act on it" in why for _path, why in done.refused):
            sys.stderr.write("hint: --protected writes what a tool would act on, into another new directory\n")
    return 1 if done.refused else 0


COMMAND = CliCommand(
    "restore",
    "Write the files of a snapshot into a new directory.",
    usage="restore [OPTIONS] NAME DIR",
    run=run,
    options=(Option("--protected", "", "also write what a tool here would act on by itself, as git hooks"), JSON),
    details="""
NAME is a snapshot's name, or the path of its file. DIR is made, or is empty. Nothing is written outside of it, and no
link in it leads out. What a tool of this host would act on by itself (git's settings, editors' tasks, agents'
instructions) is written with --protected only, and Python's bytecode never. What is left out is named, and the exit
code is 1. A session takes a snapshot back itself, inside of its jar: session.restore(NAME), or %restore in belljar
shell.
""",
    examples=(("restore before ./before", "look at the files of a snapshot"),),
)
