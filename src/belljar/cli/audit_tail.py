"""`belljar audit tail`: the last records, and new ones as they come."""

from __future__ import annotations

from collections import deque

from belljar.cli.audit_show import chosen, show
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import Command, Option, Parsed
from belljar.cli.progress import waiting


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli.jar_options import whole_number

    count = whole_number(parsed, "-n", 20)
    words = parsed.all_words()
    if parsed.flag("--follow"):
        from belljar.audit.log import directory
        from belljar.audit.reading import follow_log, matches
        from belljar.cli.audit_show import wanted

        fresh = follow_log(directory())
        _show_last(parsed, words, count)
        fits = wanted(words)
        for record in fresh:
            if matches(record, fits):
                show([record], json=parsed.flag("--json"))
    _show_last(parsed, words, count)
    return 0


def _show_last(parsed: Parsed, words: list[str], count: int) -> None:
    with waiting("the audit log", "looking for its end"):
        last = deque(chosen(parsed, words), maxlen=count)
    show(last, json=parsed.flag("--json"))


COMMAND = Command(
    "audit tail",
    "Show the last records of the audit log.",
    usage="audit tail [OPTIONS] [NAME=VALUE…]",
    run=run,
    options=(
        Option("-n", "COUNT", "so many (default: 20)"),
        Option("-f --follow", "", "go on with new ones, until Ctrl-C"),
        JSON,
    ),
    examples=(("audit tail", "the last twenty"), ("audit tail -f event=denied", "refusals as they happen")),
)
