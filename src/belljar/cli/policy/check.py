"""`belljar policy check`: everything that is wrong with a policy, at once."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible
from belljar.errors import PolicyError

WRONG = 1


def run(parsed: Parsed) -> int:
    """Check it; 1 if it is wrong."""
    from belljar.policy.load.resolve import resolve

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    try:
        policy = resolve(name, overrides=parsed.texts("--set"))
    except PolicyError as error:
        return _wrong(name, error, as_json=parsed.flag("--json"))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"policy": name, "ok": True, "digest": policy.digest, "problems": []})
    else:
        sys.stdout.write(f"{visible(name)}: ok, {policy.digest}\n")
    return 0


def _wrong(name: str, error: PolicyError, *, as_json: bool) -> int:
    if as_json:
        from belljar.cli.terminal.document import print_json

        print_json({"policy": name, "ok": False, "digest": None, "problems": list(error.problems), "hint": error.hint})
    else:
        from belljar.cli.faults import tell

        tell(error)
    return WRONG


COMMAND = CliCommand(
    "policy check",
    "Say what is wrong with a policy.",
    usage="policy check [OPTIONS] FILE|PRESET",
    run=run,
    options=(Option("--set", "KEY=VALUE", "check it with this change; repeatable", repeats=True), JSON),
    details="""
Reads the file, all that it extends and the managed policy of this host, and tells every problem with its line and
column. Exit code: 0 if the policy is right, 1 if it is not.
""",
    examples=(("policy check sandbox.policy.yaml", "before you rely on it"),),
)
