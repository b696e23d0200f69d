"""`belljar mcp`: the tools for any client of the Model Context Protocol."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from belljar.cli.jar_options import JAR, JSON, policy_name
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.tools.toolbox import Toolbox

SERVED = tuple(option for option in JAR if option.name != "--publish")
_TOKEN = "BELLJAR_MCP_TOKEN"  # noqa: S105 - where it is, not what


def run(parsed: Parsed) -> int:
    """Do it."""
    expect_words(COMMAND, parsed, 0, 0)
    if parsed.text("--http") is None:
        for name in ("--host-name", "--token-file", "--json"):
            if parsed.flag(name):
                raise UsageError(f"{name} is for --http", hint="belljar mcp --http 8808")
    from belljar.tools import mcp_server  # the extra, before anything is made

    assert mcp_server
    if (where := parsed.text("--http")) is not None:
        return _run_http(parsed, where)
    from belljar.tools.mcp_stdio import serve

    with toolbox_of(parsed) as toolbox:
        serve(toolbox)
    return 0


def _run_http(parsed: Parsed, where: str) -> int:
    """Whoever stops a server with SIGTERM, as systemd does, finds every jar ended and recorded so, and no fault."""
    import signal

    from belljar.cli.terminal.stopping import Stopped, Stopping

    try:
        with Stopping().heard(), toolbox_of(parsed) as toolbox:
            _serve_http(parsed, toolbox, where)
    except Stopped as stop:
        return stop.exit_code if stop.exit_code == 128 + signal.SIGINT else 0
    return 0


def toolbox_of(parsed: Parsed) -> Toolbox:
    """What the options ask for; no jar is made yet. Raises PolicyError and UsageError."""
    from belljar.tools.toolbox import Toolbox

    return Toolbox(
        policy_name(parsed),
        backend=parsed.text("--backend"),
        workspace=parsed.text("--workspace"),
        live=parsed.flag("--live"),
        overrides=parsed.texts("--set"),
        timeout=parsed.text("--timeout"),
        stateful=parsed.flag("--stateful"),
    )


def _serve_http(parsed: Parsed, toolbox: Toolbox, where: str) -> None:
    import secrets

    from belljar.tools.mcp_http import PATH, check_token, listen, serve

    host, _, port = where.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--http {where}: wanted a port", hint="--http 8808, or --http 127.0.0.1:8808")
    given = _given_token(parsed)
    token = given or secrets.token_urlsafe(32)
    check_token(token)
    toolbox.warm()
    with listen(host.strip("[]") or "127.0.0.1", int(port)) as listener:
        address, bound = listener.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        url = f"http://{shown}:{bound}{PATH}"
        if parsed.flag("--json"):
            from belljar.cli.terminal.document import print_json

            print_json({"url": url, "token": "" if given else token})
            sys.stdout.flush()
        else:
            sys.stderr.write(f"belljar: serving at {url}\n")
            sys.stderr.write("" if given else f"belljar: the token is {token}\n")
        serve(toolbox, listener, token, names=parsed.texts("--host-name"))


def _given_token(parsed: Parsed) -> str:
    path = parsed.text("--token-file")
    if path is None:
        return os.environ.get(_TOKEN, "")
    try:
        with open(path, encoding="ascii") as file:
            token = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {path}: it can't be read: {error}") from None
    if not token:
        raise UsageError(f"--token-file {path}: it is empty")
    return token


COMMAND = CliCommand(
    "mcp",
    "Serve the tools to any MCP client.",
    usage="mcp [OPTIONS]",
    run=run,
    options=(
        *SERVED,
        Option("--stateful", "", "keep variables and files between calls that name no session"),
        Option("--http", "[HOST:]PORT", "serve streamable HTTP there, instead of standard input and output"),
        Option("--token-file", "FILE", f"with --http: the token that clients need (default: ${_TOKEN}, or a new one)"),
        Option(
            "--host-name",
            "NAME[:PORT]",
            "with --http: a name by which clients may call this host; repeatable",
            repeats=True,
        ),
        JSON,
    ),
    details="""
The tools are run, exec, read_file, write_file, list_files and reset. Clients start this command themselves:
`belljar mcp config --client NAME` prints what to paste. Over HTTP every request needs the token, the server's own name
in Host, and no foreign Origin; use a proxy with TLS to serve other machines. With --json the address and a new token
are printed as JSON.
""",
    examples=(
        ("mcp --policy strict", "on standard input and output, as clients start it"),
        ("mcp --workspace . --stateful", "with this directory, copy on write"),
        ("mcp --http 8808", "over HTTP on this host; says the token"),
    ),
)
