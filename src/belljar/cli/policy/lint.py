"""`belljar policy lint`: what a policy allows that its author may not have meant."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JSON, policy_name
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible

if TYPE_CHECKING:
    from belljar.policy.lint import LintFinding

WARNED = 1


def run(parsed: Parsed) -> int:
    """Look through it; 1 if there is a warning."""
    from belljar.policy.lint import lint
    from belljar.policy.load.resolve import resolve

    words = expect_words(COMMAND, parsed, 0, 1)
    findings = lint(resolve(words[0] if words else policy_name(parsed), overrides=parsed.texts("--set")))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(list(findings))
    else:
        sys.stdout.write(describe(findings))
    return WARNED if any(finding.level == "warning" for finding in findings) else 0


def describe(findings: tuple[LintFinding, ...]) -> str:
    """Return two lines for each finding, and one to sum up."""
    if not findings:
        return "Nothing to warn of.\n"
    text = ""
    for finding in findings:
        place = f"{finding.where}: " if finding.where else ""
        text += visible(f"{place}{finding.level}: {finding.key}: {finding.text} [{finding.code}]") + "\n"
        text += visible(f"    hint: {finding.hint}") + "\n" if finding.hint else ""
    warnings = sum(finding.level == "warning" for finding in findings)
    notes = len(findings) - warnings
    return text + f"{warnings} warning{'s' * (warnings != 1)}, {notes} note{'s' * (notes != 1)}\n"


COMMAND = CliCommand(
    "policy lint",
    "Warn of what a policy allows that its author may not have meant.",
    usage="policy lint [OPTIONS] [FILE|PRESET]",
    run=run,
    options=(Option("--set", "KEY=VALUE", "look at it with this change; repeatable", repeats=True), JSON),
    details="""
Warns of hosts through which data can leave (code hosting, object stores, paste sites, model APIs and so on), unless
the rule only reads or binds a credential; of ports that carry anything; of lifted entries of the built-in deny list;
of directories that the code may change and the host later executes; and of secrets in the environment. Without a
name: $BELLJAR_POLICY, or the preset aicode. Exit code: 0 if there is no warning, 1 if there is one.
""",
    examples=(
        ("policy lint sandbox.policy.yaml", "before others use it"),
        ("policy lint --set net.enabled=true --set 'net.allowlist=[github.com]'", "what one change would mean"),
    ),
)
