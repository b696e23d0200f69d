"""`belljar mcp config`: what to paste into a client's configuration."""

from __future__ import annotations

import shutil
import sys

from belljar.cli.jar_options import JSON, policy_name
from belljar.cli.mcp.serve import SERVED, toolbox_of
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.tools.mcp_clients import CLIENTS, command_line, snippet

    expect_words(COMMAND, parsed, 0, 0)
    name = parsed.text("--client")
    if name not in CLIENTS:
        found = "none was named" if name is None else f"there is no {name!r}"
        raise UsageError(f"which client? {found}", hint=f"--client {' | '.join(CLIENTS)}")
    with toolbox_of(parsed):  # or say now what is wrong with the options: a client would say it to nobody
        command, words = _command(), _words(parsed)
    text, line = snippet(name, command, words), command_line(name, command, words)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        told = {"client": name, "file": CLIENTS[name].file, "text": text, "command": line}
        print_json(told)
        return 0
    sys.stdout.write(text)
    sys.stderr.write(f"belljar: for {CLIENTS[name].title}, put this into {CLIENTS[name].file}\n")
    sys.stderr.write(f"belljar: or type: {line}\n" if line else "")
    return 0


def _command() -> str:
    """By its whole path: clients that are started from a desktop have another PATH."""
    import os

    own = os.path.abspath(sys.argv[0])
    beside = os.path.join(os.path.dirname(sys.executable), "belljar")
    for path in (own, beside):
        if os.path.basename(path) == "belljar" and os.access(path, os.X_OK):
            return path
    return shutil.which("belljar") or "belljar"


def _words(parsed: Parsed) -> list[str]:
    """The options, with the policy that is in force here: a client has no BELLJAR_POLICY."""
    import os

    words = []
    for option in SERVED:
        named = policy_name(parsed) if option.name == "--policy" else None
        for value in [named] if named else parsed.texts(option.name):
            is_path = option.name == "--workspace" or (option.name == "--policy" and os.path.exists(value))
            words += [option.name, os.path.abspath(value) if is_path else value] if option.metavar else [option.name]
    return words + (["--stateful"] if parsed.flag("--stateful") else [])


COMMAND = CliCommand(
    "mcp config",
    "Print what to paste so that an MCP client has the tools.",
    usage="mcp config --client NAME [OPTIONS]",
    run=run,
    options=(
        Option("--client", "NAME", "claude-code, claude-desktop, cursor, vscode or codex"),
        *SERVED,
        Option("--stateful", "", "as for `belljar mcp`"),
        JSON,
    ),
    examples=(
        ("mcp config --client claude-desktop", "for the file that Claude Desktop reads"),
        ("mcp config --client codex --policy strict --workspace .", "with options for the server"),
    ),
)
