"""`belljar kill`: end a run of any belljar process of this user."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.sandbox.record.remote import StoppedRuns


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.record.remote import kill

    words = parsed.all_words()
    if parsed.flag("--all") == bool(words):
        raise UsageError("which run?", hint="belljar kill RUN, or belljar kill --all; `belljar ps` lists them")
    reason = f"belljar kill: {parsed.text('--reason') or 'no reason was given'}"
    stopped = [kill(name, reason) for name in (["*"] if parsed.flag("--all") else _chosen(words))]
    ended = [name for one in stopped for name in one.ended]
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        remaining = [name for one in stopped for name in one.remaining]
        recorded = not any(one.unrecorded for one in stopped)
        print_json({"killed": ended, "remaining": remaining, "recorded": recorded})
    else:
        sys.stdout.write("".join(f"{name}\n" for name in ended))
        if not any(one.ended or one.remaining for one in stopped):
            sys.stderr.write("belljar: nothing runs\n")
    return max(map(tell_problems, stopped))


def _chosen(words: list[str]) -> list[str]:
    """The runs that these words name. Raises UsageError before any is ended."""
    from belljar.sandbox.record.remote import asked

    now = asked()
    names = [str(one["run"]) for one in now.runs]
    chosen = []
    for word in words:
        fits = [name for name in names if name == word] or [name for name in names if _may_be_called(name, word)]
        if len(fits) > 1:
            from belljar.audit.store import several

            raise several(word, fits)
        if not fits:
            pids = ", ".join(map(str, now.silent))
            hint = f"process {pids} does not answer: belljar kill --all ends what it runs" if pids else ""
            raise UsageError(f"{word}: no run of that name is in progress", hint=hint or "`belljar ps` lists them")
        chosen.append(fits[0])
    return chosen


def _may_be_called(name: str, word: str) -> bool:
    return bool(word) and (name.startswith(word) or name.endswith(word))


def tell_problems(stopped: StoppedRuns) -> int:
    """What did not go as it should, loudly; 1 if something did not."""
    if stopped.remaining:
        names = ", ".join(stopped.remaining)
        sys.stderr.write(f"belljar: told to end, and still there after some seconds: {names}\n")
    if stopped.unrecorded:
        sys.stderr.write(f"belljar: this is not in the audit log: {stopped.unrecorded}\n")
    return 1 if stopped.remaining or stopped.unrecorded else 0


COMMAND = CliCommand(
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
are gone. With --all, a process that does not answer is killed itself, and its jars with it. Runs are ended also while
the audit log can't be written; that is told, and the exit code is 1. So it is if one has not ended after some seconds.
""",
    examples=(("kill 01a1e4e2ffbe-8c01c265", "one run"), ("kill --all --reason 'on fire'", "all of them")),
)
