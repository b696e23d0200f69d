"""Queries whose answers a scripted model gives."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import claude_agent_sdk as sdk
from scripted_model import use

from belljar.tools.claude import query

RUN = "mcp__sandboxed_code__run"


HELLO = use(RUN, code="print('hello, world')")


def ask(name: str, **options: Any) -> list[Any]:
    """The messages of a query whose script has this name."""

    async def main() -> list[Any]:
        return [message async for message in query(f"script:{name} please", **options)]

    return anyio.run(main)


def last(messages: list[Any]) -> Any:
    assert isinstance(messages[-1], sdk.ResultMessage)
    return messages[-1]
