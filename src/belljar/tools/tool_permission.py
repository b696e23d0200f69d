"""What every tool request of a Claude agent passes before it runs: closed unless it was opened for this request."""

from __future__ import annotations

import copy
import inspect
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple

from belljar.errors import BelljarError, UsageError
from belljar.policy.load.tighten import tightened
from belljar.policy.models import Policy
from belljar.tools.calls import Call
from belljar.tools.definitions import BY_NAME, SERVER
from belljar.tools.mcp_server import Calls, Context

CLIENT = "claude-agent-sdk"
PREFIX = f"mcp__{SERVER}__"
_MOST_OPEN = 1000


class ToolRequest(NamedTuple):
    """What the model asks for, before anything of it happens."""

    tool: str
    """`sandboxed_code.run` and its like for belljar's own; any other by the name that the SDK gives it."""
    input: Mapping[str, Any]
    session_id: str
    tool_use_id: str
    policy: Policy
    """What holds for it."""


class Deny(NamedTuple):
    """An answer of `on_tool_request`: it must not run, and the model is told why."""

    reason: str


class Tighten(NamedTuple):
    """An answer of `on_tool_request`: it may run, under a tighter policy. Keys as in a policy file."""

    policy: Mapping[str, Any]


class PermissionVerdict(NamedTuple):
    """Why a request is denied, if it is; and whether the whole query shall stop then."""

    reason: str = ""
    stops: bool = False


Decision = Deny | Tighten | None
OnToolRequest = Callable[[ToolRequest], Decision | Awaitable[Decision]]
AlsoAsked = Callable[[str, dict[str, Any], str, str | None], Awaitable[PermissionVerdict]]
"""The caller's `can_use_tool`, which can only say no: with the SDK's name of the tool, the input, and two ids."""


class ToolPermission(Calls):
    """Decides, records, and remembers which requests were let through. The tools answer no others."""

    def __init__(
        self,
        policy: Policy,
        allowed: Iterable[str],
        on_tool_request: OnToolRequest | None,
        also_asked: AlsoAsked | None = None,
    ) -> None:
        self.policy = policy
        """What holds for requests from now on."""
        self._own = frozenset(PREFIX + name for name in BY_NAME)
        self._allowed = tuple(allowed)
        self._on_tool_request, self._also_asked = on_tool_request, also_asked
        self._open: OrderedDict[str, tuple[Call, Any]] = OrderedDict()
        """By the request's id: the call, and the input that was judged."""
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._lock = threading.Lock()

    # --- what the SDK calls ---

    async def before(self, given: Any, tool_use_id: str | None, _context: Any) -> dict[str, Any]:
        """The hook before each tool. Whatever goes wrong in it denies the tool."""
        try:
            said = await self._judged(given, tool_use_id)
        except BelljarError as error:
            said = PermissionVerdict(error.message)
        except Exception as error:  # noqa: BLE001 - a gate that fails is closed
            said = PermissionVerdict(f"the check of this request failed ({type(error).__name__})")
        decision = {"hookEventName": "PreToolUse", "permissionDecision": "deny" if said.reason else "allow"}
        if said.reason:
            decision["permissionDecisionReason"] = f"Denied by belljar: {said.reason}"
        stop = {"continue_": False, "stopReason": said.reason} if said.stops else {}
        return {"hookSpecificOutput": decision, **stop}

    async def after(self, given: Any, _id: str | None, _context: Any) -> dict[str, Any]:
        """The hook after each batch of tools: what never came to the first one is recorded.

        The command refuses by itself what it does not have, such as the built-in tools that are gone, and what has
        input that the tool does not take.
        """
        session = str(given.get("session_id") or "")
        for asked in given["tool_calls"]:
            tool_use, name = str(asked["tool_use_id"]), str(asked["tool_name"])
            with self._lock:
                if tool_use in self._seen:
                    continue
                _remember(self._seen, tool_use, None)
            call = Call(client=CLIENT, session=session, tool_use=tool_use)
            denied = "the command refused its input" if self.names(name) else "the command has no such tool"
            call.record(self.policy, _own_name(name), asked.get("tool_input"), denied=denied)
        return {}

    def was_let_through(self, tool_use_id: str | None) -> bool:
        """Whether the hook opened the gate for this request, and nobody has gone through."""
        with self._lock:
            return tool_use_id in self._open

    async def admitted(self, context: Context, name: str) -> Call:
        """The call that the hook let through; one that came in any other way, or with other input, is refused."""
        tool_use = dict(context.meta or {}).get("claudecode/toolUseId")
        with self._lock:
            found = self._open.pop(tool_use, None) if isinstance(tool_use, str) else None
        arguments = (context.params or {}).get("arguments") or {}
        if found is not None and found[1] == (name, arguments):
            return found[0]
        why = "it did not pass the gate" if found is None else "its input is not the one that was judged"
        refused = Call(client=CLIENT, tool_use=str(tool_use or ""))
        refused.record(self.policy, f"{SERVER}.{name}", arguments, denied=why)
        raise UsageError(f"this call is refused: {why}")

    # --- the decision ---

    async def _judged(self, given: Any, tool_use_id: str | None) -> PermissionVerdict:
        """Why it is denied, if it is. In the log before this returns."""
        name, arguments = str(given["tool_name"]), given.get("tool_input") or {}
        tool_use = tool_use_id or str(given.get("tool_use_id") or "")
        session = str(given.get("session_id") or "")
        call = Call(client=CLIENT, session=session, tool_use=tool_use, policy=self.policy)
        reason = "" if self.names(name) else f"the tool {name[:100]} is not allowed here; use {_tools()}"
        if not reason and not tool_use:
            reason = "the request has no id"
        said = PermissionVerdict(reason)
        # Whoever is asked gets a copy: what is recorded, and compared with what runs, is what the model wrote.
        if not said.reason and self._on_tool_request is not None:
            shown = copy.deepcopy(arguments)
            request = ToolRequest(_own_name(name), shown, session, tool_use, self.policy)
            said = PermissionVerdict(await self._asked(request, call))
        if not said.reason and self._also_asked is not None:
            said = await self._also_asked(name, copy.deepcopy(arguments), tool_use, given.get("agent_id"))
        call.record(call.policy or self.policy, _own_name(name), arguments, denied=said.reason)
        with self._lock:
            _remember(self._seen, tool_use, None)
            if not said.reason:
                _remember(self._open, tool_use, (call, (name.removeprefix(PREFIX), arguments)))
        return said

    async def _asked(self, request: ToolRequest, call: Call) -> str:
        assert self._on_tool_request is not None
        try:
            decision: object = self._on_tool_request(request)
            if inspect.isawaitable(decision):
                decision = await decision
        except Exception as error:  # noqa: BLE001 - the caller's own code: its fault denies
            return f"on_tool_request failed ({type(error).__name__})"
        if decision is None:
            return ""
        if isinstance(decision, Deny):
            return decision.reason or "on_tool_request said so"
        if not isinstance(decision, Tighten):
            return f"on_tool_request answered {type(decision).__name__}, which is no decision"
        if not request.tool.startswith(f"{SERVER}."):
            return "a policy can be tightened for belljar's own tools only"
        try:
            call.policy = tightened(request.policy, decision.policy, by="on_tool_request")
        except BelljarError as error:
            return f"on_tool_request asked for what the policy does not grant: {error.message}"
        return ""

    def names(self, tool: str) -> bool:
        """Whether a tool may run at all."""
        if tool in self._own:
            return True
        return any(tool == name or (name.endswith("__*") and tool.startswith(name[:-1])) for name in self._allowed)


def _remember(where: OrderedDict[str, Any], key: str, value: Any) -> None:
    where[key] = value
    while len(where) > _MOST_OPEN:
        where.popitem(last=False)


def _own_name(name: str) -> str:
    return f"{SERVER}.{name.removeprefix(PREFIX)}" if name.startswith(PREFIX) else name


def _tools() -> str:
    return ", ".join(PREFIX + name for name in BY_NAME)
