"""`belljar metrics`: numbers for Prometheus."""

from __future__ import annotations

import sys

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.audit.metrics import registry
    from belljar.sandbox.record.remote import pools, running

    expect_words(COMMAND, parsed, 0, 0)
    made = registry(running, pools)
    if listen := parsed.text("--listen"):
        return _serve(made, listen)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(
            [
                {"name": sample.name, "labels": sample.labels, "value": sample.value}
                for family in made.collect()
                for sample in family.samples
            ]
        )
        return 0
    from prometheus_client import generate_latest

    sys.stdout.write(generate_latest(made).decode())
    return 0


def _serve(made: object, listen: str) -> int:
    from prometheus_client import start_http_server

    host, _, port = listen.rpartition(":")
    if not port.isdigit() or not 0 < int(port) < 65536:
        raise UsageError(f"--listen {listen}: wanted [HOST:]PORT", hint="--listen 127.0.0.1:9464")
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", made)  # type: ignore[arg-type]
    except OSError as error:
        raise UsageError(f"--listen {listen}: {error.strerror}") from error
    sys.stderr.write(f"belljar: http://{host or '127.0.0.1'}:{port}/metrics, until Ctrl-C\n")
    try:
        thread.join()
    finally:
        server.shutdown()
    return 0


COMMAND = CliCommand(
    "metrics",
    "Print the numbers of all runs for Prometheus, or serve them.",
    usage="metrics [OPTIONS]",
    run=run,
    options=(Option("--listen", "[HOST:]PORT", "serve them at /metrics (default host: 127.0.0.1)"), JSON),
    details="""
They are made from the audit log, for every belljar process of this user. While nobody asks for them they cost nothing.
Needs `belljar[metrics]`.
""",
    examples=(("metrics", "for a textfile collector"), ("metrics --listen 9464", "for Prometheus itself")),
)
