"""One connection from a jar, from its first bytes until a relay carries it.

The same path for all: whether an address was dialled, or a name came by CONNECT or SOCKS, what follows is a host and a
port, which are judged, and then what the client begins with.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from belljar.egress import refusal, socks
from belljar.egress.channel import Channel, reset
from belljar.egress.client_hello import Hello
from belljar.egress.decide import Verdict, decide_connection, decide_server_name, inspects, must_open
from belljar.egress.dial import UnreachableError
from belljar.egress.first_bytes import Kind
from belljar.egress.run import Closable, Run
from belljar.egress.tunnel import Tunnel
from belljar.egress.waiting import peek, until_readable, wake_when_more

if TYPE_CHECKING:
    from belljar.egress.proxy import Proxy

_FIRST_BYTES_SECONDS = 120.0
_REFUSED_SECONDS = 2.0
"""How long a refused client may take to say what it speaks, so that it can be answered in that."""
_HANDSHAKE_SECONDS = 10.0


class Conversation:
    """A connection until it is handed to a relay, or ends."""

    def __init__(self, proxy: Proxy, run: Run, sock: socket.socket, role: str) -> None:
        self._proxy = proxy
        self._run = run
        self._sock = sock
        self._server: socket.socket | None = None
        self._role = role
        self._relay: Closable | None = None
        self._host = ""
        self._port = 0
        run.add(self)
        self._task = asyncio.get_running_loop().create_task(self._converse())

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._relay is not None:
            self._relay.close()
        else:
            self._task.cancel()

    async def _converse(self) -> None:
        try:
            await self._begin()
        except OSError:
            reset(self._sock)
        except asyncio.CancelledError:
            reset(self._sock)
        finally:
            if self._relay is None:
                self._sock.close()
                if self._server is not None:
                    self._server.close()
                self._run.remove(self)

    async def _begin(self) -> None:
        if self._role == "socks":
            reached = await self._by_socks()
        else:
            self._host, self._port = self._run.dialled(self._sock)
            reached = True
        if not reached:
            return
        verdict = decide_connection(self._run.rules, self._host, self._port)
        self._run.tell("connect", self._host, self._port, verdict)
        if verdict.allowed:
            await self._allowed()
        else:
            await self._refuse(verdict)

    async def _by_socks(self) -> bool:
        handshake = socks.Handshake()
        while True:
            step = await self._next_step(handshake)
            if step is None:
                return False
            self._sock.recv(step.consumed)
            if step.reply:
                self._sock.send(step.reply)
            if step.failed:
                return False
            if step.host:
                return self._named(step.host, step.port)

    async def _next_step(self, handshake: socks.Handshake) -> socks.Step | None:
        seen = -1
        while True:
            arrived = peek(self._sock, socks.MAX_MESSAGE)
            if arrived is not None:
                if len(arrived) == seen:
                    return None
                seen = len(arrived)
                step = handshake.step(arrived)
                if step is not None or not arrived:
                    wake_when_more(self._sock, 0)
                    return step
                wake_when_more(self._sock, seen)
            if await until_readable(self._sock, seconds=_HANDSHAKE_SECONDS) is None:
                return None

    def _named(self, host: bytes, port: int) -> bool:
        """Judge what a SOCKS client named, and tell it."""
        verdict, self._host = self._run.judge_name(host)
        self._port = port
        if verdict.allowed:
            self._run.names.addresses(self._host)
            verdict = decide_connection(self._run.rules, self._host, port)
        if not verdict.allowed:
            self._run.tell("connect", self._host, port, verdict)
        self._sock.send(socks.reply(socks.SUCCEEDED if verdict.allowed else socks.NOT_ALLOWED))
        return verdict.allowed

    async def _allowed(self) -> None:
        looked_into = inspects(self._run.rules, self._host, self._port)
        if not looked_into:
            try:
                self._server = await self._proxy.dialler.dial(self._run.rules, self._host, self._port)
            except UnreachableError as error:
                self._run.tell("connect", self._host, self._port, error.verdict)
                await self._refuse(error.verdict)
                return
        kind, hello = await self._proxy.first_bytes.look(self._sock, self._server, seconds=_FIRST_BYTES_SECONDS)
        if kind is Kind.TLS:
            assert hello is not None
            await self._tls(hello)
        elif kind is Kind.ENDED and self._server is None:
            return
        elif kind is Kind.BAD_TLS or (looked_into and kind is not Kind.HTTP):
            reason = "bad-request" if kind is Kind.BAD_TLS else "not-http"
            self._run.tell("tls", self._host, self._port, Verdict(allowed=False, reason=reason))
            reset(self._sock)
        else:
            self._tunnel()

    async def _tls(self, hello: Hello) -> None:
        verdict = decide_server_name(self._run.rules, self._host, self._port, hello.server_name)
        self._run.tell("tls", self._host, self._port, verdict)
        if not verdict.allowed or must_open(self._run.rules, self._host, self._port):
            reset(self._sock)
            return
        self._tunnel()

    def _tunnel(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._server is not None
        tunnel = Tunnel(Channel(self._sock, loop), Channel(self._server, loop), on_closed=self._closed)
        self._relay = tunnel
        tunnel.start()

    def _closed(self) -> None:
        assert isinstance(self._relay, Tunnel)
        out, into = self._relay.server.sent, self._relay.client.sent
        self._run.tell("closed", self._host, self._port, Verdict(allowed=True), out=out, into=into)
        self._run.remove(self)

    async def _refuse(self, verdict: Verdict) -> None:
        """Say no in the client's own language."""
        kind, _hello = await self._proxy.first_bytes.look(self._sock, None, seconds=_REFUSED_SECONDS)
        if kind is Kind.HTTP:
            with contextlib.suppress(BlockingIOError):
                self._sock.send(refusal.response(verdict, host=self._host, port=self._port))
            self._sock.shutdown(socket.SHUT_WR)
            return
        reset(self._sock)
