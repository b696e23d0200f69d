"""`belljar audit query`: records by what is in them."""

from __future__ import annotations

import sys

from belljar.cli.audit_show import FILTERS, chosen, show, wanted
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import Command, Option, Parsed
from belljar.cli.progress import counted, waiting
from belljar.cli.terminal import visible


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli.jar_options import whole_number

    limit = whole_number(parsed, "--limit", 1000)
    with waiting("the audit log", "looking through it") as progress:
        found = list(counted(chosen(parsed, parsed.all_words()), progress, "records fit so far"))
    show(found[-limit:], json=parsed.flag("--json"))
    if not found:
        sys.stderr.write(f"belljar: {_why_none(parsed)}\n")
    return 0 if found else 1


def _why_none(parsed: Parsed) -> str:
    """Say which member or event no record has, if that is why."""
    from belljar.audit.log import directory
    from belljar.audit.reading import records
    from belljar.policy.problems import nearest

    names, events = set[str](), set[str]()
    for record in records(directory()):
        names.update(record)
        events.add(str(record.get("event")))
    for name, value in wanted(parsed.all_words()).items():
        if names and name not in names:
            return f"no record has a member {visible(name)!r}{nearest(name, sorted(names))}"
        if name == "event" and value not in events:
            return f"no record has the event {visible(value)!r}{nearest(value, sorted(events))}"
    return "no record fits"


COMMAND = Command(
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
