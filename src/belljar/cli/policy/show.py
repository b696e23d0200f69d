"""`belljar policy show`: what a policy comes to, with all its layers."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON, policy_name
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible_lines
from belljar.cli.terminal.style import is_terminal


def run(parsed: Parsed) -> int:
    """Resolve it and print it."""
    from belljar.policy.load.resolve import resolve

    words = expect_words(COMMAND, parsed, 0, 1)
    policy = resolve(words[0] if words else policy_name(parsed), overrides=parsed.texts("--set"))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json
        from belljar.policy.mapping import to_mapping

        origins = {key: str(origin) for key, origin in policy.origins.items()}
        print_json({"digest": policy.digest, "policy": to_mapping(policy), "origins": origins})
    else:
        from belljar.policy.show import to_yaml

        text = to_yaml(policy, origins=not parsed.flag("--plain"))
        sys.stdout.write(visible_lines(text) if is_terminal(1) else text)
    return 0


COMMAND = CliCommand(
    "policy show",
    "Show what a policy comes to, and where each value is from.",
    usage="policy show [OPTIONS] [FILE|PRESET]",
    run=run,
    options=(
        Option("--set", "KEY=VALUE", "show it with this change; repeatable", repeats=True),
        Option("--plain", "", "without the comments that say where each value is from"),
        JSON,
    ),
    details="""
Prints one YAML file that stands alone: presets, extended files and changes merged, and lowered to the managed policy
of this host. Without a name: $BELLJAR_POLICY, or the preset aicode.
""",
    examples=(
        ("policy show", "what holds when nothing is said"),
        ("policy show --plain strict > sandbox.policy.yaml", "a preset as a file of your own"),
    ),
)
