"""Relaying HTTP/2: each stream's request is judged, and opened anew at the server, which speaks it too."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import h2.events
from h2.connection import ConnectionState
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from belljar.egress.decide import refusal
from belljar.egress.decide.steps import Verdict
from belljar.egress.protocols.http1_messages import (
    BadMessageError,
    Header,
    check_fields,
    check_searched,
    reflected_header,
)
from belljar.egress.protocols.http2_connection import ToClient, ToServer
from belljar.egress.proxy.channel import Channel
from belljar.egress.proxy.relay.http1 import Reach
from belljar.egress.proxy.relay.http2_stream import Headers, Http2Side, Http2Stream
from belljar.egress.proxy.relay.request_check import Passage, RequestCheck

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MAX_STREAMS = 100
_MAX_RESETS = 1000
_STREAM_WINDOW = 128 << 10
_CONNECTION_WINDOW = 256 << 10
_IDLE_SECONDS = 300.0
_SETTINGS = {
    SettingCodes.MAX_CONCURRENT_STREAMS: _MAX_STREAMS,
    SettingCodes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
    SettingCodes.MAX_HEADER_LIST_SIZE: 64 << 10,
    SettingCodes.ENABLE_PUSH: 0,
}
_PSEUDO = (b":method", b":scheme", b":authority", b":path")


class Http2Relay:
    """A client's connection and one to its server, both of which speak HTTP/2."""

    def __init__(
        self, client: Channel, server: Channel, gate: RequestCheck, owner: Reach, dialled: tuple[str, int]
    ) -> None:
        self.bytes_out = 0
        self.bytes_in = 0
        self._gate = gate
        self._owner: Reach | None = owner
        self._host, self._port = dialled
        self._client = Http2Side(client, ToClient())
        self._server = Http2Side(server, ToServer())
        self._by_client: dict[int, Http2Stream] = {}
        self._by_server: dict[int, Http2Stream] = {}
        self._waiting: list[tuple[int, Passage, list[Any]]] = []
        """Requests that are not recorded yet, or for which the server has no room, and what came for them."""
        self._resets = 0
        """Requests that the client has taken back."""
        self._draining = False
        self._done = False
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()

    def start(self) -> None:
        """Begin."""
        for side, data, ended in (
            (self._client, self._client_data, self._client_ended),
            (self._server, self._server_data, self._server_ended),
        ):
            channel, protocol = side.channel, side.h2
            channel.on_data, channel.on_end = data, ended
            channel.on_lost = self._client_ended if side is self._client else self._server_ended
            channel.on_drained = self._client_drained if side is self._client else self._server_drained
            channel.on_gone = self._gone
            protocol.local_settings = Settings(client=side is self._server, initial_values=_SETTINGS)
            protocol.initiate_connection()
            protocol.increment_flow_control_window(_CONNECTION_WINDOW - 65535)
            side.flush()
            channel.start()

    def check(self, now: float) -> None:
        """End it if it has idled."""
        if not self._by_client and now - self._since > _IDLE_SECONDS:
            self._finish()

    # From the client

    def _client_data(self, data: bytes) -> None:
        self._client.unread += data
        self._work(self._client)

    def _server_data(self, data: bytes) -> None:
        self._server.unread += data
        self._work(self._server)

    def _work(self, side: Http2Side) -> None:
        """Take what has come from one side, for a little while: one read may hold thousands of frames.

        What is left has its turn after the other connections, or when this one has read its answers.
        """
        if self._done:
            return
        handle = self._from_client if side is self._client else self._from_server
        try:
            side.take(handle)
        except ProtocolError as error:
            if side is self._client:
                self._bad_client(str(error))
            else:
                self._fail_all()
            return
        if side is self._server:
            self._open_waiting()
        self._pump_all()
        if side.channel.full or side.channel.closed:
            side.channel.pause()
        elif side.has_more:
            side.channel.pause()
            self._gate.turns.soon(self._work, side)
        else:
            side.channel.start()

    def _client_drained(self) -> None:
        self._work(self._client)

    def _server_drained(self) -> None:
        self._work(self._server)

    def _from_client(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            self._request(event.stream_id, list(event.headers), ended=event.stream_ended is not None)
        elif isinstance(event, h2.events.DataReceived):
            self._request_data(event)
        elif isinstance(event, h2.events.TrailersReceived | h2.events.StreamEnded):
            stream = self._by_client.get(event.stream_id)
            if stream is not None:
                stream.request.end()
            else:
                self._hold(event.stream_id, event)
        elif isinstance(event, h2.events.StreamReset):
            self._resets += 1
            if self._resets > _MAX_RESETS:
                self._client.h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
                self._bad_client("requests, taken back as soon as they were made")
                return
            self._waiting = [entry for entry in self._waiting if entry[0] != event.stream_id]
            self._drop(self._by_client.get(event.stream_id), self._server, event.error_code)
        elif isinstance(event, h2.events.ConnectionTerminated):
            self._finish()

    def _request(self, stream_id: int, headers: Headers, *, ended: bool) -> None:
        self._since = self._loop.time()
        said = dict(header for header in headers if header[0][:1] == b":")
        plain = tuple(header for header in headers if header[0][:1] != b":" and header[0] != b"host")
        bad = self._confused(said, headers)
        try:
            texts = (text for header in headers for text in header)
            if self._gate.scans and self._gate.has_token(self._host, self._port, *texts):
                return
        except BadMessageError as error:
            bad = str(error)
        method = said.get(b":method", b"").decode("latin-1")
        path = said.get(b":path", b"")
        judged: Passage | Verdict
        if bad:
            judged = Verdict(allowed=False, reason="bad-request", detail=bad)
            self._gate.tell_refused(self._host, self._port, judged, method, path.decode("latin-1"))
        else:
            authority = said.get(b":authority")
            judged = self._gate.judge(self._host, self._port, method, path, authority, plain, body=not ended)
        if isinstance(judged, Verdict):
            self._refuse(stream_id, judged, method, path)
            return
        opening = [*((name, said[name]) for name in _PSEUDO if name != b":path"), (b":path", judged.target)]
        self._open(stream_id, judged, [*opening, *judged.headers], [], ended=ended)

    def _confused(self, said: dict[bytes, bytes], headers: Headers) -> str:
        """Why a request's head says two things at once, or too little."""
        if b":protocol" in said:
            return "an extended CONNECT"
        try:
            check_fields(said.get(b":path", b""), headers)
        except BadMessageError as error:
            return str(error)
        hosts = [value for name, value in headers if name == b"host"]
        if hosts:
            said.setdefault(b":authority", hosts[0])
        if any(value != said[b":authority"] for value in hosts):
            return "Host and :authority differ"
        wanted = b"https" if self._gate.tls else b"http"
        if said.get(b":scheme", wanted) != wanted:
            return "the scheme is not the connection's"
        missing = [name.decode() for name in _PSEUDO if name not in said]
        return f"{missing[0]} is missing" if missing else ""

    def _open(self, stream_id: int, passage: Passage, headers: Headers, held: list[Any], *, ended: bool) -> None:
        """Open the stream at the server, or hold the request until it has room for another."""
        server = self._server.h2
        if self._draining:
            self._reset(self._client, stream_id, ErrorCodes.REFUSED_STREAM)
            return
        recorded = self._gate.recorded(passage)
        if not recorded:
            self._gate.when_answered(passage, self._answered)
        if not recorded or server.open_outbound_streams >= server.remote_settings.max_concurrent_streams:
            self._waiting.append((stream_id, passage, [headers, ended, *held]))
            return
        if passage.meter is not None and not passage.meter.spend(_size(headers)):
            self._gate.turns.soon(self.close)
            return
        server_id = server.get_next_available_stream_id()
        server.send_headers(server_id, headers, end_stream=ended)
        stream = Http2Stream(stream_id, server_id, passage, self._client, self._server)
        self._by_client[stream_id] = self._by_server[server_id] = stream
        if ended:
            stream.request.done = True
        for event in held:
            self._from_client(event)

    def _hold(self, stream_id: int, event: h2.events.Event) -> None:
        for waiting_id, _passage, held in self._waiting:
            if waiting_id == stream_id and not held[1]:
                held.append(event)

    def _request_data(self, event: h2.events.DataReceived) -> None:
        stream = self._by_client.get(event.stream_id)
        owed = event.flow_controlled_length or 0
        if stream is None:
            if any(entry[0] == event.stream_id for entry in self._waiting):
                self._hold(event.stream_id, event)  # not acknowledged: its window bounds it
            elif owed:
                self._client.h2.acknowledge_received_data(owed, event.stream_id)
            return
        if self._gate.scans:
            if stream.scanner is None:
                stream.scanner = self._gate.scanner(self._host, self._port)
            if not stream.scanner.clean(event.data):
                self._break_off(stream)
                return
        if not self._spend(stream, len(event.data)):
            return
        stream.request.add(event.data, owed)

    def _refuse(self, stream_id: int, verdict: Verdict, method: str, path: bytes) -> None:
        """Answer in the server's stead. What comes of a body is acknowledged and dropped."""
        shown = path.partition(b"?")[0].decode("latin-1")
        text = refusal.body(verdict, host=self._host, port=self._port, method=method, path=shown).encode()
        client = self._client.h2
        headers = [
            (b":status", refusal.status(verdict)[:3].encode()),
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", b"%d" % len(text)),
            (refusal.REASON_HEADER.lower().encode(), verdict.reason.encode()),
            (b"cache-control", b"no-store"),
        ]
        client.send_headers(stream_id, headers, end_stream=method == "HEAD")
        if method != "HEAD":
            room = min(client.local_flow_control_window(stream_id), client.max_outbound_frame_size)
            client.send_data(stream_id, text[: max(0, room)], end_stream=len(text) <= room)
            if len(text) > room:
                self._reset(self._client, stream_id, ErrorCodes.INTERNAL_ERROR)

    # From the server

    def _from_server(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.ConnectionTerminated):
            self._drain()
            return
        stream = self._by_server.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, h2.events.ResponseReceived | h2.events.InformationalResponseReceived):
            self._respond(stream, list(event.headers))
        elif isinstance(event, h2.events.DataReceived):
            if self._spend(stream, len(event.data)):
                data = event.data if stream.scrubber is None else stream.scrubber.feed(event.data)
                stream.response.add(data, event.flow_controlled_length or 0)
        elif isinstance(event, h2.events.TrailersReceived):
            if self._spend(stream, _size(event.headers)):
                trailers = [header for header in event.headers if header[0] != b"content-encoding"]
                try:
                    self._end_response(stream, _scrubbed(stream, trailers))
                except BadMessageError:
                    self._break_off(stream)
        elif isinstance(event, h2.events.StreamEnded):
            self._end_response(stream, None)
        elif isinstance(event, h2.events.StreamReset):
            self._drop(stream, self._client, event.error_code)

    def _drain(self) -> None:
        """The server takes no more requests: the client is told so, and gets the answers that are under way."""
        if not self._draining:
            self._draining = True
            self._client.h2.close_connection()
            self._client.h2.state_machine.state = ConnectionState.SERVER_OPEN

    def _respond(self, stream: Http2Stream, headers: Headers) -> None:
        if not self._spend(stream, _size(headers)):
            return
        kept = [header for header in headers if header[0] != b"alt-svc"]
        try:
            scrubbed = _scrubbed(stream, kept)
        except BadMessageError:
            self._break_off(stream)
            return
        self._client.h2.send_headers(stream.client_id, scrubbed)

    def _end_response(self, stream: Http2Stream, trailers: Headers | None) -> None:
        if stream.response.ended:
            return
        if stream.scrubber is not None:
            stream.response.add(stream.scrubber.finish(), 0)
        stream.response.end(trailers)

    def _spend(self, stream: Http2Stream, count: int) -> bool:
        meter = stream.passage.meter
        if meter is None or meter.spend(count):
            return True
        self._break_off(stream)
        self._gate.turns.soon(self.close)
        return False

    def _break_off(self, stream: Http2Stream) -> None:
        """Nothing more of it passes, and neither side takes what it has for the whole."""
        self._drop(stream, self._server, ErrorCodes.CANCEL)
        self._reset(self._client, stream.client_id, ErrorCodes.INTERNAL_ERROR)
        self._server.flush()

    # Both

    def _answered(self) -> None:
        """The host has answered for what was judged: it is in the audit log, or it is refused."""
        if self._done:
            return
        if verdict := self._gate.refusal:
            waiting, self._waiting = self._waiting, []
            for stream_id, _passage, (headers, *_held) in waiting:
                self._refuse(stream_id, verdict, dict(headers)[b":method"].decode("latin-1"), b"")
        self._open_waiting()
        self._pump_all()

    def _open_waiting(self) -> None:
        server = self._server.h2
        while self._waiting and server.open_outbound_streams < server.remote_settings.max_concurrent_streams:
            if not self._gate.recorded(self._waiting[0][1]):
                return
            stream_id, passage, (headers, ended, *held) = self._waiting.pop(0)
            self._open(stream_id, passage, headers, held, ended=ended)

    def _pump_all(self) -> None:
        if self._done:
            return
        for stream in list(self._by_client.values()):
            try:
                stream.request.pump()
                stream.response.pump()
            except ProtocolError:  # the stream was reset while this was on its way
                self._drop(stream, self._server, ErrorCodes.CANCEL)
                self._reset(self._client, stream.client_id, ErrorCodes.INTERNAL_ERROR)
                continue
            if stream.done:
                self._forget(stream)
        self._server.flush()
        self._client.flush()
        if self._draining and not self._by_client:
            self._finish()

    def _forget(self, stream: Http2Stream) -> None:
        self._by_client.pop(stream.client_id, None)
        self._by_server.pop(stream.server_id, None)

    def _drop(self, stream: Http2Stream | None, other: Http2Side, code: int | None) -> None:
        """One side gave the stream up: so does the other."""
        if stream is None:
            return
        self._forget(stream)
        stream.request.drop()
        stream.response.drop()
        self._reset(other, stream.server_id if other is self._server else stream.client_id, code or 0)

    def _reset(self, side: Http2Side, stream_id: int, code: int) -> None:
        try:
            side.h2.reset_stream(stream_id, code)
        except ProtocolError:  # it is closed already
            return

    # The end

    def _bad_client(self, detail: str) -> None:
        verdict = Verdict(allowed=False, reason="bad-request", detail=detail)
        self._gate.tell_refused(self._host, self._port, verdict)
        self._client.flush()
        self._finish()

    def _client_ended(self) -> None:
        self.close()

    def _server_ended(self) -> None:
        self._fail_all()

    def _fail_all(self) -> None:
        for stream in list(self._by_client.values()):
            self._forget(stream)
            self._reset(self._client, stream.client_id, ErrorCodes.INTERNAL_ERROR)
        self._finish()

    def _finish(self) -> None:
        if not self._done:
            self._done = True
            try:
                self._client.h2.close_connection()
            except ProtocolError:
                pass
            self._client.flush()
            self._client.channel.finish()
            self._count_server()

    def _count_server(self) -> None:
        channel = self._server.channel
        self.bytes_out, self.bytes_in = channel.sent, channel.received
        channel.on_lost = lambda: None
        channel.close()

    def close(self) -> None:
        """End at once."""
        self._done = True
        self._client.channel.on_lost = lambda: None
        self._client.channel.reset()
        self._count_server()

    def _gone(self) -> None:
        if not self._client.channel.closed:
            return
        self._done = True
        owner, self._owner = self._owner, None
        if owner is not None:
            self._count_server()
            owner.relay_closed()


def _size(headers: Iterable[Header]) -> int:
    """Bytes of a head as HTTP/1.1 would send it: a field that its connection knows already counts as a whole."""
    return sum([len(name) + len(value) + 4 for name, value in headers])


def _scrubbed(stream: Http2Stream, headers: Headers) -> Headers:
    """Without the credentials that the policy expects to come back. Raises BadMessageError."""
    reflected = stream.passage.reflected
    if not reflected:
        return headers
    check_searched(*(text for header in headers for text in header))
    return [reflected_header(name, value, reflected) for name, value in headers]
