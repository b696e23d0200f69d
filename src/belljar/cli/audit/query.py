"""`belljar audit query`: records by what is in them."""

from __future__ import annotations

import sys
from typing import Any

from belljar.cli.audit.show import FILTERS, chosen, show, wanted
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.cli.terminal.progress import counted, waiting
from belljar.cli.terminal.safe_text import visible


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli.jar_options import whole_number

    limit = whole_number(parsed, "--limit", 1000)
    log = _Members()
    with waiting("the audit log", "looking through it") as progress:
        fitting = chosen(parsed, parsed.all_words(), seen=log.add)
        found = list(counted(fitting, progress, "records fit so far"))
    show(found[-limit:], json=parsed.flag("--json"))
    if not found:
        sys.stderr.write(f"belljar: {log.why_none(wanted(parsed.all_words()))}\n")
    return 0 if found else 1


class _Members:
    """The members and events that the records of the log have."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._events: set[str] = set()

    def add(self, record: dict[str, Any]) -> None:
        """Take note of a record."""
        self._names.update(record)
        self._events.add(str(record.get("event")))

    def why_none(self, wanted: dict[str, str]) -> str:
        """Name the member or event that no record has, if that is why none fits."""
        from belljar.policy.problems import nearest

        for name, value in wanted.items():
            if self._names and name not in self._names:
                if name in ("since", "limit"):
                    return f"no record has a member {name!r} (did you mean --{name} {visible(value)}?)"
                return f"no record has a member {visible(name)!r}{nearest(name, sorted(self._names))}"
            if name == "event" and value not in self._events:
                return f"no record has the event {visible(value)!r}{nearest(value, sorted(self._events))}"
        return "no record fits"


COMMAND = CliCommand(
    "audit query",
    "Show the records of the audit log that fit.",
    usage="audit query [OPTIONS] [NAME=VALUE…]",
    run=run,
    options=(*FILTERS, Option("--limit", "COUNT", "the last so many (default: 1000)"), JSON),
    details="""
Each NAME=VALUE is a member of the record, such as `event=denied`, `run=…`, `outcome=timeout`, `host=example.com`. Exits
with 1 if there is none.
""",
    examples=(
        ("audit query event=egress allowed=false", "what the network refused"),
        ("audit query --since 2026-01-31 event=killed", "since a day"),
        ("audit query --run 01a1e4 --json", "all of one run"),
    ),
)
