"""`belljar killswitch`: end everything, and let nothing start."""

from __future__ import annotations

import sys
import time

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError

_ANSWER_SECONDS = 0.4
"""How long a process may take to say that it has ended what it runs, before it is killed: it has a second."""


def run(parsed: Parsed) -> int:
    """Do it."""
    (what,) = expect_words(COMMAND, parsed, 1, 1)
    if what not in ("on", "off", "status"):
        raise UsageError(f"{what!r}: wanted on, off or status")
    return {"on": _on, "off": _off, "status": _status}[what](parsed)


def _on(parsed: Parsed) -> int:
    """The file first, then what runs, then the record: stopping waits for nothing that can be in its way."""
    from belljar.audit import killswitch
    from belljar.cli.runs.kill import tell_problems
    from belljar.sandbox.record.remote import kill

    reason = parsed.text("--reason")
    if not reason:
        raise UsageError("why?", hint="belljar killswitch on --reason 'what happened'")
    problems = _turn_on(reason)
    is_on = bool(killswitch.why())
    told = {"event": "killswitch", "on": is_on, "reason": reason}
    stopped = kill("*", f"the kill switch is on: {reason}", also=[told], answer_seconds=_ANSWER_SECONDS)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        ended = {"ended": stopped.ended, "remaining": stopped.remaining}
        print_json({"on": is_on, "reason": reason, **ended, "recorded": not stopped.unrecorded})
    else:
        count = len(stopped.ended)
        sys.stdout.write(f"{'on' if is_on else 'off'}; {count} run{'' if count == 1 else 's'} ended\n")
    for problem in problems:
        sys.stderr.write(f"belljar: {problem}\n")
    return tell_problems(stopped) or bool(problems)


def _turn_on(reason: str) -> list[str]:
    """What went wrong; what runs is ended all the same."""
    from belljar.audit import killswitch

    try:
        unsaid = killswitch.turn_on(reason)
    except OSError as error:
        return [f"it could not be turned on, so what is started now runs: {error.filename}: {error.strerror}"]
    return [f"it is on, without its reason, which could not be written: {unsaid}"] if unsaid else []


def _off(parsed: Parsed) -> int:
    from belljar.audit import killswitch
    from belljar.audit.log import record

    record("killswitch", on=False)
    was_on = killswitch.turn_off()
    why = killswitch.why()
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"on": bool(why), "was_on": was_on, "reason": why})
    else:
        sys.stdout.write("off\n" if was_on else "it was off\n")
    if why:
        sys.stderr.write(f"belljar: it is still on: {visible(why)}\n")
    return 1 if why else 0


def _status(parsed: Parsed) -> int:
    from belljar.audit import killswitch

    why, told = killswitch.why(), killswitch.read()
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"on": bool(why), "reason": why, "since": told.get("since")})
    elif why:
        since = told.get("since")
        stamp = (
            f" since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}" if isinstance(since, float) else ""
        )
        sys.stdout.write(f"on{stamp}: {visible(why)}\n")
    else:
        sys.stdout.write("off\n")
    return 1 if why else 0


COMMAND = CliCommand(
    "killswitch",
    "End every jar of this user, and let none start until it is off.",
    usage="killswitch [OPTIONS] on|off|status",
    run=run,
    options=(Option("--reason", "TEXT", "with `on`: why; whoever tries to run something is told"), JSON),
    details="""
Every belljar process of this user ends what it runs within a second, and refuses to start anything. Other programs can
do the same by making the file `killswitch` in the state directory; or by setting BELLJAR_KILLSWITCH to 1, or to the
path of a file whose existence means that it is on. A process that does not answer is killed, and its jars with it.
`on` waits for nothing: on a full disk, or while the audit log can't be written, it stops everything all the same, says
what is missing, and exits with 1. Processes that use another state directory have a switch of their own. `status` exits
with 1 while it is on.
""",
    examples=(("killswitch on --reason 'a key leaked'", "stop"), ("killswitch off", "go on")),
)
