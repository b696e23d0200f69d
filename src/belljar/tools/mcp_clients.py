"""What to paste where, so that a client of the Model Context Protocol has belljar's tools. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any, NamedTuple

NAME = "belljar"


class McpClient(NamedTuple):
    """A client: where its configuration is, and the mapping's name in it."""

    title: str
    file: str
    key: str
    extra: tuple[tuple[str, str], ...] = ()


CLIENTS = {
    "claude-code": McpClient("Claude Code", ".mcp.json in the project", "mcpServers", (("type", "stdio"),)),
    "claude-desktop": McpClient(
        "Claude Desktop",
        "claude_desktop_config.json (Settings, Developer, Edit Config)",
        "mcpServers",
    ),
    "cursor": McpClient("Cursor", "~/.cursor/mcp.json, or .cursor/mcp.json in the project", "mcpServers"),
    "vscode": McpClient("VS Code", ".vscode/mcp.json in the project", "servers", (("type", "stdio"),)),
    "codex": McpClient("Codex", "~/.codex/config.toml", "mcp_servers"),
}


def entry(command: str, arguments: Sequence[str], client: McpClient) -> dict[str, Any]:
    """The server, as that client writes it."""
    return {**dict(client.extra), "command": command, "args": ["mcp", *arguments]}


def snippet(name: str, command: str, arguments: Sequence[str]) -> str:
    """The text to paste."""
    client = CLIENTS[name]
    told = entry(command, arguments, client)
    if name == "codex":  # TOML's strings and arrays of them are JSON's
        lines = [f"{key} = {json.dumps(value)}" for key, value in told.items()]
        return "\n".join([f"[{client.key}.{NAME}]", *lines]) + "\n"
    return json.dumps({client.key: {NAME: told}}, indent=2) + "\n"


def command_line(name: str, command: str, arguments: Sequence[str]) -> str:
    """A command that does the same, for clients that have one."""
    words = shlex.join([command, "mcp", *arguments])
    return {"claude-code": f"claude mcp add {NAME} -- {words}", "codex": f"codex mcp add {NAME} -- {words}"}.get(
        name, ""
    )
