"""One connection from a jar, from its first bytes until a relay carries it.

The same path for all: whether an address was dialled, or a name came by CONNECT or SOCKS, what follows is a host and a
port, which are judged, and then what the client begins with.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import TYPE_CHECKING

from belljar.egress.decide import refusal
from belljar.egress.decide.names import NameRefused, normalise
from belljar.egress.decide.steps import Verdict, decide_connection, decide_server_name, inspects, must_open, name_hidden
from belljar.egress.protocols.client_hello import BadHelloError, Greeting, Hello, HelloSearch
from belljar.egress.proxy import socks
from belljar.egress.proxy.channel import Channel, reset
from belljar.egress.proxy.connect_request import ConnectRequest, read_connect
from belljar.egress.proxy.dial import UnreachableError
from belljar.egress.proxy.first_bytes import ConnectionKind, Opening, begins_http, look
from belljar.egress.proxy.relay.http1 import Http1Relay
from belljar.egress.proxy.relay.http2 import PREFACE, Http2Relay
from belljar.egress.proxy.relay.request_check import RequestCheck
from belljar.egress.proxy.relay.tunnel import Tunnel
from belljar.egress.proxy.run import Closable, ProxiedRun
from belljar.egress.proxy.time_slices import Errand
from belljar.egress.proxy.waiting import handshake, peek, until_readable

if TYPE_CHECKING:
    from belljar.egress.proxy.proxy import Proxy

_FIRST_BYTES_SECONDS = 120.0
_REFUSED_SECONDS = 2.0
"""How long a refused client may take to say what it speaks, so that it can be answered in that."""
_HANDSHAKE_SECONDS = 15.0
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"


class Conversation:
    """A connection until it is handed to a relay, or ends."""

    def __init__(
        self, proxy: Proxy, run: ProxiedRun, sock: socket.socket, role: str, place: tuple[str, int] | None = None
    ) -> None:
        """`place` is the address and port that were dialled, where the socket itself does not know them."""
        self._proxy = proxy
        self._run = run
        self._sock = sock
        self._server: socket.socket | None = None
        self._role = role
        self._place = place
        self._relay: Closable | None = None
        self._ended_early = True
        self._host = ""
        self._port = 0
        self._tls = False
        self._loop = asyncio.get_running_loop()
        run.add(self)
        self._errand = Errand(run.turns, self._converse(), self._conversed)

    def check(self, now: float) -> None:
        """Let the relay look at the time."""
        if self._relay is not None:
            self._relay.check(now)

    def close(self) -> None:
        """End it, whatever state it is in."""
        if self._relay is not None:
            self._relay.close()
        else:
            self._errand.cancel()

    async def _converse(self) -> None:
        self._ended_early = False
        try:
            await self._begin()
        except (OSError, UnreachableError, asyncio.CancelledError):
            reset(self._sock)
        except Exception as error:  # noqa: BLE001 a fault of ours, told by the loop's handler; the connection ends
            self._loop.call_exception_handler({"message": "a connection", "exception": error})
            reset(self._sock)
            self.close()

    def _conversed(self) -> None:
        """The errand is over. One that was cancelled before its first step has done nothing itself."""
        if self._relay is None:
            if self._ended_early:
                reset(self._sock)
            self._sock.close()
            if self._server is not None:
                self._server.close()
            self._run.remove(self)

    async def _begin(self) -> None:
        if self._role == "socks":
            verdict = await self._by_socks()
        elif self._role == "http-proxy":
            verdict = await self._by_http()
        else:
            self._host, self._port = self._run.dialled(*(self._place or self._sock.getsockname()[:2]))
            verdict = decide_connection(self._run.rules, self._host, self._port)
            self._run.tell("connect", self._host, self._port, verdict)
            if not verdict.allowed:
                await self._refuse(verdict)
        if verdict is not None and verdict.allowed:
            await self._allowed()

    # The two ways of naming a host to a proxy

    async def _by_socks(self) -> Verdict | None:
        step = await socks.converse(self._sock, seconds=_HANDSHAKE_SECONDS)
        if step is None:
            return None
        verdict = self._judge_named(step.host, step.port)
        self._sock.send(socks.reply(socks.SUCCEEDED if verdict.allowed else socks.NOT_ALLOWED))
        return verdict

    async def _by_http(self) -> Verdict | None:
        request = await read_connect(self._sock, seconds=_HANDSHAKE_SECONDS)
        if request is None:
            self._relay_http1(dialled=None)
            return None
        verdict = self._judge_connect(request)
        if verdict.allowed:
            self._sock.send(_ESTABLISHED)
        else:
            self._say(refusal.response(verdict, host=self._host, port=self._port, method="CONNECT"))
        return verdict

    def _judge_connect(self, request: ConnectRequest) -> Verdict:
        if not request.host:
            verdict = Verdict(allowed=False, reason=request.reason)
            self._run.tell("connect", request.said, 0, verdict)
            self._host = request.said
            return verdict
        return self._judge_named(request.host, request.port)

    def _judge_named(self, host: str | bytes, port: int) -> Verdict:
        verdict, self._host = self._run.judge_name(host)
        self._port = port
        if verdict.allowed:
            self._run.names.addresses(self._host)
            verdict = decide_connection(self._run.rules, self._host, port)
        self._run.tell("connect", self._host, port, verdict)
        return verdict

    def judge_place(self, host: str, port: int) -> Verdict:
        """For a relay whose client names hosts in absolute targets."""
        return self._judge_named(host, port)

    # An allowed host

    async def _allowed(self) -> None:
        looked_into = inspects(self._run.rules, self._host, self._port)
        if not looked_into:
            try:
                self._server = await self._dial(self._host, self._port)
            except UnreachableError as error:
                await self._refuse(error.verdict)
                return
        kind, hello = await look(self._sock, self._server, seconds=_FIRST_BYTES_SECONDS)
        if kind is ConnectionKind.TLS:
            assert hello is not None
            await self._by_tls(hello)
        elif kind is ConnectionKind.HTTP:
            await self._by_plain_http()
        elif kind is ConnectionKind.BAD_TLS or self._server is None:
            if kind is not ConnectionKind.ENDED:
                reason = "bad-request" if kind is ConnectionKind.BAD_TLS else "not-http"
                self._run.tell("connect", self._host, self._port, Verdict(allowed=False, reason=reason))
            reset(self._sock)
        else:
            client = Channel(self._sock, self._run.turns)
            self._carry(client, Channel(self._server, self._run.turns))
            self._search_hellos(client)
            if kind is not ConnectionKind.OTHER:
                self._listen_on(client)

    def _search_hellos(self, client: Channel) -> None:
        """Judge the TLS that a client of another protocol changes to. Many such clients name no server."""
        carried, search = client.on_data, HelloSearch()

        def searched(data: bytes) -> None:
            try:
                hellos = search.feed(data)
            except BadHelloError as error:
                self._break_off(Verdict(allowed=False, reason="bad-request", detail=str(error)))
                return
            for hello in hellos:
                if not self._judge_hello(hello, optional=True):
                    return
            carried(data)

        client.on_data = searched

    def _judge_hello(self, hello: Hello, *, optional: bool = False) -> bool:
        """Return True if a ClientHello may pass on a connection that is carried, and break it off otherwise."""
        rules, host, port = self._run.rules, self._host, self._port
        verdict = Verdict(allowed=True)
        if hello.server_name is not None or not optional:
            verdict = decide_server_name(rules, host, port, hello.server_name)
        if verdict.allowed and hello.encrypted:
            verdict = name_hidden(rules, host, port)
        if not verdict.allowed:
            self._break_off(verdict, "tls")
        return verdict.allowed

    def _break_off(self, verdict: Verdict, kind: str = "connect") -> None:
        """End a connection that is carried already."""
        self._run.tell(kind, self._host, self._port, verdict)
        self.close()

    def _listen_on(self, client: Channel) -> None:
        """Judge what comes first from a client that was too slow to be waited for."""
        carried, opening = client.on_data, Opening()

        def first(data: bytes) -> None:
            kind = opening.judge(data)
            if kind in (ConnectionKind.HTTP, ConnectionKind.TLS):
                self._break_off(Verdict(allowed=False, reason="bad-request", detail="too slow a beginning"))
                return
            if kind is ConnectionKind.OTHER:
                client.on_data = carried
            carried(data)

        client.on_data = first

    async def _by_plain_http(self) -> None:
        if peek(self._sock, len(PREFACE)) != PREFACE:
            self._relay_http1(dialled=(self._host, self._port))
            return
        if self._server is None:  # a client that knows that its server speaks HTTP/2 without TLS
            self._server = await self._dial(self._host, self._port)
        self._relay_http2()

    async def _dial(self, host: str, port: int) -> socket.socket:
        try:
            await self._run.until_recorded()
            return await self._proxy.dialler.dial(self._run.rules, host, port, self._run.resolving)
        except UnreachableError as error:
            self._run.tell("connect", host, port, error.verdict)
            raise

    async def reach(self, host: str, port: int) -> Channel:
        """For a relay: a connection to a server, secured when the client's is."""
        sock = await self._dial(host, port)
        if self._tls:
            sock = await self._secure(sock, host, port, ("http/1.1",))
        return Channel(sock, self._run.turns)

    async def _secure(self, sock: socket.socket, host: str, port: int, protocols: tuple[str, ...]) -> ssl.SSLSocket:
        try:
            return await self._proxy.verifier.secure(sock, host, self._run.roots, protocols)
        except UnreachableError as error:
            self._run.tell("tls", host, port, error.verdict)
            raise

    # TLS

    async def _by_tls(self, hello: Hello) -> None:
        verdict = decide_server_name(self._run.rules, self._host, self._port, hello.server_name)
        opened = must_open(self._run.rules, self._host, self._port)
        if verdict.allowed and hello.encrypted and not opened:
            opened = True  # what it hides is addressed to a server that understands it: this end does not
            detail = "opened: the ClientHello is encrypted (ECH)"
            verdict = Verdict(allowed=True, detail=detail, rule=verdict.rule, key=verdict.key, where=verdict.where)
        self._run.tell("tls", self._host, self._port, verdict)
        if not verdict.allowed:
            await self._refuse_in_tls(verdict, hello)
        elif opened:
            await self._open(hello)
        else:
            assert self._server is not None
            await self._run.until_recorded()
            client, server = Channel(self._sock, self._run.turns), Channel(self._server, self._run.turns)
            self._carry(client, server)
            self._greet(client, server)

    def _greet(self, client: Channel, server: Channel) -> None:
        """Judge every ClientHello that is carried, the first one once more: what passes is what is judged."""
        out, into, greeting = client.on_data, server.on_data, Greeting()

        def from_client(data: bytes) -> None:
            try:
                hellos = greeting.from_client(data)
            except BadHelloError as error:
                self._break_off(Verdict(allowed=False, reason="bad-request", detail=str(error)), "tls")
                return
            for hello in hellos:
                if not self._judge_hello(hello):
                    return
            out(data)

        def from_server(data: bytes) -> None:
            if greeting.chosen(data):
                client.on_data, server.on_data = out, into
            into(data)

        client.on_data, server.on_data = from_client, from_server

    async def _open(self, hello: Hello) -> None:
        """Speak TLS with both: first with the server, so that the client is offered the protocol that it chose."""
        wanted = {"h2": ("h2", "http/1.1"), "http/1.1": ("http/1.1",)}.get(hello.protocol, ())
        try:
            sock = self._server or await self._dial(self._host, self._port)
            self._server = None
            secured = await self._secure(sock, self._host, self._port, wanted)
        except UnreachableError as error:
            await self._refuse_in_tls(error.verdict, hello)
            return
        self._server = secured
        chosen = secured.selected_alpn_protocol() or ""
        if not await self._shake_hands(self._host, chosen or "http/1.1"):
            return
        self._tls = True
        if chosen == "h2":
            self._relay_http2()
        elif chosen == "http/1.1" or inspects(self._run.rules, self._host, self._port):
            self._relay_http1(dialled=(self._host, self._port))
        else:
            self._sniff()

    async def _shake_hands(self, name: str, protocol: str) -> bool:
        context = self._run.issuer.context(name, (protocol,))
        self._sock = context.wrap_socket(self._sock, server_side=True, do_handshake_on_connect=False)
        try:
            await handshake(self._sock, seconds=_HANDSHAKE_SECONDS)
        except OSError as error:
            detail = str(getattr(error, "reason", None) or error)
            self._run.tell("tls", self._host, self._port, Verdict(allowed=False, reason="not-inspected", detail=detail))
            return False
        return True

    def _sniff(self) -> None:
        """Inside TLS that was opened for canary tokens only: requests are requests, and all else is carried."""
        assert self._server is not None
        client, server = Channel(self._sock, self._run.turns), Channel(self._server, self._run.turns)
        self._carry(client, server)
        carried = client.on_data

        def first(data: bytes) -> None:
            client.on_data = carried
            if begins_http(data) and server.received == 0:
                self._relay_http1(dialled=(self._host, self._port), ends=(client, server))
            else:
                self._listen_on(client)
            client.on_data(data)

        client.on_data = first

    # Relays

    def _relay_http1(self, *, dialled: tuple[str, int] | None, ends: tuple[Channel, Channel] | None = None) -> None:
        client = ends[0] if ends else Channel(self._sock, self._run.turns)
        server = ends[1] if ends else Channel(self._server, self._run.turns) if self._server is not None else None
        relay = Http1Relay(client, RequestCheck(self._run, tls=self._tls), self, dialled)
        self._relay = relay
        relay.start(server)

    def _relay_http2(self) -> None:
        assert self._server is not None
        ends = Channel(self._sock, self._run.turns), Channel(self._server, self._run.turns)
        relay = Http2Relay(*ends, RequestCheck(self._run, tls=self._tls), self, (self._host, self._port))
        self._relay = relay
        relay.start()

    def _carry(self, client: Channel, server: Channel) -> None:
        rule = decide_connection(self._run.rules, self._host, self._port).rule
        meter = self._run.meter(self._host, self._port, rule)
        tunnel = Tunnel(client, server, on_closed=self.relay_closed, meter=meter)
        self._relay = tunnel
        tunnel.start()

    def relay_closed(self) -> None:
        """The relay has ended: its bytes are told, and it counts no more."""
        if isinstance(self._relay, Tunnel | Http1Relay | Http2Relay):
            out, into = self._relay.bytes_out, self._relay.bytes_in
            self._run.tell("closed", self._host, self._port, Verdict(allowed=True), out=out, into=into)
        self._run.remove(self)

    # Refusals

    async def _refuse(self, verdict: Verdict) -> None:
        """Say no in the client's own language."""
        if self._server is not None:
            self._server.close()
            self._server = None
        kind, hello = await look(self._sock, None, seconds=_REFUSED_SECONDS)
        if kind is ConnectionKind.HTTP:
            self._say(refusal.response(verdict, host=self._host, port=self._port))
        elif kind is ConnectionKind.TLS:
            assert hello is not None
            await self._refuse_in_tls(verdict, hello)
        else:
            reset(self._sock)

    async def _refuse_in_tls(self, verdict: Verdict, hello: Hello) -> None:
        """Complete the handshake, only to say why not."""
        if self._server is not None:
            self._server.close()
            self._server = None
        try:
            name = normalise(hello.server_name or self._host)
        except NameRefused:
            reset(self._sock)
            return
        if not await self._shake_hands(name, "http/1.1"):
            return
        if await until_readable(self._sock, seconds=_REFUSED_SECONDS) is not None:
            self._say(refusal.response(verdict, host=self._host, port=self._port))

    def _say(self, data: bytes) -> None:
        """Send this and end, without losing it on the way."""
        farewell = _Farewell(Channel(self._sock, self._run.turns), self)
        self._relay = farewell
        farewell.say(data)


class _Farewell:
    """The last that a client hears."""

    def __init__(self, client: Channel, owner: Conversation) -> None:
        self._client = client
        client.on_gone = owner.relay_closed

    def say(self, data: bytes) -> None:
        self._client.write(data)
        self._client.finish()

    def check(self, now: float) -> None:
        """It has a timeout of its own."""

    def close(self) -> None:
        self._client.reset()
