"""What is fuzzed: each target takes bytes as code in a jar could send them, and raises when something does not hold.

No crash: nothing but what belljar itself expects is raised. No hang: the driver has a timeout for each input, and what
comes out is in proportion to what went in. No allow: whatever passes, `fuzz_oracle` allows as well.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import cast

import dns.message
import h11
from fuzz_ends import HOST, PORT, RULES, End, Owner, Stage, judge, pieces
from fuzz_oracle import (
    name_is_listed,
    names_in_tls,
    place_is_listed,
    question_of,
    request_is_listed,
    server_name_of,
    socks_request,
)
from h2.config import H2Configuration
from h2.connection import H2Connection

from belljar.egress.decide.steps import Request, decide_name, decide_request, decide_server_name
from belljar.egress.protocols import dns as names
from belljar.egress.protocols.client_hello import (
    BadHelloError,
    Greeting,
    Hello,
    HelloSearch,
    begins_like_tls,
    read_hello,
)
from belljar.egress.proxy import connect_request
from belljar.egress.proxy.channel import Channel
from belljar.egress.proxy.relay.http1 import Http1Relay
from belljar.egress.proxy.relay.http2 import PREFACE, Http2Relay
from belljar.egress.proxy.socks import MAX_MESSAGE, Handshake

Target = Callable[[bytes], None]
STAGE = Stage()
_MOST_OUT = 400_000
"""More bytes than any input can rightly call for."""


class Server:
    """Reads what it is sent with a parser that is not the proxy's, and answers each request."""

    def __init__(self, host: str, port: int) -> None:
        assert (host, port) in ((HOST, PORT), (HOST, 80)) or host.endswith(".wild.test")
        self._host = host
        self._parser = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
        self._answers = 0
        self.end = End(self._take)

    def _take(self, data: bytes) -> None:
        self._parser.receive_data(data)
        while True:
            event = self._parser.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._judge(event)
            elif isinstance(event, h11.EndOfMessage):
                self._answers += 1
                self._parser.send(h11.Response(status_code=204, headers=[]))
                self._parser.send(h11.EndOfMessage())
                if self._parser.states[h11.SERVER] is h11.DONE:
                    self._parser.start_next_cycle()

    def _judge(self, request: h11.Request) -> None:
        authority = [value for name, value in request.headers if name == b"host"]
        assert len(authority) == 1, request
        if self._host == HOST:
            assert request_is_listed(request.method, request.target, authority[0]), request
        else:
            assert name_is_listed(authority[0].partition(b":")[0]), request

    def answer(self) -> None:
        answers, self._answers = self._answers, 0
        for _answer in range(answers):
            self.end.say(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def _http1(data: bytes, dialled: tuple[str, int] | None) -> None:
    out: list[bytes] = []
    servers: list[Server] = []

    def reached(host: str, port: int) -> End:
        servers.append(Server(host, port))
        return servers[-1].end

    client = End(out.append)

    def say(piece: bytes) -> None:
        if client.reading:
            client.say(piece)
        for server in servers:
            server.answer()

    def scene() -> list[Callable[[], None]]:
        relay = Http1Relay(cast("Channel", client), STAGE.gate, Owner(reached), dialled)
        relay.start()
        steps = [lambda piece=piece: say(piece) for piece in pieces(data)]
        return [*steps, *[lambda: say(b"")] * 3, client.say_end, relay.close]

    STAGE.play(scene)
    assert sum(map(len, out)) < _MOST_OUT


def http1(data: bytes) -> None:
    """Requests on a connection to the listed host."""
    _http1(data, (HOST, PORT))


def http1_proxy(data: bytes) -> None:
    """Requests to a proxy, with absolute targets."""
    _http1(data, None)


def http1_response(data: bytes) -> None:
    """What a server answers: the client is told something, or cut off."""
    out: list[bytes] = []
    client, server = End(out.append), End(lambda _data: None)

    def say(piece: bytes) -> None:
        if server.reading:
            server.say(piece)

    def scene() -> list[Callable[[], None]]:
        relay = Http1Relay(cast("Channel", client), STAGE.gate, Owner(lambda _host, _port: server), (HOST, PORT))
        relay.start(cast("Channel", server))
        request = b"%s /ok HTTP/1.1\r\nHost: web.test\r\n\r\n" % (b"POST" if data[:1] > b"\x80" else b"GET")
        steps = [lambda piece=piece: say(piece) for piece in pieces(data)]
        return [lambda: client.say(request), *steps, server.say_end, client.say_end, relay.close]

    STAGE.play(scene)
    assert sum(map(len, out)) < _MOST_OUT


def http2(data: bytes) -> None:
    """Frames after the preface, with a server that reads them by itself."""
    out: list[bytes] = []
    behind = H2Connection(H2Configuration(client_side=False, header_encoding=None))

    def serve(piece: bytes) -> None:
        for event in behind.receive_data(piece):
            if type(event).__name__ == "RequestReceived":
                head = dict(event.headers)  # type: ignore[attr-defined]
                assert request_is_listed(head[b":method"], head[b":path"], head[b":authority"]), head

    client, server = End(out.append), End(serve)

    def scene() -> list[Callable[[], None]]:
        ends = cast("Channel", client), cast("Channel", server)
        relay = Http2Relay(*ends, STAGE.gate, Owner(lambda _host, _port: server), (HOST, PORT))
        relay.start()
        steps = [lambda piece=piece: client.say(piece) for piece in [PREFACE, *pieces(data)]]
        return [*steps, client.say_end, relay.close]

    STAGE.play(scene)
    assert sum(map(len, out)) < 10 * _MOST_OUT


def request(data: bytes) -> None:
    """A request's target as it is judged, without a parser before it."""
    method, _space, target = data.partition(b" ")
    asked = Request(HOST, PORT, True, method.decode("latin-1"), target, HOST)
    if decide_request(RULES, asked).allowed:
        assert request_is_listed(method, target, HOST.encode()), asked


def connect(data: bytes) -> None:
    """The head of a CONNECT."""
    said = connect_request.parse(data)
    if said.host and judge(said.host, said.port).allowed:
        host, _colon, port = data.lstrip(b"\r\n").split(None, 2)[1].rpartition(b":")
        assert place_is_listed(host, int(port)), said


def socks(data: bytes) -> None:
    """A handshake, in parts."""
    handshake, arrived = Handshake(), b""
    for piece in pieces(data):
        arrived += piece
        for _step in range(3):
            step = handshake.step(arrived[:MAX_MESSAGE])
            if step is None:
                break
            assert 0 < step.consumed <= len(arrived)
            arrived = arrived[step.consumed :]
            if step.asked and judge(step.host, step.port).allowed:
                assert socks_request(data[1:]) == (step.host, step.port)
                assert place_is_listed(step.host, step.port), step
            if step.asked or step.failed:
                return


def questions(data: bytes) -> None:
    """A DNS message."""

    def lookup(name: str) -> tuple[str, str] | None:
        return ("198.18.1.0", "fd62:656c:6c6a::100") if decide_name(RULES, name).allowed else None

    said = names.answer(data, lookup)
    if said is None:
        return
    assert said[:2] == data[:2]
    assert len(said) < 4096
    if dns.message.from_wire(said).answer:
        name = question_of(data)
        assert name is not None
        assert name_is_listed(name), name


def hello(data: bytes) -> None:
    """The first bytes of TLS."""
    try:
        said = read_hello(data)
    except BadHelloError:
        return
    if said is not None and said.server_name and decide_server_name(RULES, HOST, PORT, said.server_name).allowed:
        read = server_name_of(data)
        assert read is not None
        assert read.lower().removesuffix(b".") == HOST.encode(), read


def greeting(data: bytes) -> None:
    """What a client says on a connection that is carried: OpenSSL reads no other server name in what passes."""
    passed, carried = b"", Greeting() if data[1:] and begins_like_tls(data[1:]) else HelloSearch()
    read: Callable[[bytes], list[Hello]] = carried.from_client if isinstance(carried, Greeting) else carried.feed
    for piece in pieces(data):
        try:
            hellos = read(piece)
        except BadHelloError:
            break
        said = [hello.server_name for hello in hellos if hello.server_name is not None]
        if not all(decide_server_name(RULES, HOST, PORT, name).allowed for name in said):
            break
        passed += piece
    assert names_in_tls(passed) <= {None, HOST}


TARGETS: dict[str, Target] = {
    target.__name__: target
    for target in (http1, http1_proxy, http1_response, http2, request, connect, socks, questions, hello, greeting)
}


# --- what to begin with ----------------------------------------------------------------------------------------------


def _request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((line + b" HTTP/1.1", *headers, b"", body))


def _hello(name: str, *, newest: bool) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    outgoing = ssl.MemoryBIO()
    try:
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=name).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outgoing.read()


def _frames(*paths: bytes) -> bytes:
    connection = H2Connection(H2Configuration(header_encoding=None))
    connection.initiate_connection()
    for path in paths:
        head = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"web.test"), (b":path", path)]
        connection.send_headers(connection.get_next_available_stream_id(), head, end_stream=path != b"/ok/body")
    connection.ping(b"belljar!")
    connection.increment_flow_control_window(1000)
    return connection.data_to_send()[len(PREFACE) :]


_WEB, _EVIL = b"Host: web.test", b"Host: evil.test"
_CHUNKED, _LENGTH = b"Transfer-Encoding: chunked", b"Content-Length: 5"
_REQUESTS = [
    _request(b"GET /ok", _WEB),
    _request(b"GET /no", _WEB),
    _request(b"GET /ok/../no", _WEB),
    _request(b"GET /ok/%2e%2e/no", _WEB),
    _request(b"GET /ok/denied", _WEB),
    _request(b"GET /ok", _EVIL),
    _request(b"GET /ok", _WEB, _EVIL),
    _request(b"POST /ok", _WEB, _LENGTH, body=b"hello") + _request(b"GET /no", _WEB),
    _request(b"POST /ok", _WEB, _CHUNKED, body=b"5\r\nhello\r\n0\r\n\r\n") + _request(b"GET /ok", _WEB),
    _request(b"POST /ok", _WEB, _CHUNKED, _LENGTH, body=b"0\r\n\r\n") + _request(b"GET /no", _WEB),
    _request(b"GET /ok", _WEB, b"Connection: Upgrade", b"Upgrade: websocket") + b"more",
    _request(b"GET /ok", _WEB, b"Expect: 100-continue", b"X-HTTP-Method-Override: PUT"),
]
_DNS = [dns.message.make_query(name, kind).to_wire() for name in ("web.test", "evil.test") for kind in ("A", "AAAA")]
_SOCKS = [b"\x05\x01\x00\x05\x01\x00\x03%c%s\x01\xbb" % (len(name), name) for name in (b"web.test", b"evil.test")]
SEEDS: dict[str, list[bytes]] = {
    "http1": [cut + text for text in _REQUESTS for cut in (b"\x00", b"\x07")],
    "http1_proxy": [b"\x00" + text.replace(b" /", b" http://web.test/", 1) for text in _REQUESTS],
    "http1_response": [
        b"\x00HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"\x05HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"\x00HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
        b"\x00HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nuntil the end",
        b"\x00HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nmore",
    ],
    "http2": [b"\x00" + _frames(b"/ok"), b"\x0b" + _frames(b"/no", b"/ok/body", b"/ok")],
    "request": [b"GET /ok", b"POST /ok/x?y=z", b"PUT /ok", b"GET /ok/%2e%2e/no", b"GET /ok\\..\\no", b"GET //ok"],
    "connect": [
        _request(b"CONNECT web.test:443", _WEB),
        _request(b"CONNECT a.wild.test:443"),
        _request(b"CONNECT evil.test:443", _WEB),
        _request(b"CONNECT [::1]:443"),
        _request(b"CONNECT web.test@evil.test:443"),
    ],
    "socks": [cut + text for text in _SOCKS for cut in (b"\x00", b"\x03")] + [b"\x00\x05\x01\x00\x05\x01\x00\x01" * 2],
    "questions": _DNS,
    "greeting": [
        cut + before + _hello(name, newest=newest)
        for name in ("web.test", "evil.test")
        for newest in (True, False)
        for before in (b"", b"\x15\x03\x01\x00\x02\x01\x5a", b"STARTTLS\r\n")
        for cut in (b"\x00", b"\x20")
    ],
    "hello": [_hello(name, newest=newest) for name in ("web.test", "evil.test") for newest in (True, False)],
}
_ORDER = list(TARGETS)


def everything(data: bytes) -> None:
    """Whichever the first byte names: so that one process can see to all of them."""
    if data:
        TARGETS[_ORDER[data[0] % len(_ORDER)]](data[1:])


EVERYTHING = "everything"
SEEDS[EVERYTHING] = [bytes((number,)) + seed for number, name in enumerate(_ORDER) for seed in SEEDS[name]]
TOKENS = (
    *(b"\r\n", b"\r\n\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b"/", b"\\", b"%2e", b"%2f", b"%00", b"..", b";"),
    *(b"GET ", b"POST ", b"PUT ", b" HTTP/1.1", b" HTTP/1.0", b"Host: ", b"web.test", b"evil.test", b"a.wild.test"),
    *(b"Content-Length: ", b"Transfer-Encoding: ", b"chunked", b"identity", b"Connection: ", b"close", b"upgrade"),
    *(b"http://", b"https://", b"@", b"#", b"?", b"[::1]", b"127.0.0.1", b":443", b":80", b"0\r\n\r\n", b"/ok", b"/no"),
    *(
        b"/ok/denied",
        b"\x05\x01\x00",
        b"\x03\x08web.test\x01\xbb",
        b"\x08web\x04test\x00",
        b"\x16\x03\x01",
        b"\xc0\x0c",
    ),
)
"""What to put in by way of mutation."""
