"""`belljar doctor`: what works on this host, what that means, and what to type."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON, policy_name
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.cli.run.host_checks import blocking, host_checks
from belljar.cli.terminal.progress import waiting
from belljar.cli.terminal.safe_text import visible
from belljar.cli.terminal.style import BOLD, paint, supports_colour
from belljar.errors import PrerequisiteError

if TYPE_CHECKING:
    from belljar.backends.contract import Availability, Check
    from belljar.policy.models import Policy
    from belljar.sandbox.run.backend_choice import Choice

NOTHING_WORKS = 1


def run(parsed: Parsed) -> int:
    """Look, and tell; 1 if nothing would run."""
    from belljar.policy.load.resolve import resolve
    from belljar.sandbox.run.backend_choice import all_availability
    from belljar.state import state_directory

    state = state_directory()
    policy = resolve(policy_name(parsed))
    with waiting("doctor", "trying the backends") as progress:
        backends = all_availability(state=state, image=policy.container.image)
        progress("looking at the host")
        checks = host_checks(policy, state)
        choice = _choose(policy, state)
    stopped = blocking(checks)
    if stopped is not None and not isinstance(choice, PrerequisiteError):
        choice = PrerequisiteError(f"{stopped.name}: {stopped.found}", hint=stopped.hint)
    if parsed.flag("--json"):
        _print_json(backends, checks, choice)
    else:
        sys.stdout.write(describe(backends, checks, choice, colour=supports_colour(1)))
    return NOTHING_WORKS if isinstance(choice, PrerequisiteError) else 0


def _choose(policy: Policy, state: str) -> Choice | PrerequisiteError:
    from belljar.sandbox.run.backend_choice import detect

    try:
        return detect(policy, state=state)
    except PrerequisiteError as error:
        return error


def _print_json(backends: list[Availability], checks: list[Check], choice: Choice | PrerequisiteError) -> None:
    from belljar.cli.terminal.document import print_json

    works = not isinstance(choice, PrerequisiteError)
    chosen: object = choice if works else {"backend": None, "reason": str(choice), "rejected": []}
    print_json({"works": works, "choice": chosen, "backends": backends, "host": checks})


def describe(
    backends: list[Availability], checks: list[Check], choice: Choice | PrerequisiteError, *, colour: bool = False
) -> str:
    """Return everything that was found as text."""
    told = [found for found in backends if found.available or found.checks or found.hint]
    parts = [_backend(found, colour=colour) for found in told]
    parts += _others([found for found in backends if found not in told])
    parts.append(paint("host", BOLD, on=colour) + "\n" + "".join(map(_check, checks)))
    return "\n".join(parts) + "\n" + _verdict(choice)


def _others(backends: list[Availability]) -> list[str]:
    """Those of which there is nothing to say but one reason, a line for each reason."""
    reasons = dict.fromkeys(found.reason for found in backends)
    names = {reason: ", ".join(found.backend for found in backends if found.reason == reason) for reason in reasons}
    return [f"{listed}: {visible(reason)}\n" for reason, listed in names.items()]


def _backend(found: Availability, *, colour: bool) -> str:
    head = f"{paint(found.backend, BOLD, on=colour)}: {'works' if found.available else 'does not work'}"
    text = f"{head}: {visible(found.reason)}\n" + "".join(map(_check, found.checks))
    return text + (f"  type:  {visible(found.hint)}\n" if found.hint else "")


def _check(check: Check) -> str:
    text = f"  {'ok' if check.ok else 'no':<5}  {check.name}: {visible(check.found)}\n"
    text += f"         {visible(check.meaning)}\n" if check.meaning else ""
    return text + (f"         type: {visible(check.hint)}\n" if check.hint else "")


def _verdict(choice: Choice | PrerequisiteError) -> str:
    if isinstance(choice, PrerequisiteError):
        return f"`belljar run` would not run anything: {visible(choice.message)}\n\nhint: {visible(choice.hint)}\n"
    return f"`belljar run` uses {choice.backend}: {visible(choice.reason)}\n"


COMMAND = CliCommand(
    "doctor",
    "Say what works on this host, what does not, and what to type about it.",
    usage="doctor [OPTIONS]",
    run=run,
    options=(Option("--policy", "FILE|PRESET", "say which backend this policy would get"), JSON),
    details="""
Every backend is tried for real. Exit code: 0 if `belljar run` would run something; 1 if no backend that the policy
allows works, or if the state directory, the managed policy or the kill switch stands in the way.
""",
    examples=(("doctor", "everything"), ("doctor --json", "the same for a program")),
)
