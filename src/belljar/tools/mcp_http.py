"""The server over streamable HTTP: for clients that have its token, and say that they speak to it."""

from __future__ import annotations

import asyncio
import hmac
import json
import resource
import signal
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import UNSUPPORTED_PROTOCOL_VERSION
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from uvicorn.protocols.http.h11_impl import H11Protocol

from belljar.errors import PrerequisiteError, UsageError
from belljar.tools.mcp_server import server
from belljar.tools.toolbox import Toolbox

PATH = "/mcp"
_SHORTEST_TOKEN = 16
_MOST_BODY = 32 << 20
_MOST_SESSIONS = 100
_MOST_CONNECTIONS, _MOST_STRANGERS = 512, 128
"""Connections in all, and those that have not shown the token yet."""
_STRANGER_SECONDS = 10.0
"""Seconds for a client to send a request with the token, from the moment it connects."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Admission:
    """Keeps clients that do not show the token from using up the server's file descriptors.

    To connect and say nothing, or to say it byte by byte, costs a client nothing. So strangers have little time and few
    places: when all are taken, the one that came first has to go. A client that sends its request at once gets in.
    """

    def __init__(self, token: str, *, most: int = _MOST_CONNECTIONS, strangers: int = _MOST_STRANGERS) -> None:
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if files != resource.RLIM_INFINITY:  # the jars of sessions need some, too
            most, strangers = min(most, files // 2), min(strangers, files // 4)
        self._wanted = b"Bearer " + token.encode()
        self._most, self._most_strangers = most, strangers
        self._strangers: dict[asyncio.Protocol, Callable[[], None]] = {}
        self._friends: set[asyncio.Protocol] = set()

    def has_token(self, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Return True if a request has the token, once."""
        given = [value for name, value in headers if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._wanted)

    def opened(self, client: asyncio.Protocol, close: Callable[[], None]) -> None:
        """Take a new connection in, which is a stranger's."""
        self._strangers[client] = close
        if len(self._strangers) > self._most_strangers or len(self._strangers) + len(self._friends) > self._most:
            first = next(iter(self._strangers))
            self._strangers.pop(first)()

    def knows(self, client: asyncio.Protocol) -> bool:
        """Return True if the connection has shown the token."""
        return client in self._friends

    def shown(self, client: asyncio.Protocol) -> None:
        """The connection has shown the token: it may stay."""
        self._strangers.pop(client, None)
        self._friends.add(client)

    def closed(self, client: asyncio.Protocol) -> None:
        """Forget a connection."""
        self._strangers.pop(client, None)
        self._friends.discard(client)

    def protocol(self) -> type[H11Protocol]:
        """What uvicorn makes of each connection."""
        admission = self

        class Guarded(H11Protocol):
            _patience: asyncio.TimerHandle | None = None

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                self._patience = self.loop.call_later(_STRANGER_SECONDS, transport.abort)
                admission.opened(self, transport.abort)

            def connection_lost(self, exc: Exception | None) -> None:
                self._no_hurry()
                admission.closed(self)
                super().connection_lost(exc)

            def data_received(self, data: bytes) -> None:
                super().data_received(data)
                if not admission.knows(self) and self.headers and admission.has_token(self.headers):
                    self._no_hurry()
                    admission.shown(self)

            def _no_hurry(self) -> None:
                if self._patience is not None:
                    self._patience.cancel()

        return Guarded


class BearerOnly:
    """Answers 401 to whoever does not have the token, before anything else looks at the request."""

    def __init__(self, app: App, admission: Admission) -> None:
        self._app, self._admission = app, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; what is none of HTTP's (the start and the end of the server) passes."""
        if scope["type"] == "http":
            if not self._admission.has_token(scope["headers"]):
                headers = [(b"www-authenticate", b"Bearer"), (b"content-length", b"0"), (b"connection", b"close")]
                await send({"type": "http.response.start", "status": 401, "headers": headers})
                await send({"type": "http.response.body", "body": b""})
                return
        elif scope["type"] != "lifespan":
            return
        await self._app(scope, receive, send)


class ConnectionsOnly:
    """Refuses the versions of the protocol in which each request stands alone.

    Clients share the token, so it is the connection, by an id that the server made up, which says whose a session or a
    file is. A request that belongs to none would be everybody's, or whose it says. Clients fall back to older versions.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        headers = scope.get("headers", ())
        given = [value.decode("latin-1") for name, value in headers if name == b"mcp-protocol-version"]
        if refused := [version for version in given if version not in HANDSHAKE_PROTOCOL_VERSIONS]:
            await _send_json(send, 400, _unsupported(refused[0][:100]))
        else:
            await self._app(scope, receive, send)


def _unsupported(version: str) -> dict[str, Any]:
    """What the protocol has for this: clients read from it which versions they may try."""
    supported = {"supported": list(HANDSHAKE_PROTOCOL_VERSIONS), "requested": version}
    message = "Unsupported protocol version: this server keeps sessions, so a client has to initialize one"
    return {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": UNSUPPORTED_PROTOCOL_VERSION, "message": message, "data": supported},
    }


async def _send_json(send: Send, status: int, told: dict[str, Any]) -> None:
    body = json.dumps(told).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def listen(host: str, port: int) -> socket.socket:
    """A socket there. Raises PrerequisiteError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()  # a port that is bound and not listened on could be taken by another user, and get the token
    except OSError as error:
        listener.close()
        raise PrerequisiteError(
            f"{host}:{port} can't be listened on: {error.strerror}", hint="choose another port: --http 0 takes any"
        ) from error
    return listener


def check_token(token: str) -> None:
    """Raises UsageError for one that could be guessed, or can't be in a header."""
    if len(token) < _SHORTEST_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"the token is shorter than {_SHORTEST_TOKEN} characters, or not plain ASCII",
            hint="leave it out, and one is made",
        )


def serve(toolbox: Toolbox, listener: socket.socket, token: str, *, names: Sequence[str] = ()) -> None:
    """Serve until interrupted. SIGINT and SIGTERM are raised again once clients are answered; SIGHUP is not.

    Args:
        toolbox: What answers.
        listener: Where.
        token: What a client has to have.
        names: Hosts by which clients may call this one, besides its own address, each with its port if it has one.
    """
    check_token(token)
    hosts = [*_own_names(listener), *names]
    security = TransportSecuritySettings(
        allowed_hosts=hosts, allowed_origins=[f"{scheme}://{host}" for host in hosts for scheme in ("http", "https")]
    )
    app = server(toolbox).streamable_http_app(
        streamable_http_path=PATH,
        transport_security=security,
        max_request_body_size=_MOST_BODY,
        max_sessions=_MOST_SESSIONS,
    )
    admission = Admission(token)
    config = uvicorn.Config(
        BearerOnly(ConnectionsOnly(app), admission),
        http=admission.protocol(),
        log_level="warning",
        access_log=False,
        ws="none",
        timeout_graceful_shutdown=2,
    )
    served = uvicorn.Server(config)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, served.handle_exit)
    served.run(sockets=[listener])


def _own_names(listener: socket.socket) -> list[str]:
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    loopback = ["localhost"] if host in ("127.0.0.1", "::1") else []
    return [f"{name}:{port}" for name in (shown, *loopback)]
