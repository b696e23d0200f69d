"""`belljar quarantine`: have a run stand still, take all evidence of it, and kill it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError

_THEN = {"--kill": "kill", "--keep-frozen": "keep", "--resume": "resume"}
_WORDS = {
    "kill": "it is killed",
    "keep": "it stands still until `belljar kill {run}`, or another quarantine",
    "resume": "it goes on",
}


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli.terminal.progress import waiting

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    chosen = [then for option, then in _THEN.items() if parsed.flag(option)]
    if len(chosen) > 1:
        raise UsageError("--kill, --keep-frozen and --resume exclude each other")
    output = parsed.text("--output")
    if output is not None and os.path.lexists(output):
        raise UsageError(f"{output} is there already", hint="name another file")
    with waiting(f"quarantine of {name}", "taking evidence"):
        done = _take(name, parsed.text("--reason") or "no reason was given", chosen[0] if chosen else "kill")
    if output is not None:
        done["path"] = _move(done["path"], os.path.abspath(output), lambda: _tell_moved(done, output))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(done)
    else:
        sys.stdout.write(f"{done['path']}\n")
        _tell(done)
    if done["unrecorded"]:
        sys.stderr.write(f"belljar: this is not in the audit log: {visible(done['unrecorded'])}\n")
    return 1 if done["unrecorded"] else 0


def _take(name: str, reason: str, then: str) -> dict[str, Any]:
    from belljar.sandbox.incident.quarantine import take_ended
    from belljar.sandbox.record.remote import await_end, one_running, order

    if (found := one_running(name)) is None:
        ended = take_ended(name, reason=reason)
        return {**{key: getattr(ended, key) for key in ended.__dataclass_fields__}, "then": "ended"}
    done = order("quarantine", found, reason=reason, then=then)
    if then == "kill" and await_end({found: 0}):
        sys.stderr.write(f"belljar: {found} was told to end, and has not ended yet\n")
    return {**done, "then": then}


def _tell_moved(done: dict[str, Any], output: str) -> None:
    """It is at both places, and the log says which is the one to look at."""
    from belljar.audit.log import record

    if not done["unrecorded"]:
        record(
            "quarantine_moved",
            run=done["run"],
            path=os.path.abspath(output),
            was=done["path"],
            sha256=done["sha256"],
        )


def _move(path: str, target: str, tell: Callable[[], None] = lambda: None) -> str:
    """To another place, closed to everyone else as it was; `tell` is called while it is at both."""
    try:
        descriptor = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file, open(path, "rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
            tell()
        except BaseException:
            os.unlink(target)  # half of it
            raise
    except OSError as error:
        raise UsageError(f"{target} can't be written: {error.strerror}", hint=f"the bundle is at {path}") from error
    os.unlink(path)
    return target


def _tell(done: dict[str, Any]) -> None:
    if done["then"] == "ended":
        lines = [f"{done['run']} has ended: this is what was stored of it"]
    else:
        how = f"stood still, by {done['frozen']}" if done["frozen"] else "did not stand still"
        lines = [f"{done['run']} {how}", _WORDS[done["then"]].format(run=done["run"])]
    lines += [f"not in it: {what}: {why}" for what, why in done["missing"].items()]
    sys.stderr.write("".join(f"belljar: {visible(line)}\n" for line in lines))


COMMAND = CliCommand(
    "quarantine",
    "Have a run stand still, take all evidence of it, and kill it.",
    usage="quarantine [OPTIONS] RUN",
    run=run,
    options=(
        Option("--reason", "TEXT", "why, for the audit log, the bundle, and whoever waits for the run"),
        Option("--output", "FILE", "where to put the bundle (default: `quarantine` in the state directory)"),
        Option("--kill", "", "then kill the run; this is what is done if nothing else is said"),
        Option("--keep-frozen", "", "then leave it as it stands"),
        Option("--resume", "", "then let it go on"),
        JSON,
    ),
    details="""
The run, in whichever belljar process, is frozen: by the control group's freezer, by the engine's pause, or where there
is neither by SIGSTOP to each of its processes. Its clock stands still, too. The bundle is one file that only its owner
can read: audit records, policy, plan, code, input, output, files, egress record, environment, versions, and a
checksum of each. Prints its path. Of a run that has ended there is what was stored. RUN may be a session, or the
beginning or the end of a name, if no other has the same.
""",
    examples=(
        ("quarantine 01a1e4e2ffbe-8c01c265 --reason 'reads keys'", "freeze, take evidence, kill"),
        ("quarantine 01a1e4e2ffbe-8c01c265 --resume", "only take evidence"),
        ("quarantine open BUNDLE", "look at it"),
    ),
)
