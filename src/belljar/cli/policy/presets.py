"""`belljar presets`: the policies that come with belljar."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words

if TYPE_CHECKING:
    from belljar.policy.models import Policy

_HEAD = ("preset", "memory", "cpu", "time", "processes", "network", "backend", "for")


def run(parsed: Parsed) -> int:
    """List them."""
    from belljar.policy.load.resolve import resolve
    from belljar.policy.presets import PRESETS

    expect_words(COMMAND, parsed, 0, 0)
    found = {name: (summary, resolve(name, managed=None)) for name, summary in PRESETS.items()}
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json([_document(name, summary, policy) for name, (summary, policy) in found.items()])
    else:
        from belljar.cli.terminal.table import aligned

        sys.stdout.write(aligned([_HEAD, *(_row(name, *entry) for name, entry in found.items())]))
    return 0


def _document(name: str, summary: str, policy: Policy) -> dict[str, Any]:
    from belljar.policy.mapping import to_mapping

    return {"name": name, "summary": summary, "digest": policy.digest, "policy": to_mapping(policy)}


def _row(name: str, summary: str, policy: Policy) -> tuple[str, ...]:
    from belljar.policy.keys.units import show_size, show_time

    proc = policy.proc
    limits = (show_size(proc.mem_bytes), f"{proc.cpu_quota:g}", show_time(round(proc.timeout_seconds * 1000)))
    return (name, *limits, str(proc.pids), _network(policy), policy.backend, summary)


def _network(policy: Policy) -> str:
    return (", ".join(rule.host for rule in policy.net.allowlist) or "no host yet") if policy.net.enabled else "off"


COMMAND = CliCommand(
    "presets",
    "List the policies that come with belljar.",
    usage="presets [OPTIONS]",
    run=run,
    options=(JSON,),
    details="""
From the strictest to none at all. `belljar policy show PRESET` shows one in full.
""",
    examples=(("presets", "a table"), ("run --policy strict script.py", "use one")),
)
