"""`belljar audit export`: the log for other programs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from belljar.cli.audit.show import FILTERS, chosen
from belljar.cli.jar_options import whole_number
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.cli.terminal.progress import counted, waiting
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.export import FORMATS
    from belljar.audit.shipping import to_otlp, to_syslog

    for name, ship in (("--syslog", to_syslog), ("--otlp", to_otlp)):
        if address := parsed.text(name):
            with waiting("the audit log", "sending it") as progress:
                count = ship(counted(_chosen(parsed), progress, "records"), address)
            sys.stderr.write(f"belljar: {count} records were sent to {visible(address)}\n")
            return 0
    wanted = "jsonl" if parsed.flag("--json") else parsed.text("--format") or "jsonl"
    if wanted not in FORMATS:
        raise UsageError(f"--format {wanted}: wanted one of {', '.join(FORMATS)}")
    with waiting("the audit log", "writing it", shows=True) as progress:
        for text in FORMATS[wanted](counted(_chosen(parsed), progress, "records")):
            sys.stdout.write(text)
    return 0


def _chosen(parsed: Parsed) -> Iterator[dict[str, Any]]:
    after = whole_number(parsed, "--after", 0)
    return (record for record in chosen(parsed, parsed.all_words()) if record["seq"] > after)


COMMAND = CliCommand(
    "audit export",
    "Write the audit log for other programs, or send it to them.",
    usage="audit export [OPTIONS] [NAME=VALUE…]",
    run=run,
    options=(
        Option("--format", "NAME", "jsonl, csv or ocsf (default: jsonl)"),
        Option("--json", "", "the same as --format jsonl"),
        *FILTERS,
        Option("--after", "SEQ", "those behind the record with this number, to go on where sending stopped"),
        Option(
            "--syslog", "ADDRESS", "send each as RFC 5424: /dev/log, udp://logs.example:514, tcp://logs.example:601"
        ),
        Option("--otlp", "URL", "send them to an OpenTelemetry collector: http://logs.example.com:4318"),
    ),
    details="""
In CSV, text that a spreadsheet would take for a formula has a quote before it: names in the log are the code's own. A
record that is too long for one datagram of syslog goes with its members cut, and "shortened": true.
""",
    examples=(
        ("audit export --format csv --since 2026-01-31 >runs.csv", "for a spreadsheet"),
        ("audit export --format ocsf event=egress", "for a SIEM"),
        ("audit export --syslog udp://logs.example:514", "to syslog"),
    ),
)
