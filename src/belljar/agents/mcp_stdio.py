"""The server on standard input and output: one client, which started it."""

from __future__ import annotations

import sys

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server

from belljar.agents.mcp_server import server
from belljar.agents.toolbox import Toolbox
from belljar.errors import BelljarError


def serve(toolbox: Toolbox) -> None:
    """Serve until the client closes standard input."""

    async def main() -> None:
        served = server(toolbox)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _warm, toolbox)
            async with stdio_server() as (reader, writer):
                await served.run(reader, writer, served.create_initialization_options())
            tasks.cancel_scope.cancel()

    anyio.run(main)


def _warm(toolbox: Toolbox) -> None:
    """Beside the client's first words. What does not work here is told now, and by each call."""
    try:
        toolbox.warm()
    except BelljarError as error:
        sys.stderr.write(f"belljar: {error}\n")
