"""`belljar killswitch`: end everything, and let nothing start."""

from __future__ import annotations

import sys
import time

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import Command, Option, Parsed, expect_words
from belljar.cli.terminal import visible
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    (what,) = expect_words(COMMAND, parsed, 1, 1)
    if what not in ("on", "off", "status"):
        raise UsageError(f"{what!r}: wanted on, off or status")
    return {"on": _on, "off": _off, "status": _status}[what](parsed)


def _on(parsed: Parsed) -> int:
    from belljar.audit import killswitch
    from belljar.audit.log import record
    from belljar.sandbox.remote import kill

    reason = parsed.text("--reason")
    if not reason:
        raise UsageError("why?", hint="belljar killswitch on --reason 'what happened'")
    record("killswitch", on=True, reason=reason)
    killswitch.turn_on(reason)
    killed = kill("*", f"the kill switch is on: {reason}")
    sys.stdout.write(f"on; {len(killed)} run{'' if len(killed) == 1 else 's'} ended\n")
    return 0


def _off(_parsed: Parsed) -> int:
    from belljar.audit import killswitch
    from belljar.audit.log import record

    record("killswitch", on=False)
    was_on = killswitch.turn_off()
    sys.stdout.write("off\n" if was_on else "it was off\n")
    if why := killswitch.why():
        sys.stderr.write(f"belljar: it is still on: {visible(why)}\n")
        return 1
    return 0


def _status(parsed: Parsed) -> int:
    from belljar.audit import killswitch

    why, told = killswitch.why(), killswitch.read()
    if parsed.flag("--json"):
        from belljar.cli.document import print_json

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


COMMAND = Command(
    "killswitch",
    "End every jar of this user, and let none start until it is off.",
    usage="killswitch [OPTIONS] on|off|status",
    run=run,
    options=(Option("--reason", "TEXT", "with `on`: why; whoever tries to run something is told"), JSON),
    details="""
Every belljar process of this user ends what it runs within a second, and refuses to start anything. Other programs can
do the same by making the file `killswitch` in the state directory; or by setting BELLJAR_KILLSWITCH to 1, or to the
path of a file whose existence means that it is on. `status` exits with 1 while it is on.
""",
    examples=(("killswitch on --reason 'a key leaked'", "stop"), ("killswitch off", "go on")),
)
