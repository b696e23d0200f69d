"""Relaying HTTP/1.1: each request is parsed, judged and written anew; responses likewise.

Requests of one connection are answered in their order, one at a time; the server connection is kept for the next.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Protocol

from belljar.egress.decide import refusal
from belljar.egress.decide.names import NameRefused
from belljar.egress.decide.steps import Verdict
from belljar.egress.protocols.http1_messages import BadMessageError, ResponseHead, split_absolute
from belljar.egress.proxy.channel import Channel, reset
from belljar.egress.proxy.dial import UnreachableError
from belljar.egress.proxy.relay.http1_client import Exchange, RequestReader
from belljar.egress.proxy.relay.http1_server import ServerSide
from belljar.egress.proxy.relay.passing import ByteMeter
from belljar.egress.proxy.relay.request_check import Passage, RequestCheck
from belljar.egress.proxy.relay.websocket import WebSocketTunnel
from belljar.egress.proxy.time_slices import Errand

_IDLE_SECONDS = 300.0
_HEAD_SECONDS = 60.0
_AT_ONCE = 4


class Reach(Protocol):
    """What the relay needs of the connection that it serves."""

    async def reach(self, host: str, port: int) -> Channel:
        """A connection to a server. Raises UnreachableError."""

    def judge_place(self, host: str, port: int) -> Verdict:
        """Whether a host that an absolute target names may be dialled."""

    def relay_closed(self) -> None:
        """The relay has ended."""


class Http1Relay:
    """A client's connection that speaks HTTP/1.1."""

    def __init__(self, client: Channel, gate: RequestCheck, owner: Reach, dialled: tuple[str, int] | None) -> None:
        """`dialled` is the host and port that the client connected to; None for one that uses us as its proxy."""
        self.bytes_out = 0
        self.bytes_in = 0
        self._client = client
        self._gate = gate
        self._owner = owner
        self._dialled = dialled
        self._judged: tuple[str, int] | None = None
        """What an absolute target named last, and may."""
        self._loop = asyncio.get_running_loop()
        self._server: ServerSide | None = None
        self._tunnel: WebSocketTunnel | None = None
        self._dialling: Errand | None = None
        self._requests = RequestReader(gate, dialled or ("", 0))
        self._current: Exchange | None = None
        self._done = False
        self._since = self._loop.time()

    def start(self, server: Channel | None = None) -> None:
        """Begin; with the connection to the server, if there is one already."""
        client = self._client
        client.on_data, client.on_end, client.on_lost = self._data, self._client_ended, self.close
        client.on_drained = self._client_drained
        client.on_gone = self._gone
        if server is not None:
            assert self._dialled is not None
            self._server = ServerSide(server, *self._dialled, self)
        client.start()

    def check(self, now: float) -> None:
        """End it if it has idled, or is too slow with a head."""
        if self._current is None and self._tunnel is None:
            limit = _HEAD_SECONDS if self._requests.quiet else _IDLE_SECONDS
            if now - self._since > limit:
                self._finish()

    # What the client sends

    def _data(self, data: bytes) -> None:
        requests = self._requests
        if not requests.quiet:
            self._since = self._loop.time()
        requests.take(data, 0 if self._current is None else 1)
        if requests.poisoned:  # what was begun is broken off, not ended
            self.close()
            return
        if requests.stopped:
            self._client.pause()
        out = requests.out
        if out:
            requests.out = []
            self._to_server(out[0] if len(out) == 1 else b"".join(out))
        self._advance()

    def _to_server(self, data: bytes) -> None:
        meter = self._meter
        if meter is not None and not meter.spend(len(data)):
            self.close()
            return
        if self._server is not None:
            self._server.channel.write(data)
            if self._server.channel.full:
                self._client.pause()

    def _client_ended(self) -> None:
        if self._current is None and not self._requests.waiting:
            self._finish()
        elif self._requests.within:
            self.close()

    # One request after the other

    def _advance(self) -> None:
        requests = self._requests
        if self._client.full:  # it asks, and does not read
            self._client.pause()
            return
        for _request in range(_AT_ONCE):
            if self._current is not None or not requests.waiting or self._done:
                break
            self._current = requests.waiting.popleft()
            self._begin(self._current)
        if self._done:
            return
        if self._current is None and requests.waiting:  # a pile of refused ones: others have their turn
            self._client.pause()
            self._gate.turns.soon(self._advance)
            return
        if self._current is None and requests.bad:
            self._answer_bad()
        elif requests.waiting or requests.bad:
            self._client.pause()
        elif self._current is None and requests.leftover:
            leftover, requests.leftover = requests.leftover, b""
            self._data(leftover)
        elif self._current is None and self._client.ended:
            self._finish()
        else:
            self._resume()

    def _begin(self, exchange: Exchange) -> None:
        head = exchange.head
        try:
            refused = self._place(exchange)
        except (BadMessageError, NameRefused) as error:
            refused = Verdict(allowed=False, reason=getattr(error, "reason", "bad-request"), detail=str(error))
            self._gate.tell_refused(exchange.host, exchange.port, refused, head.method.decode("ascii"), head.path)
        if refused is None:
            method = head.method.decode("ascii")
            said = (method, head.target, head.authority, head.headers)
            judged = self._gate.judge(exchange.host, exchange.port, *said, body=head.has_body)
            if isinstance(judged, Passage):
                exchange.passage = judged
                exchange.pieces.insert(0, head.send_on(judged.headers, judged.target))
                self._send_recorded(exchange)
                return
            refused = judged
        self._refuse(exchange, refused)

    def _place(self, exchange: Exchange) -> Verdict | None:
        """Find the host and port that the request is for; a refusal when it may not be."""
        absolute = split_absolute(exchange.head.target)
        if absolute is not None:
            exchange.host, exchange.port, exchange.head.target = absolute
        if self._dialled is None:
            if absolute is None:
                raise BadMessageError("a proxy is asked with an absolute URI, or with CONNECT")
            if (exchange.host, exchange.port) == self._judged:
                return None
            verdict = self._owner.judge_place(exchange.host, exchange.port)
            if not verdict.allowed:
                return verdict
            self._judged = exchange.host, exchange.port
            return None
        if absolute is not None and (exchange.host, exchange.port) != self._dialled:
            detail = f"{exchange.host}:{exchange.port}"
            exchange.host, exchange.port = self._dialled
            verdict = Verdict(allowed=False, reason="authority-mismatch", detail=detail)
            self._gate.tell_refused(*self._dialled, verdict, exchange.head.method.decode("ascii"), exchange.head.path)
            return verdict
        exchange.host, exchange.port = self._dialled
        return None

    def _send_recorded(self, exchange: Exchange) -> None:
        """Send it on, but not before it is in the audit log that it may be."""
        assert exchange.passage is not None
        if self._gate.recorded(exchange.passage):
            self._send(exchange)
        elif verdict := self._gate.refusal:
            self._refuse(exchange, verdict)
        else:
            self._client.pause()
            self._gate.when_answered(exchange.passage, partial(self._answered, exchange))

    def _answered(self, exchange: Exchange) -> None:
        if self._current is exchange and not self._done:
            self._send_recorded(exchange)
            if self._current is exchange:
                self._resume()
            else:
                self._advance()

    def _send(self, exchange: Exchange) -> None:
        server = self._server
        if server is not None and server.open and (server.host, server.port) == (exchange.host, exchange.port):
            exchange.sent = True
            pieces, exchange.pieces = exchange.pieces, exchange.pieces[:1]
            assert exchange.passage is not None
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            if exchange.passage.meter is not None and not exchange.passage.meter.spend(len(data)):
                self.close()
                return
            server.request(exchange.head, data, exchange.passage.reflected)
            return
        self._drop_server()
        self._client.pause()
        self._dialling = Errand(self._gate.turns, self._dial(exchange))

    async def _dial(self, exchange: Exchange) -> None:
        try:
            channel = await self._owner.reach(exchange.host, exchange.port)
        except UnreachableError as error:
            self._refuse(exchange, error.verdict)
            self._advance()
            return
        except OSError:
            self.close()
            return
        self._server = ServerSide(channel, exchange.host, exchange.port, self)
        self._send(exchange)
        self._resume()

    def _refuse(self, exchange: Exchange, verdict: Verdict) -> None:
        """Answer in the server's stead. A body that is still on its way is not waited for."""
        head = exchange.head
        close = not head.keep_alive or not exchange.complete or verdict.reason == "bad-request"
        path = head.path if verdict.reason != "bad-request" else ""
        self._client.write(
            refusal.response(
                verdict,
                host=exchange.host,
                port=exchange.port,
                method=head.method.decode("ascii"),
                path=path,
                close=close,
            )
        )
        self._current = None
        if close:
            self._finish()

    def _answer_bad(self) -> None:
        host, port = self._dialled or ("", 0)
        verdict = Verdict(allowed=False, reason="bad-request", detail=self._requests.bad)
        self._gate.tell_refused(host, port, verdict)
        self._client.write(refusal.response(verdict, host=host, port=port))
        self._finish()

    # What the server sends

    @property
    def _meter(self) -> ByteMeter | None:
        current = self._current
        return current.passage.meter if current is not None and current.passage is not None else None

    def from_server(self, data: bytes) -> None:
        """Part of the response."""
        meter = self._meter
        if meter is not None and not meter.spend(len(data)):
            self.close()
            return
        self._client.write(data)
        if self._client.full and self._server is not None:
            self._server.channel.pause()

    def _client_drained(self) -> None:
        if self._server is not None:
            self._server.channel.start()
        if not self._done:
            self._advance()

    def server_drained(self) -> None:
        """The server takes more of the request."""
        self._resume()

    def _resume(self) -> None:
        """Read on from the client, if there is nothing that it has to wait for."""
        server, current = self._server, self._current
        requests = self._requests
        if self._done or requests.waiting or requests.bad or requests.leftover:
            return
        if server is not None and server.channel.full:
            return
        if current is None or (current.sent and not current.head.upgrade):
            self._client.start()

    def answered(self, answer: ResponseHead) -> None:
        """The response is complete."""
        exchange = self._current
        assert exchange is not None
        self._current = None
        self._since = self._loop.time()
        if answer.ends_connection(exchange.head) or not exchange.complete:
            self._finish()
            return
        self._advance()

    def upgraded(self, rest: bytes) -> None:
        """WebSocket: from here on bytes are carried as they come."""
        assert self._server is not None
        current = self._current
        self._tunnel = WebSocketTunnel(
            self._client,
            self._server.channel,
            on_closed=self._gone,
            meter=self._meter,
            watch=self._gate.watch(self._server.host, self._server.port),
            reflected=current.passage.reflected if current is not None and current.passage is not None else (),
        )
        self._tunnel.start()
        leftover, self._requests.leftover = self._requests.leftover, b""
        if leftover:
            self._client.on_data(leftover)
        if rest:
            self._server.channel.on_data(rest)

    def failed(self, detail: str) -> None:
        """The server is gone, or talks nonsense."""
        exchange, server = self._current, self._server
        assert exchange is not None
        assert server is not None
        if server.answer is not None:
            if server.answer.ends_connection(exchange.head):
                self.close()  # a reset, or the client would take what it has for the whole
            else:
                self._finish()
        elif server.used > 1 and exchange.repeatable:
            self._send(exchange)  # it was kept open for a next request, and closed at the same moment
        elif server.used > 1:
            self.close()
        else:
            self._refuse(exchange, Verdict(allowed=False, reason="upstream", detail=detail))
            self._advance()

    # The end

    def _drop_server(self) -> None:
        if self._server is not None:
            self.bytes_out += self._server.channel.sent
            self.bytes_in += self._server.channel.received
            self._server.close()
            self._server = None

    def _finish(self) -> None:
        if not self._done:
            self._done = True
            self._drop_server()
            self._client.finish()

    def close(self) -> None:
        """End at once."""
        self._done = True
        if self._dialling is not None:
            self._dialling.cancel()
        if self._tunnel is not None:
            self._tunnel.close()
            return
        if self._server is not None:
            reset(self._server.channel.sock)
        self._drop_server()
        self._client.reset()
        self._gone()

    def _gone(self) -> None:
        if self._tunnel is not None and self._server is not None and not self._server.channel.closed:
            return
        self._done = True
        self._drop_server()
        owner, self._owner = self._owner, _NOBODY
        owner.relay_closed()


class _Nobody:
    async def reach(self, _host: str, _port: int) -> Channel:
        raise AssertionError

    def judge_place(self, _host: str, _port: int) -> Verdict:
        raise AssertionError

    def relay_closed(self) -> None:
        pass


_NOBODY = _Nobody()
