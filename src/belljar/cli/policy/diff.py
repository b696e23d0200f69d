"""`belljar policy diff`: what one policy allows otherwise than another."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible

if TYPE_CHECKING:
    from belljar.policy.show import KeyChange


def run(parsed: Parsed) -> int:
    """Compare two policies."""
    from belljar.policy.load.resolve import resolve
    from belljar.policy.show import diff

    old, new = expect_words(COMMAND, parsed, 2, 2)
    changes = diff(resolve(old), resolve(new))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json([change._asdict() for change in changes])
    else:
        sys.stdout.write(describe(changes))
    return 0


def describe(changes: list[KeyChange]) -> str:
    """Return a line for each key: which way it goes, what it was, what it is."""
    from belljar.cli.terminal.table import aligned
    from belljar.policy.show import flow

    if not changes:
        return "The two allow the same.\n"
    return aligned(
        [
            (change.direction, change.key, visible(f"{_value(flow(change.old))} -> {_value(flow(change.new))}"))
            for change in changes
        ]
    )


def _value(text: str) -> str:
    return "(nothing)" if text == "null" else text


COMMAND = CliCommand(
    "policy diff",
    "Show what one policy allows otherwise than another.",
    usage="policy diff [OPTIONS] OLD NEW",
    run=run,
    options=(JSON,),
    details="""
OLD and NEW are files or presets. Each key that differs is called tighter, looser or changed (neither).
""",
    examples=(
        ("policy diff aicode sandbox.policy.yaml", "what a file changes"),
        ("policy diff strict development", "two presets"),
    ),
)
