"""`belljar kill`: end a run of any belljar process of this user."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import Command, Option, Parsed
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.remote import kill, running

    words = parsed.all_words()
    if parsed.flag("--all") == bool(words):
        raise UsageError("which run?", hint="belljar kill RUN, or belljar kill --all; `belljar ps` lists them")
    reason = f"belljar kill: {parsed.text('--reason') or 'no reason was given'}"
    if parsed.flag("--all"):
        killed = kill("*", reason)
    else:
        names = [str(one["run"]) for one in running()]
        killed = []
        for word in words:
            fits = [
                name
                for name in names
                if name == word or (len(word) >= 4 and word in (name[: len(word)], name[-len(word) :]))
            ]
            if len(fits) != 1:
                raise UsageError(f"{word}: {'no run' if not fits else 'more than one run'} of that name is in progress")
            killed += kill(fits[0], reason)
    if parsed.flag("--json"):
        from belljar.cli.document import print_json

        print_json({"killed": killed})
        return 0
    for name in killed:
        sys.stdout.write(f"{name}\n")
    if not killed:
        sys.stderr.write("belljar: nothing runs\n")
    return 0


COMMAND = Command(
    "kill",
    "End a run of any belljar process of this user.",
    usage="kill [OPTIONS] RUN…|--all",
    run=run,
    options=(
        Option("--all", "", "every run"),
        Option("--reason", "TEXT", "why, for the audit log and for whoever waits for the run"),
        JSON,
    ),
    details="""
RUN may be the beginning or the end of its name, if no other has the same. Prints the runs that were ended, when they
are gone. With --all, a process that does not answer is killed itself, and its jars with it.
""",
    examples=(("kill 01a1e4e2ffbe-8c01c265", "one run"), ("kill --all --reason 'on fire'", "all of them")),
)
