"""`belljar diff`: what differs between two snapshots."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible, visible_lines

if TYPE_CHECKING:
    from belljar.sandbox.files.comparing import Difference
    from belljar.sandbox.files.snapshot_files import SnapshotFile


def run(parsed: Parsed) -> int:
    """Compare them. 1 if something differs."""
    from belljar.sandbox.files.comparing import compare
    from belljar.sandbox.files.snapshot_files import SnapshotFiles

    old, new = expect_words(COMMAND, parsed, 2, 2)
    with SnapshotFiles(old) as first, SnapshotFiles(new) as second:
        found = list(compare(first, second))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json([_plain(one) for one in found])
    else:
        for one in found:
            sys.stdout.write(_head(one) + ("" if parsed.flag("--names") else visible_lines(one.text)))
    return 1 if found else 0


def _head(one: Difference) -> str:
    kept = one.after or one.before
    sizes = " -> ".join(f"{side.size}" for side in (one.before, one.after) if side is not None)
    what = f" {kept.kind}, {sizes} bytes" if kept and kept.kind == "file" else f" {kept.kind}" if kept else ""
    note = f" ({visible(one.note)})" if one.note else ""
    return f"{one.kind}{what}: {visible(one.path)}{note}\n"


def _plain(one: Difference) -> dict[str, Any]:
    sides = {"before": _side(one.before), "after": _side(one.after)}
    return {"path": one.path, "kind": one.kind, **sides, "diff": one.text, "note": one.note}


def _side(kept: SnapshotFile | None) -> dict[str, Any] | None:
    if kept is None:
        return None
    return {"kind": kept.kind, "size": kept.size, "mode": f"{kept.mode:04o}", "target": kept.target or None}


COMMAND = CliCommand(
    "diff",
    "Show what differs between two snapshots.",
    usage="diff [OPTIONS] A B",
    run=run,
    options=(Option("--names", "", "name what differs, and show no content"), JSON),
    details="""
A and B are names of snapshots, or paths of their files. Tells what was added, changed and removed, with a unified diff
of text and the sizes of everything else. Names and text were the code's: what could deceive a terminal is escaped.
Exits with 1 if something differs.
""",
    examples=(("diff before after", "two snapshots"), ("diff before ./kept.tar --json", "one of them by its path")),
)
