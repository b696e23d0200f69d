"""`belljar audit tail`: the last records, and new ones as they come."""

from __future__ import annotations

from collections import deque

from belljar.cli.audit.show import chosen, show
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.cli.terminal.progress import waiting


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli.jar_options import whole_number

    count = whole_number(parsed, "-n", 20)
    words = parsed.all_words()
    if not parsed.flag("--follow"):
        _show_last(parsed, words, count)
        return 0
    from belljar.audit.log import directory
    from belljar.audit.reading import ends, follow_log, matches
    from belljar.cli.audit.show import wanted

    until = ends(directory())  # what is written while the last ones are shown comes after them, and once
    _show_last(parsed, words, count, until)
    fits = wanted(words)
    for record in follow_log(directory(), until):
        if matches(record, fits):
            show([record], json=parsed.flag("--json"))
    return 0


def _show_last(parsed: Parsed, words: list[str], count: int, until: dict[str, int] | None = None) -> None:
    with waiting("the audit log", "looking for its end"):
        last = deque(chosen(parsed, words, until=until), maxlen=count)
    show(last, json=parsed.flag("--json"))


COMMAND = CliCommand(
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
