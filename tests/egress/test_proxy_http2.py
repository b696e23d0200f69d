"""What HTTP/2 costs the proxy, and its run: headers count, and are bounded before they are decoded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import Event, RequestReceived, ResponseReceived
from h2.settings import SettingCodes
from hpack import Encoder
from http2_server import Http2Server
from hyperframe.frame import ContinuationFrame, HeadersFrame
from proxy_bench import Bench, rule, rules, serving

from belljar.egress.protocols.http2_connection import ToClient
from belljar.egress.proxy.channel import Channel
from belljar.egress.proxy.relay.http2_stream import Http2Side
from belljar.egress.proxy.time_slices import TimeSlices

Make = Callable[..., Bench]
MEGABYTE = 1 << 20
HEAD = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"web.test"), (b":path", b"/")]


class Client:
    """HTTP/2 without TLS, with what it is answered."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.h2 = H2Connection(H2Configuration(header_encoding=None))
        self.h2.initiate_connection()
        self.h2.encoder.encode = lambda headers: Encoder.encode(self.h2.encoder, headers, huffman=False)  # type: ignore[method-assign]
        self.flush()

    def flush(self) -> None:
        self.sock.sendall(self.h2.data_to_send())

    def ask(self, *headers: tuple[bytes, bytes]) -> Event | None:
        stream = self.h2.get_next_available_stream_id()
        self.h2.send_headers(stream, [*HEAD, *headers], end_stream=True)
        self.flush()
        while data := self.sock.recv(65536):
            for event in self.h2.receive_data(data):
                if isinstance(event, ResponseReceived) and event.stream_id == stream:
                    return event
            self.flush()
        return None


def test_a_server_that_speaks_first(bench: Make) -> None:
    """A server's settings do not wait for the client; its requests are judged as always."""
    told, spoken = Http2Server(), threading.Event()

    def handle(sock: socket.socket) -> None:
        threading.Timer(0.1, spoken.set).start()  # by then the proxy has heard it
        told.handle(sock)

    with serving(handle) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            assert spoken.wait(10)
            assert Client(sock).ask() is not None
        assert run.wait_for(lambda event: event.kind == "request").allowed


@pytest.mark.parametrize("indexed", [True, False], ids=["known to the table", "sent each time"])
def test_headers_are_within_the_budget(bench: Make, indexed: bool) -> None:
    """A megabyte of them ends at a budget of half, also where the wire carries only their number in a table."""
    told = Http2Server()
    size = 3_900 if indexed else 8_000
    with serving(told.handle) as server:
        for budget in (2 * MEGABYTE, MEGABYTE // 2):
            told.seen.clear()
            run = bench(rules(rule("web.test", server.port, budget_bytes=budget)))
            with run.by_socks("web.test", server.port) as sock, contextlib.suppress(OSError):
                client = Client(sock)
                for number in range(MEGABYTE // size):
                    value = b"%06d" % (0 if indexed else number)
                    if client.ask((b"x-a", value + b"a" * size)) is None:
                        break
            left = sum(len(headers.get("x-a", "")) for _method, _path, headers, _body in told.seen)
            assert (left >= MEGABYTE - 2 * size) is (budget > MEGABYTE)
            assert left < budget
            if budget < MEGABYTE:
                assert run.wait_for(lambda event: not event.allowed).reason == "budget"


@pytest.mark.parametrize("end", [True, False], ids=["ended", "never ended"])
def test_a_header_block_is_bounded_before_it_is_decoded(bench: Make, end: bool) -> None:
    block = Encoder().encode(HEAD) + b"\x00\x01x\x7f\xe1\xff\x3f" + b"\x00" * (MEGABYTE // 2)
    frames = [HeadersFrame(1, data=block[:16384])]
    frames += [ContinuationFrame(1, data=block[at : at + 16384]) for at in range(16384, len(block), 16384)]  # type: ignore[list-item]
    if end:
        frames[-1].flags.add("END_HEADERS")
    told = Http2Server()
    with serving(told.handle) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock, contextlib.suppress(OSError):
            client = Client(sock)
            client.sock.sendall(b"".join(frame.serialize() for frame in frames))
            while sock.recv(65536):
                pass
        assert "header block" in run.wait_for(lambda event: not event.allowed).detail
        assert told.seen == []


def test_what_is_sent_on_is_encoded_in_linear_time() -> None:
    """hpack's own way takes a second for 60 KB; and a table of the peer's size would be searched for each field."""
    connection = ToClient()
    connection.encoder.header_table_size = 1 << 30
    assert connection.encoder.header_table_size == 4096
    began = time.thread_time()
    connection.encoder.encode([(b"x-%d" % number, b"a" * 60_000) for number in range(10)])
    assert time.thread_time() - began < 0.5
    connection.encoder.header_table_size = 100
    assert connection.encoder.header_table_size == 100
    assert SettingCodes.HEADER_TABLE_SIZE in connection.local_settings


def test_requests_of_one_read_are_handled_in_several_turns() -> None:
    """Some bytes can name a header of the table that then is searched: each request counts, not each read."""
    ours, theirs = socket.socketpair()
    client = H2Connection(H2Configuration(header_encoding=None))
    client.initiate_connection()
    for stream in range(1, 41, 2):
        client.send_headers(stream, HEAD, end_stream=True)
    handled: list[int] = []

    def handle(event: Event) -> None:
        if isinstance(event, RequestReceived):
            handled.append(event.stream_id)
            end = time.monotonic() + 0.002
            while time.monotonic() < end:
                pass

    async def scene() -> None:
        turns = TimeSlices(asyncio.get_running_loop())
        side = Http2Side(Channel(ours, turns), ToClient())
        side.unread = client.data_to_send()
        rounds = 0
        while side.has_more:
            side.take(handle)
            rounds += 1
        assert handled == list(range(1, 41, 2))
        assert rounds >= len(handled)
        turns.close()

    with ours, theirs:
        asyncio.run(scene())


@pytest.mark.parametrize("size", [15_000, 30_000])
@pytest.mark.parametrize("canaries", [(b"7f3a9c1e5b7d2f4a6c8e0b1d3f5a7c9e",), ()], ids=["searched", "control"])
def test_a_head_that_is_too_long_to_be_searched(bench: Make, size: int, canaries: tuple[bytes, ...]) -> None:
    """Is refused where tokens are looked for, since other runs wait for that; elsewhere it passes."""
    told = Http2Server()
    with serving(told.handle) as server:
        run = bench(rules(rule("web.test", server.port), canaries=bool(canaries)), canaries=canaries)
        with run.by_socks("web.test", server.port) as sock:
            answer = Client(sock).ask(*[(b"x", b"a" * 3_000)] * (size // 3_000))
        assert isinstance(answer, ResponseReceived)
        refused = bool(canaries) and size > 20_000
        assert (dict(answer.headers)[b":status"] == b"400") is refused
        assert len(told.seen) == (0 if refused else 1)
