"""Random and mangled bytes at every way in: no crash, no hang, and nothing passes that the plain rule denies."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some
from proxy_bench import Bench, HttpServer, exchange, http_serving, rule, rules

from belljar.egress.client.client import ProxyClient
from belljar.egress.decide.names import is_address, normalise
from belljar.egress.protocols import dns, packets
from belljar.egress.protocols.client_hello import BadHelloError, read_hello
from belljar.egress.proxy import connect_request
from belljar.egress.proxy.socks import MAX_MESSAGE, Handshake

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LIVE = settings(FUZZ, max_examples=80)
ALLOWED = "web.test"
REACHED: list[str] = []
"""Paths that the server was asked for."""

hosts = some.sampled_from(
    [
        *(
            "web.test",
            "WEB.TEST.",
            "evil.test",
            "web.test.evil",
            "web.test\x00.evil",
            "web.test%00",
            "127.0.0.1",
            "0x7f.1",
        ),
        *(
            "017700000001",
            "2130706433",
            "::ffff:127.0.0.1",
            "[::1]",
            "user@web.test",
            "web.test@evil.test",
            "web.test#",
            "",
        ),
    ]
)


def mangled(data: some.DrawFn, text: bytes) -> bytes:
    """`text` with a few bytes taken out, put in or changed."""
    out = bytearray(text)
    for _ in range(data(some.integers(0, 3))):
        at = data(some.integers(0, max(0, len(out) - 1)))
        how = data(some.sampled_from(["drop", "add", "set"]))
        piece = data(
            some.sampled_from([b"\x00", b"\r", b"\n", b" ", b"\t", b":", b"/", b"%", b"\xff", b"\r\n", b"\r\n "])
        )
        if how == "drop":
            del out[at : at + 1]
        elif how == "add":
            out[at:at] = piece
        else:
            out[at : at + 1] = piece
    return bytes(out)


class Mangled:
    """Draws from `data` as a function."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __call__(self, text: bytes) -> bytes:
        return mangled(self._data.draw, text)


# Sans I/O


@FUZZ
@given(wire=some.binary(max_size=600), data=some.data())
def test_dns(wire: bytes, data: Any) -> None:
    """Only the allowed name ever gets an address, whatever the bytes."""
    import dns.message as messages

    asked: list[str] = []

    def lookup(name: str) -> tuple[str, str] | None:
        asked.append(name)
        return ("198.18.1.0", "fd62:656c:6c6a::100") if name.lower() == ALLOWED else None

    valid = messages.make_query(data.draw(some.sampled_from([ALLOWED, "evil.test", "x." * 60 + "test"])), "A").to_wire()
    for message in (wire, Mangled(data)(valid)):
        asked.clear()
        said = dns.answer(message, lookup)
        if said is not None and messages.from_wire(said).answer:
            assert [name.lower() for name in asked] == [ALLOWED]


@FUZZ
@given(pieces=some.lists(some.binary(min_size=1, max_size=40), max_size=12))
def test_socks(pieces: list[bytes]) -> None:
    handshake, arrived = Handshake(), b""
    for piece in pieces:
        arrived += piece
        step = handshake.step(arrived[:MAX_MESSAGE])
        if step is not None:
            assert 0 < step.consumed <= len(arrived)
            arrived = arrived[step.consumed :]
            if step.failed or step.asked:
                return


@FUZZ
@given(packet=some.binary(max_size=120), version=some.sampled_from([0x45, 0x4F, 0x60]))
def test_packets(packet: bytes, version: int) -> None:
    for data in (packet, bytes((version,)) + packet):
        tried = packets.attempt(data)
        assert tried is None or 0 <= tried.port < 65536


def a_hello(name: str = "web.test") -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@FUZZ
@given(tail=some.binary(max_size=300), cut=some.integers(0, 600), data=some.data())
def test_client_hellos(tail: bytes, cut: int, data: Any) -> None:
    whole = a_hello()
    for first in (b"\x16\x03\x01" + tail, whole[:cut] + tail, Mangled(data)(whole)):
        try:
            hello = read_hello(first)
        except BadHelloError:
            continue
        assert hello is None or hello.server_name is None or isinstance(hello.server_name, str)
    whole_read = read_hello(whole)
    assert whole_read is not None
    assert whole_read.server_name == "web.test"
    assert read_hello(whole[: len(whole) - 1]) is None


@FUZZ
@given(host=hosts, port=some.sampled_from(["", ":0", ":80", ":443x", ":99999", ":-1", ":"]), data=some.data())
def test_connect(host: str, port: str, data: Any) -> None:
    head = f"CONNECT {host}{port} HTTP/1.1\r\nHost: {ALLOWED}\r\n\r\n".encode()
    for text in (head, Mangled(data)(head)):
        said = connect_request.parse(text)
        if said.host:
            assert normalise(said.host) == said.host
            assert 0 < said.port < 65536
            assert is_address(said.host) or all(said.host.split("."))  # a name of one label is a name, too


# A real proxy


@pytest.fixture(scope="module")
def served(proxy: ProxyClient) -> Iterator[tuple[Bench, HttpServer]]:
    REACHED.clear()
    with http_serving() as server:
        run = Bench(proxy, rules(rule(ALLOWED, server.port, methods=("GET", "POST"), paths=("/ok", "/ok/*"))))
        yield run, server
        run.close()
        assert [event for event in run.events if event.kind == "proxy"] == []
        assert REACHED, "nothing of all this reached the server: then this proves nothing"


def only_allowed(server: HttpServer) -> None:
    for method, path, headers, _body in server.seen:
        assert method in ("GET", "POST")
        assert path.partition("?")[0] == "/ok" or path.startswith("/ok/")
        assert headers["host"].lower().rstrip(".").partition(":")[0].rstrip(".") == ALLOWED
        assert ".." not in path
        REACHED.append(path)
    server.seen.clear()


def send(run: Bench, role: str, text: bytes) -> bytes:
    with run.connect(role) as sock:
        sock.settimeout(20)
        return exchange(sock, text)


lines = some.sampled_from(
    ["GET /ok", "POST /ok/x?y=z", "GET /no", "PUT /ok", "GET /ok/../no", "GET /ok/%2e%2e/no", "GET //no"]
)
extras = some.lists(
    some.sampled_from(
        [
            *("Content-Length: 5", "Content-Length: 0", "Transfer-Encoding: chunked", "Transfer-Encoding: identity"),
            *("Connection: close", "Connection: upgrade", "Upgrade: websocket", "Upgrade: h2c", "Expect: 100-continue"),
            *("Host: evil.test", "X-Original-URL: /no", "X-HTTP-Method-Override: PUT", "Connection: host", "A: b"),
        ]
    ),
    max_size=4,
)
bodies = some.sampled_from(
    ["", "hello", "0\r\n\r\n", "5\r\nhello\r\n0\r\n\r\n", "GET /no HTTP/1.1\r\nHost: web.test\r\n\r\n"]
)


@LIVE
@given(requests=some.lists(some.tuples(lines, hosts, extras, bodies), min_size=1, max_size=3), data=some.data())
def test_requests(served: tuple[Bench, HttpServer], requests: list[Any], data: Any) -> None:
    """Pipelined, smuggled, mangled: the server never sees a request that the rule does not allow."""
    run, server = served
    text = b""
    for line, host, more, body in requests:
        head = "\r\n".join([f"{line} HTTP/1.1", f"Host: {host}", *more])
        text += f"{head}\r\n\r\n{body}".encode("latin-1")
    text = Mangled(data)(text)
    with run.by_socks(ALLOWED, server.port) as sock:
        sock.settimeout(20)
        exchange(sock, text)
    absolute = text.replace(b" /", b" http://%s:%d/" % (requests[0][1].encode("latin-1"), server.port), 1)
    send(run, "http-proxy", absolute)
    only_allowed(server)


@LIVE
@given(host=hosts, data=some.data(), role=some.sampled_from(["http-proxy", "socks", "tcp"]))
def test_ways_in(served: tuple[Bench, HttpServer], host: str, data: Any, role: str) -> None:
    run, server = served
    name = host.encode("latin-1")
    text = {
        "http-proxy": b"CONNECT %s:%d HTTP/1.1\r\n\r\nGET /ok HTTP/1.1\r\nHost: web.test\r\n\r\n" % (name, server.port),
        "socks": b"\x05\x01\x00\x05\x01\x00\x03%c%s%s" % (len(name), name, server.port.to_bytes(2, "big"))
        + b"GET /ok HTTP/1.1\r\nHost: web.test\r\n\r\n",
        "tcp": b"GET /ok HTTP/1.1\r\nHost: %s\r\n\r\n" % name,
    }[role]
    before = len(server.seen)
    answer = send(run, role, text)
    if host.lower().rstrip(".") != ALLOWED or role == "tcp":
        assert len(server.seen) == before, (role, host, answer)
    send(run, role, Mangled(data)(text))
    only_allowed(server)


@LIVE
@given(data=some.data(), tail=some.binary(max_size=200))
def test_tls_on_a_host_that_is_looked_into(served: tuple[Bench, HttpServer], data: Any, tail: bytes) -> None:
    run, server = served
    for first in (Mangled(data)(a_hello()), b"\x16\x03\x01" + tail, tail):
        with run.by_socks(ALLOWED, server.port) as sock:
            sock.settimeout(20)
            exchange(sock, first)
    only_allowed(server)


@LIVE
@given(datagrams=some.lists(some.binary(max_size=200), max_size=5))
def test_datagrams(served: tuple[Bench, HttpServer], datagrams: list[bytes]) -> None:
    """The name server still answers after anything."""
    import dns.message as messages

    run, _server = served
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", run.ports["dns-udp"]))
        for datagram in datagrams:
            sock.send(datagram)
        query = messages.make_query(ALLOWED, "A")
        sock.settimeout(10)
        sock.send(query.to_wire())
        while True:
            answer = sock.recv(4096)
            if answer[:2] == query.id.to_bytes(2, "big"):
                break
        assert messages.from_wire(answer).answer
