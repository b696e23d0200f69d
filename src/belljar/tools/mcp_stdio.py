"""The server on standard input and output: one client, which started it."""

from __future__ import annotations

import atexit
import os
import signal
import sys

import anyio
import anyio.to_thread
from mcp.server.stdio import stdio_server

from belljar.errors import BelljarError
from belljar.tools.mcp_server import server
from belljar.tools.toolbox import Toolbox

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def serve(toolbox: Toolbox) -> None:
    """Serve until the client closes standard input, or a signal asks this process to end."""

    async def main() -> None:
        served = server(toolbox)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, _warm, toolbox)
            tasks.start_soon(_stop_when_told, toolbox)
            async with stdio_server() as (reader, writer):
                await served.run(reader, writer, served.create_initialization_options())
            tasks.cancel_scope.cancel()

    anyio.run(main)


async def _stop_when_told(toolbox: Toolbox) -> None:
    """End the jars, and with them this process: the thread that reads standard input can't be woken."""
    wanted = [number for number in _SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    with anyio.open_signal_receiver(*wanted) as told:
        async for number in told:
            await anyio.to_thread.run_sync(toolbox.close)
            atexit._run_exitfuncs()  # noqa: SLF001 - as the command does at its end: the launcher goes
            os._exit(128 + number if number == signal.SIGINT else 0)


def _warm(toolbox: Toolbox) -> None:
    """Beside the client's first words. What does not work here is told now, and by each call."""
    try:
        toolbox.warm()
    except BelljarError as error:
        sys.stderr.write(f"belljar: {error}\n")
