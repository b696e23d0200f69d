"""Relaying HTTP/1.1: each request is parsed, judged and written anew; responses likewise.

Requests of one connection are answered in their order, one at a time; the server connection is kept for the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

import httptools

from belljar.egress import refusal
from belljar.egress.channel import HIGH_WATER, Channel, reset
from belljar.egress.decide import Verdict
from belljar.egress.dial import UnreachableError
from belljar.egress.gate import Gate, Passage
from belljar.egress.http1_messages import (
    CHUNKS_END,
    MAX_HEAD,
    Answer,
    BadMessageError,
    Head,
    Header,
    split_absolute,
)
from belljar.egress.http1_server import ServerSide
from belljar.egress.names import NameRefused
from belljar.egress.passing import Meter
from belljar.egress.tunnel import Tunnel

_IDLE_SECONDS = 300.0
_HEAD_SECONDS = 60.0
_AT_ONCE = 16
_PIECE = 1 << 10
_CHUNKS_PIECE = 4 << 10
_REPEATABLE = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class Reach(Protocol):
    """What the relay needs of the connection that it serves."""

    async def reach(self, host: str, port: int) -> Channel:
        """A connection to a server. Raises UnreachableError."""

    def judge_place(self, host: str, port: int) -> Verdict:
        """Whether a host that an absolute target names may be dialled."""

    def relay_closed(self) -> None:
        """The relay has ended."""


class _Exchange:
    """One request, until its response is complete."""

    __slots__ = ("complete", "head", "host", "left", "passage", "pieces", "port", "scanner", "sent", "stops")

    def __init__(self, head: Head) -> None:
        self.head = head
        self.pieces: list[bytes] = []
        """Its body so far, as it is sent on."""
        self.complete = False
        self.left = int(head.length or 0)
        """What is still to come of a body whose length was said."""
        self.stops = False
        self.sent = False
        self.passage: Passage | None = None
        self.scanner: Meter | None = None
        self.host = ""
        self.port = 0

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent twice: it asks only, and has no body."""
        head = self.head
        return self.complete and head.method in _REPEATABLE and head.length in (None, b"0") and not head.chunked


class Http1Relay:
    """A client's connection that speaks HTTP/1.1."""

    def __init__(self, client: Channel, gate: Gate, owner: Reach, dialled: tuple[str, int] | None) -> None:
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
        self._tunnel: Tunnel | None = None
        self._dialling: asyncio.Task[None] | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[Header] = []
        self._parsing: _Exchange | None = None
        self._current: _Exchange | None = None
        self._waiting: deque[_Exchange] = deque()
        self._out: list[bytes] = []
        self._quiet = 0
        self._bad = ""
        self._poisoned = False
        self._leftover = b""
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
            limit = _HEAD_SECONDS if self._quiet else _IDLE_SECONDS
            if now - self._since > limit:
                self._finish()

    # What the client sends

    def _data(self, data: bytes) -> None:
        self._out = []
        if not self._quiet:
            self._since = self._loop.time()
        size = self._appetite(len(data))
        if size >= len(data):
            self._feed(data)
        else:
            self._feed_in_pieces(data, size)
        if self._poisoned:  # what was begun is broken off, not ended
            self.close()
            return
        if self._out:
            self._to_server(self._out[0] if len(self._out) == 1 else b"".join(self._out))
        self._advance()

    def _feed(self, data: bytes) -> None:
        self._quiet += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as change:
            self._leftover = data[change.args[0] :]
            self._parser = httptools.HttpRequestParser(self)
            self._client.pause()
        except httptools.HttpParserError as error:
            self._bad = str(error.__context__ or error)
        if self._quiet > MAX_HEAD + len(data):
            self._bad = self._bad or "a head without end"

    def _feed_in_pieces(self, data: bytes, size: int) -> None:
        """Feed until a request waits for the one before it; the rest is kept as it is, which takes far less room."""
        at = 0
        while at < len(data) and not self._bad and not self._leftover and not self._poisoned:
            self._feed(data[at : at + size])
            at += size
            if len(self._waiting) + (self._current is not None) > 1 or self._parser_stopped:
                break
            size = self._appetite(len(data) - at)
        self._leftover += data[at:]

    def _appetite(self, available: int) -> int:
        """How many bytes to parse at once: much of a body, but not enough for a heap of small requests."""
        exchange = self._parsing
        if exchange is None or exchange.complete:
            return _PIECE
        return _CHUNKS_PIECE if exchange.head.chunked else min(available, exchange.left) or _PIECE

    @property
    def _parser_stopped(self) -> bool:
        """Whether the last request wants another protocol: what follows it can't be parsed yet."""
        return self._parsing is not None and self._parsing.stops

    def _to_server(self, data: bytes) -> None:
        meter = self._meter
        if meter is not None and not meter.spend(len(data)):
            self.close()
        if self._server is not None:
            self._server.channel.write(data)
            if self._server.channel.queued > HIGH_WATER:
                self._client.pause()

    def on_message_begin(self) -> None:
        """A request begins."""
        self._parsing, self._url, self._headers = None, b"", []

    def on_url(self, part: bytes) -> None:
        """A part of its target."""
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if self._parsing is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._quiet = 0
        head = Head(self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers)
        self._parsing = _Exchange(head)
        self._parsing.stops = self._parser.should_upgrade()
        texts = (value for header in self._headers for value in header)
        if self._gate.scans and self._gate.has_token(*(self._dialled or ("", 0)), self._url, *texts):
            raise BadMessageError("canary")
        self._waiting.append(self._parsing)

    def on_body(self, data: bytes) -> None:
        """A part of its body."""
        self._quiet = 0
        exchange = self._parsing
        assert exchange is not None
        exchange.left -= len(data)
        if self._gate.scans and not self._clean(exchange, data):
            self._poisoned = True
            return
        into = self._out if exchange.sent else exchange.pieces
        if exchange.head.chunked:
            into += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            into.append(data)

    def _clean(self, exchange: _Exchange, data: bytes) -> bool:
        if exchange.scanner is None:
            exchange.scanner = self._gate.scanner(*(self._dialled or ("", 0)))
        return exchange.scanner.clean(data)

    def on_message_complete(self) -> None:
        """It has ended."""
        self._quiet = 0
        exchange = self._parsing
        assert exchange is not None
        exchange.complete = True
        if exchange.head.chunked:
            (self._out if exchange.sent else exchange.pieces).append(CHUNKS_END)

    def _client_ended(self) -> None:
        if self._current is None and not self._waiting:
            self._finish()
        elif self._parsing is not None and not self._parsing.complete:
            self.close()

    # One request after the other

    def _advance(self) -> None:
        if self._client.queued > HIGH_WATER:  # it asks, and does not read
            self._client.pause()
            return
        for _request in range(_AT_ONCE):
            if self._current is not None or not self._waiting or self._done:
                break
            self._current = self._waiting.popleft()
            self._begin(self._current)
        if self._done:
            return
        if self._current is None and self._waiting:  # a pile of refused ones: others have their turn
            self._client.pause()
            self._loop.call_soon(self._advance)
            return
        if self._current is None and self._bad:
            self._answer_bad()
        elif self._waiting or self._bad:
            self._client.pause()
        elif self._current is None and self._leftover:
            leftover, self._leftover = self._leftover, b""
            self._data(leftover)
        elif self._current is None and self._client.ended:
            self._finish()
        else:
            self._resume()

    def _begin(self, exchange: _Exchange) -> None:
        head = exchange.head
        try:
            refused = self._place(exchange)
        except (BadMessageError, NameRefused) as error:
            refused = Verdict(allowed=False, reason=getattr(error, "reason", "bad-request"), detail=str(error))
            self._gate.tell_refused(exchange.host, exchange.port, refused, head.method.decode("ascii"), head.path)
        if refused is None:
            method = head.method.decode("ascii")
            judged = self._gate.judge(exchange.host, exchange.port, method, head.target, head.authority, head.headers)
            if isinstance(judged, Passage):
                exchange.passage = judged
                exchange.pieces.insert(0, head.send_on(judged.headers, judged.target))
                self._send(exchange)
                return
            refused = judged
        self._refuse(exchange, refused)

    def _place(self, exchange: _Exchange) -> Verdict | None:
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

    def _send(self, exchange: _Exchange) -> None:
        server = self._server
        if server is not None and server.open and (server.host, server.port) == (exchange.host, exchange.port):
            exchange.sent = True
            pieces, exchange.pieces = exchange.pieces, exchange.pieces[:1]
            assert exchange.passage is not None
            data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            server.request(exchange.head, data, exchange.passage.reflected)
            if exchange.passage.meter is not None and not exchange.passage.meter.spend(len(data)):
                self.close()
            return
        self._drop_server()
        self._client.pause()
        self._dialling = self._loop.create_task(self._dial(exchange))

    async def _dial(self, exchange: _Exchange) -> None:
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

    def _refuse(self, exchange: _Exchange, verdict: Verdict) -> None:
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
        verdict = Verdict(allowed=False, reason="bad-request", detail=self._bad)
        self._gate.tell_refused(host, port, verdict)
        self._client.write(refusal.response(verdict, host=host, port=port))
        self._finish()

    # What the server sends

    @property
    def _meter(self) -> Meter | None:
        current = self._current
        return current.passage.meter if current is not None and current.passage is not None else None

    def from_server(self, data: bytes) -> None:
        """Part of the response."""
        meter = self._meter
        if meter is not None and not meter.spend(len(data)):
            self.close()
            return
        self._client.write(data)
        if self._client.queued > HIGH_WATER and self._server is not None:
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
        if self._done or self._waiting or self._bad or self._leftover:
            return
        if server is not None and server.channel.queued > HIGH_WATER:
            return
        if current is None or (current.sent and not current.head.upgrade):
            self._client.start()

    def answered(self, answer: Answer) -> None:
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
        self._tunnel = Tunnel(self._client, self._server.channel, on_closed=self._gone, meter=self._meter)
        self._tunnel.start()
        leftover, self._leftover = self._leftover, b""
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
