"""The server's side of an HTTP/1.1 relay: a connection, and the response that is being read from it."""

from __future__ import annotations

from typing import Protocol

import httptools

from belljar.egress.decide.credentials import Scrubber
from belljar.egress.protocols.http1_messages import (
    CHUNKS,
    CHUNKS_END,
    MAX_HEAD,
    NONE,
    UNTIL_CLOSE,
    BadMessageError,
    Header,
    RequestHead,
    ResponseHead,
)
from belljar.egress.proxy.channel import Channel


class ResponseClient(Protocol):
    """Whom the response is for."""

    def from_server(self, data: bytes) -> None:
        """Part of the response, as it is to be sent."""

    def answered(self, answer: ResponseHead) -> None:
        """The response is complete."""

    def upgraded(self, rest: bytes) -> None:
        """The server has changed to WebSocket, and said this already."""

    def failed(self, detail: str) -> None:
        """There is no response, or no end of it: the server is gone, or is not to be understood."""

    def server_drained(self) -> None:
        """The server has taken all that was sent to it."""


class ServerSide:
    """One connection to a server. The relay uses it for one request at a time."""

    def __init__(self, channel: Channel, host: str, port: int, client: ResponseClient) -> None:
        self.channel = channel
        self.host = host
        self.port = port
        self.used = 0
        """Requests so far."""
        self.answer: ResponseHead | None = None
        self._client = client
        self._request: RequestHead | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._words = b""
        self._headers: list[Header] = []
        self._complete = False
        self._spent = False
        self._quiet = 0
        self._out: list[bytes] = []
        self._body: list[bytes] = []
        """What has come since the parser was fed of a body that is searched for secrets."""
        self._reflected: tuple[bytes, ...] = ()
        self._scrubber: Scrubber | None = None
        channel.on_data, channel.on_end, channel.on_lost = self._data, self._ended, self._ended
        channel.on_drained = client.server_drained
        channel.start()

    @property
    def open(self) -> bool:
        """Whether another request may be sent."""
        return not (self._spent or self.channel.closed or self.channel.ended)

    def request(self, head: RequestHead, data: bytes, reflected: tuple[bytes, ...]) -> None:
        """Send a request, of which this is the first part. Secrets in `reflected` are blotted out of its answer."""
        self._reflected = reflected
        self._scrubber = Scrubber(reflected) if reflected else None
        self._request = head
        self.answer = None
        self._complete = False
        self._quiet = 0
        self._words, self._headers = b"", []
        self.used += 1
        self.channel.write(data)

    def close(self) -> None:
        """Close the connection; nothing more is said of it."""
        self._spent = True
        self._request = None
        self.channel.on_lost = lambda: None
        self.channel.close()

    # What arrives

    def _data(self, data: bytes) -> None:
        if self._request is None:  # nobody asked
            self.close()
            return
        self._out = []
        self._quiet += len(data)
        upgraded: int | None = None
        broken = ""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as change:
            upgraded = change.args[0]
        except httptools.HttpParserError as error:
            broken = str(error.__context__ or error)
        self._take_body()
        if not self._complete and self._quiet > MAX_HEAD + len(data):
            broken = broken or "a head without end"
        if self._out:
            self._client.from_server(self._out[0] if len(self._out) == 1 else b"".join(self._out))
            if self._spent:  # closed meanwhile
                return
        if upgraded is not None and self.answer is not None and self.answer.status == 101:
            self._request = None
            self._client.upgraded(data[upgraded:])
        elif self._complete:
            self._finish(spent=bool(broken) or upgraded is not None)
        elif broken:
            self._fail(f"the server's answer is not valid: {broken}")

    def _finish(self, *, spent: bool) -> None:
        assert self.answer is not None
        last = self._request is not None and self._request.has_body  # the server was told so
        self._request = None
        if spent or last or self.answer.close:
            self.close()
        elif self.answer.body == NONE:  # it may have announced a body that does not come
            self._parser = httptools.HttpResponseParser(self)
        self._client.answered(self.answer)

    def _ended(self) -> None:
        if self._request is None:
            self.close()
        elif self.answer is not None and self.answer.body == UNTIL_CLOSE and not self._complete:
            if self._scrubber is not None:
                self._client.from_server(self._scrubber.finish())
            self._finish(spent=True)
        else:
            self._fail("the server closed the connection before its answer was complete")

    def _fail(self, detail: str) -> None:
        self.close()
        self._client.failed(detail)

    # The parser's callbacks

    def on_message_begin(self) -> None:
        """Another response begins."""
        if self._complete:
            raise BadMessageError("a response that nobody asked for")

    def on_status(self, words: bytes) -> None:
        """A part of the status line's words."""
        self._words += words

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which is dropped."""
        if self.answer is None:
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        assert self._request is not None
        status = self._parser.get_status_code()
        answer = ResponseHead(status, self._words, self._headers, self._request, reflected=self._reflected)
        if status == 101 and not self._request.upgrade:
            raise BadMessageError("a change of protocol that nobody asked for")
        self._out.append(answer.head)
        self._quiet = 0
        if status < 200 and status != 101:  # the real one follows
            self._words, self._headers = b"", []
            return
        self.answer = answer
        if answer.body == NONE and status != 101:
            self._complete = True

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._quiet = 0
        if self._complete or self.answer is None:
            return
        if self._scrubber is None:
            self._frame(data)
        else:
            self._body.append(data)

    def _take_body(self) -> None:
        """Send on what has come of a body that is searched for secrets."""
        if self._body and self._scrubber is not None:
            data = self._scrubber.feed(b"".join(self._body))
            self._body = []
            self._frame(data)

    def _frame(self, data: bytes) -> None:
        assert self._request is not None
        assert self.answer is not None
        if not data:
            return
        if self.answer.body == CHUNKS and self._request.version == "1.1":
            self._out += (b"%x\r\n" % len(data), data, b"\r\n")
        else:
            self._out.append(data)

    def on_message_complete(self) -> None:
        """The response has ended."""
        if self.answer is None or self._complete:
            return
        assert self._request is not None
        self._take_body()
        if self._scrubber is not None:
            self._frame(self._scrubber.finish())
        if self.answer.body == CHUNKS and self._request.version == "1.1":
            self._out.append(CHUNKS_END)
        if self.answer.status != 101:
            self._complete = True
