"""The client's side of an HTTP/1.1 relay: what it sends, cut into requests."""

from __future__ import annotations

from collections import deque

import httptools

from belljar.egress.protocols.http1_messages import CHUNKS_END, MAX_HEAD, BadMessageError, Header, RequestHead
from belljar.egress.proxy.relay.passing import ByteMeter
from belljar.egress.proxy.relay.request_check import Passage, RequestCheck

_PIECE = 1 << 10
_CHUNKS_PIECE = 4 << 10
_REPEATABLE = frozenset({b"GET", b"HEAD", b"OPTIONS"})


class Exchange:
    """One request, until its response is complete."""

    __slots__ = ("complete", "head", "host", "left", "passage", "pieces", "port", "scanner", "sent", "stops")

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.pieces: list[bytes] = []
        """Its body so far, as it is sent on."""
        self.complete = False
        self.left = int(head.length or 0)
        """What is still to come of a body whose length was said."""
        self.stops = False
        self.sent = False
        self.passage: Passage | None = None
        self.scanner: ByteMeter | None = None
        self.host = ""
        self.port = 0

    @property
    def repeatable(self) -> bool:
        """Whether it may be sent twice: it asks only, and has no body."""
        head = self.head
        return self.complete and head.method in _REPEATABLE and head.length in (None, b"0") and not head.chunked


class RequestReader:
    """Parses what a client sends. Requests that are complete up to their head wait in `waiting`."""

    def __init__(self, gate: RequestCheck, dialled: tuple[str, int]) -> None:
        self._gate = gate
        self._dialled = dialled
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._headers: list[Header] = []
        self._parsing: Exchange | None = None
        self._body: list[bytes] = []
        """What has come of a body since the parser was fed: chunks of a byte are searched, and sent on, together."""
        self.waiting: deque[Exchange] = deque()
        self.out: list[bytes] = []
        """What came of the body of a request that is being sent on already; the relay empties it."""
        self.quiet = 0
        """Bytes since something was understood: of a head that is not complete."""
        self.bad = ""
        """Why it is not HTTP. Then nothing more is parsed."""
        self.poisoned = False
        """Whether a canary token was found in a body."""
        self.leftover = b""
        """What has come and can't be parsed yet."""

    @property
    def within(self) -> bool:
        """Whether a request has begun, and its body has not ended."""
        return self._parsing is not None and not self._parsing.complete

    def take(self, data: bytes, busy: int) -> None:
        """Parse this. `busy` says whether a request is under way (1) or none (0)."""
        size = self._appetite(len(data))
        if size >= len(data):
            self._feed(data)
        else:
            self._feed_in_pieces(data, size, busy)

    def _feed(self, data: bytes) -> None:
        self.quiet += len(data)
        try:
            self._parser.feed_data(data)
            self._take_body()
        except httptools.HttpParserUpgrade as change:
            self.leftover = data[change.args[0] :]
            self._parser = httptools.HttpRequestParser(self)
        except httptools.HttpParserError as error:
            self.bad = str(error.__context__ or error)
        if self.quiet > MAX_HEAD + len(data):
            self.bad = self.bad or "a head without end"

    def _feed_in_pieces(self, data: bytes, size: int, busy: int) -> None:
        """Feed until a request waits for the one before it; the rest is kept as it is, which takes far less room."""
        at = 0
        while at < len(data) and not self.bad and not self.leftover and not self.poisoned:
            self._feed(data[at : at + size])
            at += size
            if len(self.waiting) + busy > 1 or self.stopped:
                break
            size = self._appetite(len(data) - at)
        self.leftover += data[at:]

    def _appetite(self, available: int) -> int:
        """How many bytes to parse at once: much of a body, but not enough for a heap of small requests."""
        exchange = self._parsing
        if exchange is None or exchange.complete:
            return _PIECE
        return _CHUNKS_PIECE if exchange.head.chunked else min(available, exchange.left) or _PIECE

    @property
    def stopped(self) -> bool:
        """Whether the last request wants another protocol: what follows it can't be parsed yet."""
        return self._parsing is not None and self._parsing.stops

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
        self.quiet = 0
        head = RequestHead(self._parser.get_method(), self._url, self._parser.get_http_version(), self._headers)
        self._parsing = Exchange(head)
        self._parsing.stops = self._parser.should_upgrade()
        texts = (value for header in self._headers for value in header)
        if self._gate.scans and self._gate.has_token(*self._dialled, self._url, *texts):
            raise BadMessageError("canary")
        self.waiting.append(self._parsing)

    def on_body(self, data: bytes) -> None:
        """A part of its body."""
        self.quiet = 0
        exchange = self._parsing
        assert exchange is not None
        exchange.left -= len(data)
        self._body.append(data)

    def _take_body(self) -> None:
        """Search what has come of the body, and send it on."""
        exchange = self._parsing
        if not self._body or exchange is None:
            return
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        if self._gate.scans and not self._clean(exchange, data):
            self.poisoned = True
            return
        into = self.out if exchange.sent else exchange.pieces
        if exchange.head.chunked:
            into += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            into.append(data)

    def _clean(self, exchange: Exchange, data: bytes) -> bool:
        if exchange.scanner is None:
            exchange.scanner = self._gate.scanner(*self._dialled)
        return exchange.scanner.clean(data)

    def on_message_complete(self) -> None:
        """It has ended."""
        self.quiet = 0
        exchange = self._parsing
        assert exchange is not None
        self._take_body()
        exchange.complete = True
        if exchange.head.chunked:
            (self.out if exchange.sent else exchange.pieces).append(CHUNKS_END)
