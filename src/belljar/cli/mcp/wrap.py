"""`belljar mcp wrap`: someone else's MCP server, in a jar."""

from __future__ import annotations

import os
import sys

from belljar.cli.jar_options import JAR, policy_name, published
from belljar.cli.parsing import CliCommand, Option, Parsed
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    argv = parsed.all_words()
    if not argv:
        raise UsageError("there is no command to wrap", hint="belljar mcp wrap -- node server.js")
    if parsed.flag("--live") and parsed.text("--workspace") is None:
        raise UsageError("--live needs a workspace", hint="say which directory: --workspace . --live")
    from belljar.cli.run.outcome import exit_code, report
    from belljar.cli.terminal.sink import Sink
    from belljar.cli.terminal.stopping import Stopped, Stopping
    from belljar.tools.mcp_wrap import DOWNLOADING
    from belljar.tools.mcp_wrap import run as wrap

    host = DOWNLOADING.get(os.path.basename(argv[0]))
    if host and not parsed.texts("--allow") and policy_name(parsed) is None:
        sys.stderr.write(f"belljar: {argv[0]} downloads its server: belljar mcp wrap --allow {host} -- … lets it\n")
    complaints, stopping = Sink(2, raw=False), Stopping()
    try:
        with stopping.heard():
            result = wrap(
                policy_name(parsed),
                argv,
                allow=parsed.texts("--allow"),
                complaints=complaints.write,
                following=stopping.following,
                overrides=[*parsed.texts("--set"), *published(parsed)],
                backend=parsed.text("--backend"),
                workspace=parsed.text("--workspace"),
                live=parsed.flag("--live"),
                timeout=parsed.text("--timeout"),
            )
    except Stopped as stop:  # a client that is done with a server sends SIGTERM: its end is in the log
        return stop.exit_code
    complaints.finish()
    if parsed.flag("--json"):
        import json

        sys.stderr.write(json.dumps(result.to_dict()) + "\n")
    else:
        sys.stderr.write(report(result, quiet=False, explained=True))  # there is nothing more to ask for
    return 0 if result.ok else exit_code(result)


COMMAND = CliCommand(
    "mcp wrap",
    "Run someone else's MCP server in a jar.",
    usage="mcp wrap [OPTIONS] [--] COMMAND [ARGS…]",
    run=run,
    options=(
        Option("--allow", "HOST", "let it reach this host, as `belljar claude --allow` does; repeatable", repeats=True),
        *JAR,
        Option("--json", "", "tell its end as JSON, on standard error: standard output is the server's"),
    ),
    options_first=True,
    details="""
Put it before the command in a client's configuration: the client talks to the server as before, and the server sees
only what the policy shows it. A program of a virtual environment (.venv/bin/python, or a command that is installed in
one) has that environment, read-only. Unless you choose otherwise it may run for a week, and print a gigabyte. What was
refused is told on standard error when it ends.
""",
    examples=(
        ("mcp wrap -- node server.js", "with no network, and no files"),
        ("mcp wrap --allow api.example.com -- .venv/bin/python -m some_server", "with its packages, and one host"),
        ("mcp wrap --workspace . --policy my.yaml -- python3 -m some_server", "with files and a policy of its own"),
    ),
)
