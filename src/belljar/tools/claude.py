"""For the Claude Agent SDK: options with which nothing runs but in a jar, or what was named; and a policy for a query.

from belljar.tools.claude import query

async for message in query("What is 2 ** 100? Use Python.", sandbox_policy={"proc": {"timeout_ms": 5000}}):
    print(message)
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import fields
from typing import Any, Self

from belljar.errors import BelljarError, PrerequisiteError, UsageError
from belljar.policy.models import Policy
from belljar.sandbox.run.sandbox import PolicyLike
from belljar.tools.definitions import SERVER
from belljar.tools.mcp_server import server
from belljar.tools.tool_permission import Deny, OnToolRequest, Tighten, ToolPermission, ToolRequest
from belljar.tools.toolbox import Toolbox

try:
    import anyio
    import anyio.to_thread
    import claude_agent_sdk as sdk
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise PrerequisiteError("this needs the Claude Agent SDK", hint="pip install 'belljar[claude]'") from error

from belljar.tools.claude_callback import Callback

_OURS = {
    "tools": "name the tools in allowed_tools",
    "setting_sources": "settings on disk could allow what you did not",
    "settings": "settings could allow what you did not",
    "strict_mcp_config": "servers are those in mcp_servers, and no others",
    "permission_prompt_tool_name": "use on_tool_request",
    "plugins": "a plugin brings hooks and tools of its own",
    "skills": "a skill needs tools of the host",
    "sandbox": "the jar is the sandbox",
}
"""Options that belljar sets, or that would open what it closed; each with what to do instead."""
_MODES = (None, "default", "plan", "dontAsk")
_TOOL_NAME = re.compile(r"(?!mcp__|default$)[A-Za-z][A-Za-z0-9_]*|mcp__[A-Za-z0-9_.-]+?__(\*|[A-Za-z0-9_.-]+)")
"""A tool by its whole name, or all of one server: the command knows more, such as `*` and `Bash(ls:*)`."""
_EXTRA = frozenset({"debug", "debug-to-stderr", "no-session-persistence", "strict-mcp-config"})
_BUFFER_BYTES = 32 << 20
"""A message of the command's, with images in it, is longer than the SDK's own limit."""
_ANSWER_SECONDS = 24 * 3600
"""How long the gate may take: who is asked by a callback may be a person. The command's own limit is a minute."""


def sandboxed_options(
    policy: PolicyLike = None,
    *,
    allowed_tools: Sequence[str] = (),
    on_tool_request: OnToolRequest | None = None,
    toolbox: Toolbox | None = None,
    stateful: bool = False,
    workspace: str | None = None,
    **options: Any,
) -> sdk.ClaudeAgentOptions:
    """Options with which only `sandboxed_code.*` and the tools that are named can run.

    The built-in tools are gone but for those in `allowed_tools`, anything else is denied, settings on disk are not
    read, and `@path` in a prompt reads no file (unless `verbatim_prompts=False`). The jars end with the query or client
    that the options are used for.

    Args:
        policy: What the code may do, as for `Sandbox`.
        allowed_tools: Names of other tools: `WebSearch`, `mcp__github__search`, or all of a server, `mcp__github__*`.
            They run where they always run: outside of any jar.
        on_tool_request: Called with each `ToolRequest` before it runs. Returns None, `Deny(reason)` or
            `Tighten({…})`. What it raises, or asks for beyond the policy, denies the request.
        toolbox: Jars to use for several queries, instead of some of their own; it has the policy then.
        stateful: Keep variables and files between the calls of a query, also where the model names no session.
        workspace: A directory of the host's, shown copy-on-write.
        options: Anything else that `ClaudeAgentOptions` takes. `can_use_tool` is asked for each request that would
            run, after `on_tool_request`; only its plain yes is one.

    Raises:
        PolicyError: the policy can't be read, or asks for more than the managed one allows.
        UsageError: an option would open what this closes.
    """
    return _prepared(
        policy,
        allowed_tools=allowed_tools,
        on_tool_request=on_tool_request,
        toolbox=toolbox,
        stateful=stateful,
        workspace=workspace,
        options=options,
    )[0]


def _prepared(
    policy: PolicyLike,
    *,
    allowed_tools: Sequence[str] = (),
    on_tool_request: OnToolRequest | None = None,
    toolbox: Toolbox | None = None,
    stateful: bool = False,
    workspace: str | None = None,
    options: Mapping[str, Any],
) -> tuple[sdk.ClaudeAgentOptions, ToolPermission, Toolbox]:
    if toolbox is not None and (policy is not None or stateful or workspace is not None):
        raise UsageError("a toolbox has its own policy", hint="pass policy, stateful and workspace to Toolbox")
    _check_options(options, allowed_tools)
    box = toolbox or Toolbox(policy, stateful=stateful, workspace=workspace)
    given = options.get("can_use_tool")
    gate = ToolPermission(box.policy, allowed_tools, on_tool_request, Callback(given) if given is not None else None)
    served = server(box, gate, structured=False)
    if toolbox is None:
        served.lifespan = _Lifetime(box)
    servers = {**options.get("mcp_servers", {}), SERVER: {"type": "sdk", "name": SERVER, "instance": served}}
    made = sdk.ClaudeAgentOptions(
        **{
            "max_buffer_size": _BUFFER_BYTES,
            "verbatim_prompts": True,
            **options,
            "tools": [name for name in allowed_tools if not name.startswith("mcp__")],
            "allowed_tools": [],
            "mcp_servers": servers,
            "strict_mcp_config": True,
            "setting_sources": [],
            "can_use_tool": _last_word(gate),
            "hooks": _hooks(gate, options.get("hooks")),
        }
    )
    return made, gate, box


class _Lifetime:
    """Jars that wait while the command starts, and are gone when the last query that uses them is."""

    def __init__(self, box: Toolbox) -> None:
        self._box, self._users = box, 0
        self._lock = threading.Lock()
        """Held while they are ended: the next query, of whichever thread, has to wait, or it would lose its own."""

    @asynccontextmanager
    async def __call__(self, _server: Any) -> AsyncIterator[dict[str, Any]]:
        await anyio.to_thread.run_sync(self._enter)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._warm)
                yield {}
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._leave)

    def _enter(self) -> None:
        with self._lock:
            self._users += 1

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self._box.close()

    async def _warm(self) -> None:
        with contextlib.suppress(BelljarError):  # told by the call that then needs it
            await anyio.to_thread.run_sync(self._box.warm)


def _check_options(options: Mapping[str, Any], allowed: Sequence[str]) -> None:
    _check_allowed(allowed)
    known = {field.name for field in fields(sdk.ClaudeAgentOptions)}
    for name in options:
        if name in _OURS:
            raise UsageError(f"{name} can't be set here", hint=_OURS[name])
        if name not in known:
            raise UsageError(f"ClaudeAgentOptions has no {name!r}")
    if options.get("permission_mode") not in _MODES:
        raise UsageError(
            f"permission_mode can't be {options['permission_mode']!r} here", hint="name the tools in allowed_tools"
        )
    extra = options.get("extra_args", {})
    if not isinstance(extra, Mapping):
        raise UsageError("extra_args is a mapping", hint="leave it out")
    if unknown := set(extra) - _EXTRA:
        raise UsageError(f"extra_args can't have {min(unknown)!r} here", hint="it could open what this closes")
    servers = options.get("mcp_servers", {})
    if not isinstance(servers, dict):
        raise UsageError("mcp_servers is a mapping here, no file", hint="pass {'name': {…}}")
    if SERVER in servers:
        raise UsageError(f"the server {SERVER!r} is belljar's", hint="give yours another name")


def _check_allowed(allowed: object) -> None:
    """What would stand for several tools, or for a part of one, is judged nowhere: it must not look as if it were."""
    if isinstance(allowed, str) or not isinstance(allowed, Sequence):
        raise UsageError("allowed_tools is a list of names", hint=f"allowed_tools=[{allowed!r}]" if allowed else "[]")
    for name in allowed:
        if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
            raise UsageError(
                f"allowed_tools can't have {name!r}: wanted the whole name of a tool",
                hint="such as 'WebSearch', 'mcp__github__search', or all of a server: 'mcp__github__*'; "
                "on_tool_request looks at what a tool is asked for",
            )


def _hooks(gate: ToolPermission, given: Mapping[Any, Any] | None) -> dict[Any, Any]:
    """The gate first; the caller's own hooks before a tool block when they fail, too."""
    hooks = {event: list(matchers) for event, matchers in (given or {}).items()}
    own = [
        sdk.HookMatcher(matcher=matcher.matcher, hooks=matcher.hooks, timeout=matcher.timeout, on_failure="block")
        for matcher in hooks.get("PreToolUse", [])
    ]
    first = sdk.HookMatcher(hooks=[gate.before], timeout=_ANSWER_SECONDS, on_failure="block")  # type: ignore[list-item]
    hooks["PreToolUse"] = [first, *own]
    after = sdk.HookMatcher(hooks=[gate.after], on_failure="block")  # type: ignore[list-item]
    hooks["PostToolBatch"] = [after, *hooks.get("PostToolBatch", [])]
    return hooks


def _last_word(gate: ToolPermission) -> Any:
    """What the command asks where the hook's yes was not enough for it: it lets through only what the hook did."""

    async def can_use_tool(name: str, _arguments: dict[str, Any], context: Any) -> Any:
        if gate.names(name) and gate.was_let_through(context.tool_use_id):
            return sdk.PermissionResultAllow()
        return sdk.PermissionResultDeny(message="Denied by belljar: this request did not pass its gate")

    return can_use_tool


# --- a query, and a client ---


def overridden(policy: PolicyLike, override: Mapping[str, Any] | str | Policy | None) -> PolicyLike:
    """A policy with another over it: a mapping's keys are laid over, anything else takes its place."""
    if override is None:
        return policy
    if not isinstance(override, Mapping):
        return override
    from belljar.policy.load.resolve import resolve

    if isinstance(policy, Policy):
        from belljar.policy.mapping import to_mapping

        return resolve(layers=[to_mapping(policy), override])
    if isinstance(policy, Mapping):
        return resolve(layers=[policy, override])
    return resolve(policy, layers=[override])


async def query(
    prompt: str | AsyncIterable[dict[str, Any]],
    *,
    sandbox_policy: Mapping[str, Any] | str | Policy | None = None,
    policy: PolicyLike = None,
    **options: Any,
) -> AsyncGenerator[Any, None]:
    """Ask, and yield the messages, as the SDK's `query`; code runs in jars. Leaving the loop ends them.

    Args:
        prompt: As for the SDK's.
        sandbox_policy: For this query alone: keys laid over `policy`, or another policy instead of it.
        policy: As for `sandboxed_options`, which takes the other options, too.
        options: See `sandboxed_options`.
    """
    made, _gate, _box = _prepared(overridden(policy, sandbox_policy), **_sorted(options))
    async with aclosing(sdk.query(prompt=prompt, options=made)) as messages:  # type: ignore[type-var]
        async for message in messages:
            yield message


def _sorted(options: dict[str, Any]) -> dict[str, Any]:
    names = ("allowed_tools", "on_tool_request", "toolbox", "stateful", "workspace")
    own = {name: options.pop(name) for name in names if name in options}
    return {**own, "options": options}


class SandboxedClient:
    """`ClaudeSDKClient` with jars: a conversation, in which each query may have a policy of its own.

    async with SandboxedClient("aicode") as client:
        await client.query("…", sandbox_policy={"net": {"enabled": True, "allowlist": ["pypi.example"]}})
        async for message in client.receive_response():
            …

    Args:
        policy: What holds where a query says nothing else.
        options: As for `sandboxed_options`.
    """

    def __init__(self, policy: PolicyLike = None, **options: Any) -> None:
        self._options, self._gate, self._box = _prepared(policy, **_sorted(options))
        self._client = sdk.ClaudeSDKClient(self._options)
        self._answering = False

    async def __aenter__(self) -> Self:
        await self._client.connect()
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self._client.disconnect()

    @property
    def client(self) -> sdk.ClaudeSDKClient:
        """The SDK's own, for what is not here."""
        return self._client

    async def query(self, prompt: str, *, sandbox_policy: Mapping[str, Any] | str | Policy | None = None) -> None:
        """Ask. The policy holds until the answer is there, and not for the next query."""
        if self._answering:
            raise UsageError("the answer to the last query is not read yet", hint="read receive_response() to its end")
        self._gate.policy = self._policy_with(sandbox_policy)
        self._answering = True
        await self._client.query(prompt)

    def _policy_with(self, override: Mapping[str, Any] | str | Policy | None) -> Policy:
        """What is laid over the policy finds the workspace there; what takes its place needs it."""
        if override is None:
            return self._box.policy
        if not isinstance(override, Mapping):
            return self._box.under(override)
        from belljar.sandbox.run.sandbox import resolved

        wanted = overridden(self._box.policy, override)
        return resolved(wanted, backend=None, workspace=None, live=False, overrides=(), timeout=None)

    async def receive_response(self) -> AsyncGenerator[Any, None]:
        """The messages up to the answer's end."""
        async for message in self._client.receive_response():
            if isinstance(message, sdk.ResultMessage):
                self._gate.policy, self._answering = self._box.policy, False
            yield message

    async def interrupt(self) -> None:
        """Stop the answer. What runs for it is ended."""
        await self._client.interrupt()


__all__ = ["Deny", "SandboxedClient", "Tighten", "ToolRequest", "query", "sandboxed_options"]
