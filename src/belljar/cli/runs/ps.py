"""`belljar ps`: what runs, in every belljar process of this user."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.progress import waiting
from belljar.cli.terminal.safe_text import visible

if TYPE_CHECKING:
    from belljar.audit.store import RunStore

_LONGEST = 60
_SILENT = "not answering"
"""What a run is whose process was asked and has said nothing: it may be stopped, or hang."""


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.sandbox.record.remote import asked

    expect_words(COMMAND, parsed, 0, 0)
    now = asked()
    rows = now.runs
    if parsed.flag("--all") or now.silent:
        from belljar.audit.store import RunStore
        from belljar.cli.jar_options import whole_number

        with waiting("the audit log", "bringing its index up to date"):
            store = RunStore()
        with store:
            rows = [*({"state": "running", **row} for row in rows), *_silent(store, now.silent)]
            if parsed.flag("--all"):
                alive = {row["run"] for row in rows}
                ended = [row for row in store.runs(limit=whole_number(parsed, "-n", 50)) if row["run"] not in alive]
                rows += [{**row, "state": _state(row)} for row in ended]
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(rows)
        return 0
    from belljar.cli.terminal.table import aligned

    told = [_cells(row) for row in rows]
    if told:
        sys.stdout.write(aligned([("RUN", "STATE", "FOR", "BACKEND", "WHAT", "OWNER", "POLICY"), *told]))
    else:
        sys.stderr.write("belljar: nothing runs\n")
    return 0


def _silent(store: RunStore, owners: tuple[int, ...]) -> list[dict[str, Any]]:
    """What the log knows of processes that do not answer: the runs of theirs that have no end."""
    found: list[dict[str, Any]] = []
    for owner in owners:
        rows = store.ask("select * from runs where owner = ? and ended is null order by created", owner)
        known = [{**dict(row), "since": row["created"], "state": _SILENT} for row in rows]
        found += known or [{"run": "?", "owner": owner, "state": _SILENT}]
    return found


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
        visible(_cut(str(row.get("script") or row.get("language") or row.get("kind") or "command"))),
        str(row.get("owner") or ""),
        visible(str(row.get("policy") or "")[:19]),
    )


def _cut(text: str) -> str:
    """Both ends of a long name: an agent's begins with its program and ends with its project."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 3]}…{text[-_LONGEST * 2 // 3 + 1 :]}"


COMMAND = CliCommand(
    "ps",
    "List what runs, in every belljar process of this user.",
    usage="ps [OPTIONS]",
    run=run,
    options=(
        Option("-a --all", "", "what has ended, too, the newest first"),
        Option("-n", "COUNT", "with --all: so many (default: 50)"),
        JSON,
    ),
    details="""
What a process runs that does not answer is listed as the audit log has it, as `not answering`: it may stand still, or
hang. `belljar kill --all` ends it.
""",
    examples=(("ps", "what runs now"), ("ps --all --json", "what ran, for programs")),
)
