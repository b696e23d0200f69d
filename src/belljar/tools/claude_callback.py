"""The caller's own `can_use_tool`: asked for what the gate would let through, so that it can only say no.

The command asks it for nothing that a hook has allowed, and the gate is a hook: so the gate asks it itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import claude_agent_sdk as sdk

from belljar.tools.tool_permission import PermissionVerdict

CanUseTool = Callable[[str, dict[str, Any], sdk.ToolPermissionContext], Awaitable[object]]


class Callback:
    """Asks it, and takes whatever is not a plain yes for a no."""

    def __init__(self, given: CanUseTool) -> None:
        self._given = given

    async def __call__(
        self, name: str, arguments: dict[str, Any], tool_use_id: str, agent_id: str | None
    ) -> PermissionVerdict:
        """Its answer. What it raises is a no."""
        context = sdk.ToolPermissionContext(tool_use_id=tool_use_id, agent_id=agent_id)
        try:
            answer = await self._given(name, arguments, context)
        except Exception as error:  # noqa: BLE001 - the caller's own code: its fault denies
            return PermissionVerdict(f"can_use_tool failed ({type(error).__name__})")
        return _judged(answer, arguments)


def _judged(answer: object, arguments: dict[str, Any]) -> PermissionVerdict:
    if isinstance(answer, sdk.PermissionResultDeny):
        return PermissionVerdict(answer.message or "can_use_tool said no", stops=answer.interrupt)
    if not isinstance(answer, sdk.PermissionResultAllow):
        return PermissionVerdict(f"can_use_tool answered {type(answer).__name__}, which is no decision")
    if answer.updated_input is not None and answer.updated_input != arguments:
        return PermissionVerdict("can_use_tool changed the input, and what runs is what was judged")
    if answer.updated_permissions:
        return PermissionVerdict("can_use_tool asked for permissions, and what can run is named in allowed_tools")
    return PermissionVerdict()
