"""The official MCP client, speaking with `belljar mcp`."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

BELLJAR = [sys.executable, "-m", "belljar"]


TOKEN = "a-token-of-the-tests-0123456789"


@asynccontextmanager
async def stdio(*words: str, program: list[str] | None = None) -> AsyncIterator[ClientSession]:
    """The server as a client starts it."""
    command, *arguments = program or [*BELLJAR, "mcp", *words]
    server = StdioServerParameters(command=command, args=arguments, env=dict(os.environ))
    async with stdio_client(server) as (reader, writer), ClientSession(reader, writer) as session:
        await session.initialize()
        yield session


def text_of(result: Any) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")
