"""`belljar ps`: what runs, in every belljar process of this user."""

from __future__ import annotations

import sys
import time
from typing import Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import Command, Option, Parsed, expect_words
from belljar.cli.progress import waiting
from belljar.cli.terminal import visible


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.remote import running

    expect_words(COMMAND, parsed, 0, 0)
    rows = running()
    if parsed.flag("--all"):
        from belljar.audit.store import RunStore
        from belljar.cli.jar_options import whole_number

        alive = {row["run"] for row in rows}
        with waiting("the audit log", "bringing its index up to date"):
            store = RunStore()
        with store:
            ended = [row for row in store.runs(limit=whole_number(parsed, "-n", 50)) if row["run"] not in alive]
        rows = [*({"state": "running", **row} for row in rows), *({**row, "state": _state(row)} for row in ended)]
    if parsed.flag("--json"):
        from belljar.cli.document import print_json

        print_json(rows)
        return 0
    from belljar.cli.table import aligned

    told = [_cells(row) for row in rows]
    if told:
        sys.stdout.write(aligned([("RUN", "STATE", "FOR", "BACKEND", "WHAT", "OWNER", "POLICY"), *told]))
    else:
        sys.stderr.write("belljar: nothing runs\n")
    return 0


def _state(row: dict[str, Any]) -> str:
    """What the log says; a run whose process was killed has no end in it."""
    return str(row["outcome"] or "unfinished")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if "since" in row:
        taken = time.time() - float(row["since"])
    else:
        taken = float(row.get("duration") or 0)
    return (
        visible(str(row["run"])),
        visible(str(row.get("state", "running"))),
        f"{taken:.1f} s",
        visible(str(row.get("backend") or "")),
        visible(str(row.get("language") or row.get("kind") or "command")),
        str(row.get("owner") or ""),
        visible(str(row.get("policy") or "")[:19]),
    )


COMMAND = Command(
    "ps",
    "List what runs, in every belljar process of this user.",
    usage="ps [OPTIONS]",
    run=run,
    options=(
        Option("-a --all", "", "what has ended, too, the newest first"),
        Option("-n", "COUNT", "with --all: so many (default: 50)"),
        JSON,
    ),
    examples=(("ps", "what runs now"), ("ps --all --json", "what ran, for programs")),
)
