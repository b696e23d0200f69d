"""`belljar inspect`: all that is known of a run."""

from __future__ import annotations

import sys
from typing import Any

from belljar.cli.audit_show import line
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import Command, Parsed, expect_words
from belljar.cli.terminal import visible
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.store import RunStore

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    with RunStore() as store:
        row = store.run(name)
        if row is None:
            raise UsageError(f"the audit log knows no run {name!r}", hint="`belljar ps --all` lists them")
        records = list(store.events(row["run"]))
    if parsed.flag("--json"):
        from belljar.cli.document import print_json

        print_json({**row, "output": _output(row["run"], records), "records": records})
        return 0
    from belljar.cli.table import aligned

    rows = [(name, visible(str(value))) for name, value in row.items() if value not in (None, "")]
    rows.append(("output", visible(_output(row["run"], records))))
    sys.stdout.write(aligned(rows) + "\n")
    for record in records:
        sys.stdout.write(line(record) + "\n")
    return 0


def _output(run: str, records: list[dict[str, Any]]) -> str:
    """Whether what it printed can be read."""
    from belljar.sandbox.remote import one_running
    from belljar.sandbox.stored_output import of_records

    if one_running(run):
        return f"it runs: `belljar logs -f {run}`"
    output = of_records(run, records)
    if output.nothing:
        return output.missing
    if not output.pieces:
        return "it printed nothing"
    return f"`belljar logs {run}`" + (f"; {output.missing}" if output.missing else "")


COMMAND = Command(
    "inspect",
    "Show all that is known of a run.",
    usage="inspect [OPTIONS] RUN",
    run=run,
    options=(JSON,),
    examples=(("inspect 01a1e4e2ffbe-8c01c265", "its policy, plan, end, usage, denials and traffic"),),
)
