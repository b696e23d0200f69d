"""The tools as a server of the Model Context Protocol, made with its own SDK: whichever transport it then speaks."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from belljar import __version__
from belljar.errors import BelljarError, PrerequisiteError
from belljar.tools.answers import ToolAnswer, plain
from belljar.tools.calls import Call
from belljar.tools.definitions import SERVER, TOOLS
from belljar.tools.handle_store import StoredFile
from belljar.tools.toolbox import Toolbox

try:
    import anyio
    import anyio.to_thread
    import mcp_types as types
    from mcp.server import Server, ServerRequestContext
    from mcp.shared.exceptions import MCPError
    from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
except ImportError as error:  # pragma: no cover - depends on what is installed
    raise PrerequisiteError("this needs the MCP SDK", hint="pip install 'belljar[mcp]'") from error

_AT_ONCE = 16
"""Calls that are answered at the same time; others wait."""
_MOST_LISTED = 200
_TICK_SECONDS = 1.0
_SHOW_JSON = ("claude-code",)
_SCOPE = "belljar"
"""Where a connection remembers that what it has will be ended."""
_INSTRUCTIONS = (
    "Runs code in a sandbox. Use `run` for a program and `exec` for a command; name a `session` to keep variables and "
    "files between calls. What the sandbox refused is told with advice: follow it instead of trying the same again."
)
Context = ServerRequestContext[Any, Any]


class Calls:
    """Which call a request is. Another front end than plain MCP brings its own."""

    async def admitted(self, context: Context, _name: str) -> Call:
        """The call that a request stands for."""
        header = _scope(context)
        meta = dict(context.meta or {})
        tool_use = meta.get("claudecode/toolUseId")
        return Call(
            client="mcp",
            session=header,
            tool_use=str(tool_use if tool_use is not None else context.request_id),
            scope=header,
        )


def _scope(context: Context) -> str:
    """Whose sessions and files are meant: a connection's own, over HTTP; elsewhere there is one client.

    Raises:
        MCPError: the request belongs to no connection. Only of one that does is the id checked before it comes here.
    """
    if context.request is None:
        return ""
    found = str(context.request.headers.get("mcp-session-id", ""))
    if not found or context.protocol_version not in HANDSHAKE_PROTOCOL_VERSIONS:
        raise MCPError(types.INVALID_REQUEST, "this server keeps sessions, so a client has to initialize one")
    return found


def server(toolbox: Toolbox, calls: Calls | None = None, *, structured: bool = True) -> Server[Any]:
    """A server for the toolbox, which stays its caller's to close. `structured`: answers are JSON, too."""
    made = _Handlers(toolbox, calls or Calls(), structured=structured)
    return Server(
        SERVER,
        version=__version__,
        title="belljar",
        instructions=_INSTRUCTIONS,
        on_list_tools=made.list_tools,
        on_call_tool=made.call_tool,
        on_list_resources=made.list_resources,
        on_read_resource=made.read_resource,
    )


class _Handlers:
    def __init__(self, toolbox: Toolbox, calls: Calls, *, structured: bool) -> None:
        self._toolbox, self._calls, self._structured = toolbox, calls, structured
        self._threads: anyio.CapacityLimiter | None = None

    def _gives_json(self, context: Context) -> bool:
        """Not to a client that shows its model the JSON instead of the text, and of images nothing."""
        who = context.session.client_params
        return self._structured and (who is None or who.client_info.name not in _SHOW_JSON)

    async def list_tools(self, context: Context, _params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        gives_json = self._gives_json(context)
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    title=tool.title,
                    description=tool.description,
                    input_schema=tool.input_schema,
                    output_schema=tool.output if gives_json else None,
                    annotations=types.ToolAnnotations(
                        read_only_hint=tool.reads_only, destructive_hint=tool.name == "reset", open_world_hint=False
                    ),
                )
                for tool in TOOLS
            ]
        )

    async def call_tool(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Answer it. When the client cancels the request, what runs for it is ended."""
        if self._threads is None:
            self._threads = anyio.CapacityLimiter(_AT_ONCE)
        try:
            call = await self._calls.admitted(context, params.name)
        except BelljarError as error:
            return _result(ToolAnswer(f"[{error.message}]", is_error=True), gives_json=False)
        if call.scope:
            self._end_with_its_connection(context, call.scope)
        given = params.arguments or {}
        try:
            async with anyio.create_task_group() as tasks:
                if context.meta and context.meta.get("progress_token") is not None:
                    tasks.start_soon(self._progress, context, call)
                answer = await anyio.to_thread.run_sync(
                    self._toolbox.call, params.name, given, call, limiter=self._threads, abandon_on_cancel=True
                )
                tasks.cancel_scope.cancel()
        finally:
            call.cancel("abandoned")
        return _result(answer, gives_json=self._gives_json(context))

    def _end_with_its_connection(self, context: Context, scope: str) -> None:
        """What a connection had ends with it: when the client says so, is silent for long, or the server stops."""
        connection = context.session._connection  # noqa: SLF001 - the SDK shows handlers no other way to its exit_stack
        if _SCOPE in connection.state:
            return
        connection.state[_SCOPE] = scope

        async def end() -> None:
            await anyio.to_thread.run_sync(self._toolbox.end_scope, scope)

        connection.exit_stack.push_async_callback(end)

    async def _progress(self, context: Context, call: Call) -> None:
        """Tell how long it has run, and how much it has printed, while it does."""
        limit = (call.policy or self._toolbox.policy).proc.timeout_seconds
        while True:
            await anyio.sleep(_TICK_SECONDS)
            seconds = time.monotonic() - call.began
            message = f"has run for {seconds:.0f} s, and printed {call.output_bytes:,} bytes"
            await context.session.report_progress(seconds, limit, message)

    async def list_resources(
        self, context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        files = self._toolbox.handles.files(scope=_scope(context))[:_MOST_LISTED]
        return types.ListResourcesResult(
            resources=[
                types.Resource(uri=kept.handle, name=plain(kept.name), mime_type=kept.mime, size=len(kept.data))
                for kept in files
            ]
        )

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        kept = self._toolbox.handles.get(str(params.uri), scope=_scope(context))
        if kept is None:
            raise MCPError(types.INVALID_PARAMS, f"{json.dumps(str(params.uri)[:200])} is not kept, or not any more")
        return types.ReadResourceResult(contents=[_content(kept)])


def _content(kept: StoredFile) -> types.TextResourceContents | types.BlobResourceContents:
    if kept.mime == "text/plain":
        return types.TextResourceContents(uri=kept.handle, mime_type=kept.mime, text=kept.text)
    blob = base64.b64encode(kept.data).decode()
    return types.BlobResourceContents(uri=kept.handle, mime_type=kept.mime, blob=blob)


def _result(answer: ToolAnswer, *, gives_json: bool) -> types.CallToolResult:
    content: list[types.ContentBlock] = [types.TextContent(type="text", text=answer.text)]
    content += [
        types.ImageContent(type="image", data=base64.b64encode(data).decode(), mime_type=mime)
        for mime, data in answer.images
    ]
    if gives_json:
        content += [
            types.ResourceLink(
                type="resource_link", uri=kept.handle, name=plain(kept.name), mime_type=kept.mime, size=len(kept.data)
            )
            for kept in answer.links
        ]
    structured = answer.structured if gives_json else None
    return types.CallToolResult(content=content, structured_content=structured, is_error=answer.is_error)
