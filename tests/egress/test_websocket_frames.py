"""WebSocket frames: a token in masked ones stops the run, and a secret that the server sends back is blotted out."""

from __future__ import annotations

import gzip
import os
import socket
import time
import zlib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proxy_bench import Bench, read_all, rule, rules, serving

from belljar.egress.decide.encodings import Reflected
from belljar.egress.proxy.relay.passing import ByteMeter
from belljar.egress.proxy.relay.websocket import (
    BadFrameError,
    ClientSearch,
    FramePart,
    FrameScrubber,
    WebSocketFrames,
    frame,
)
from belljar.policy.models import Credential

Make = Callable[..., Bench]
TOKEN = b"7f3a9c1e5b7d2f4a6c8e0b1d3f5a7c9e1b3d5f70"
SECRET = b"s3cret-value-4711"
OPENING = (
    b"GET /ws HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
)
GRANTED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def masked(opcode: int, payload: bytes, *, final: bool = True, reserved: int = 0) -> bytes:
    """A frame as clients send it."""
    mask = os.urandom(4)
    head = bytes((opcode | (0x80 if final else 0) | reserved,))
    if len(payload) < 126:
        head += bytes((0x80 | len(payload),))
    else:
        head += bytes((0x80 | 126,)) + len(payload).to_bytes(2, "big")
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def head_of(sock: socket.socket) -> bytes:
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(65536)
    return head


def opened(run: Bench, port: int) -> socket.socket:
    """A WebSocket through the proxy."""
    sock = run.by_socks("web.test", port)
    sock.sendall(OPENING)
    assert head_of(sock).startswith(b"HTTP/1.1 101")
    return sock


def texts(data: bytes) -> list[bytes]:
    """The messages in these frames."""
    found, message = [], b""
    for part in WebSocketFrames().take(data):
        message += part.payload
        if part.ends and part.final:
            found.append(message)
            message = b""
    return found


SENT: dict[str, bytes] = {
    "one frame": masked(1, b"x" + TOKEN + b"y"),
    "binary": masked(2, TOKEN),
    "base64": masked(1, __import__("base64").b64encode(TOKEN)),
    "two frames": masked(1, TOKEN[:12], final=False) + masked(0, TOKEN[12:]),
    "a frame for each byte": masked(1, b"", final=False)
    + b"".join(masked(0, bytes((byte,)), final=False) for byte in TOKEN)
    + masked(0, b""),
    "with pings between": masked(1, TOKEN[:12], final=False) + masked(9, b"ping") + masked(0, TOKEN[12:]),
    "two messages": masked(1, TOKEN[:20]) + masked(1, TOKEN[20:]),
    "in a ping": masked(9, TOKEN),
    "in the last words": masked(8, b"\x03\xe8" + TOKEN),
    "a long frame": masked(2, b"x" * 20000 + TOKEN),
    "not masked": frame(1, TOKEN, final=True),
}


@pytest.mark.parametrize("way", SENT)
@pytest.mark.parametrize("canary", [True, False], ids=["token", "control"])
def test_a_token_in_frames(bench: Make, way: str, canary: bool) -> None:
    """Stops the run before it arrives; with another token in its place, the same bytes arrive."""
    arrived: list[bytes] = []

    def swallow(sock: socket.socket) -> None:
        assert b"permessage-deflate" not in head_of(sock)
        sock.sendall(GRANTED)
        while data := sock.recv(65536):
            arrived.append(data)

    with serving(swallow) as server:
        token = TOKEN if canary else b"0" * 40
        run = bench(rules(rule("web.test", server.port), canaries=True), canaries=(token,))
        ends_early = suppress(OSError) if canary else nullcontext()  # the proxy closes as soon as it sees the token
        with opened(run, server.port) as sock, ends_early:
            for at in range(0, len(SENT[way]), 1000):
                sock.sendall(SENT[way][at : at + 1000])
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)
        if canary:
            assert run.wait_for(lambda event: event.kind == "canary").host == "web.test"
        else:
            assert b"".join(arrived) == SENT[way]
            assert not run.denials()


def test_a_compressed_frame_where_tokens_are_looked_for(bench: Make) -> None:
    """Nobody agreed on it: the connection ends, and nothing of it arrives."""
    arrived: list[bytes] = []

    def swallow(sock: socket.socket) -> None:
        head_of(sock)
        sock.sendall(GRANTED)
        while data := sock.recv(65536):
            arrived.append(data)

    with serving(swallow) as server:
        run = bench(rules(rule("web.test", server.port), canaries=True), canaries=(TOKEN,))
        with opened(run, server.port) as sock:
            sock.sendall(masked(1, zlib.compress(TOKEN), reserved=0x40))
            assert read_all(sock) == b""
    assert arrived == []


RETURNED: dict[str, list[bytes]] = {
    "one frame": [frame(1, b"you sent " + SECRET + b".", final=True)],
    "base64": [frame(1, __import__("base64").b64encode(b"xx" + SECRET), final=True)],
    "two frames": [frame(1, b"a" + SECRET[:5], final=False) + frame(0, SECRET[5:], final=True)],
    "with a ping between": [
        frame(1, SECRET[:5], final=False),
        frame(9, b"ping", final=True),
        frame(0, SECRET[5:], final=True),
    ],
    "byte by byte": [bytes((byte,)) for byte in frame(1, b"x" * 300 + SECRET + b"y" * 300, final=True)],
    "in a ping": [frame(9, SECRET, final=True)],
}


@pytest.mark.parametrize("way", RETURNED)
@pytest.mark.parametrize("reflects", [True, False], ids=["reflects", "control"])
def test_a_secret_in_frames(bench: Make, way: str, reflects: bool) -> None:
    """Is blotted out of messages, which stay whole; without `reflects` it arrives."""

    def answer(sock: socket.socket) -> None:
        assert SECRET in head_of(sock)
        sock.sendall(GRANTED + RETURNED[way][0])
        for piece in RETURNED[way][1:]:
            sock.sendall(piece)
        sock.sendall(frame(2, b"the end", final=True))

    credential = Credential("key", source="env:KEY", reflects=reflects)
    with serving(answer) as server:
        given = rules(rule("web.test", server.port, credential="key"), credentials=(credential,))
        run = bench(given, secrets={"key": SECRET.decode()})
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(OPENING)
            got = read_all(sock)
    frames = got.partition(b"\r\n\r\n")[2]
    plain = b"".join(RETURNED[way])
    assert len(b"".join(texts(frames))) == len(b"".join(texts(plain))) + len(b"the end")
    assert texts(frames)[-1] == b"the end"
    wanted = b"".join(texts(plain))
    assert (b"*" in b"".join(texts(frames))) is reflects
    assert (wanted in b"".join(texts(frames))) is not reflects


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sampled_from([1, 2, 9]), st.binary(max_size=200)), max_size=6), st.integers(1, 50))
def test_other_messages_are_as_they_were(messages: list[tuple[int, bytes]], size: int) -> None:
    """However their bytes are cut."""
    messages = [(kind, text[:125] if kind == 9 else text) for kind, text in messages]
    data = b"".join(frame(kind, text, final=True) for kind, text in messages)
    scrubber = FrameScrubber(Reflected([SECRET]))
    out = b"".join(scrubber.feed(data[at : at + size]) for at in range(0, len(data), size))
    assert texts(out) == [text for _kind, text in messages]


def test_many_small_frames_are_searched_together() -> None:
    """A search looks at what came before, too: one for each byte would take a second, while other runs wait."""
    searched: list[bytes] = []

    class Counting:
        def clean(self, data: bytes) -> bool:
            searched.append(data)
            return True

    meter = cast("ByteMeter", Counting())
    assert ClientSearch(meter, meter).passes((masked(1, b"x") + masked(9, b"y")) * 1000)
    assert sorted(searched) == [b"x" * 1000, b"y" * 1000]


@pytest.mark.parametrize("kind", [1, 9])
def test_many_small_frames_are_scrubbed_together(kind: int) -> None:
    """And leave as they came."""
    scrubber = FrameScrubber(Reflected([SECRET]))
    scrubber.feed(frame(1, b"%41" * 2000, final=True))
    data = frame(kind, b"%", final=True) * 1500
    began = time.thread_time()
    assert scrubber.feed(data) == data
    assert time.thread_time() - began < 0.5  # 1.5 ms each, if each is searched by itself


def test_a_secret_over_messages_and_pings() -> None:
    """Is blotted out of each that came at the same time."""
    scrubber = FrameScrubber(Reflected([SECRET]))
    data = b"".join(frame(1, bytes((byte,)), final=True) + frame(9, b"p", final=True) for byte in SECRET)
    assert scrubber.feed(data) == (frame(1, b"*", final=True) + frame(9, b"p", final=True)) * len(SECRET)


@pytest.mark.parametrize("head", ["c100", "8300", "0900", "89fe0100", "81ff8000000000000000"])
def test_what_is_no_frame(head: str) -> None:
    """Reserved bits, unknown kinds, control frames in parts or too long, lengths beyond all."""
    with pytest.raises(BadFrameError):
        list(WebSocketFrames().take(bytes.fromhex(head) + b"x" * 20))


def test_parts_of_a_frame() -> None:
    """As they come."""
    frames = WebSocketFrames()
    data = masked(1, b"hello")
    assert list(frames.take(data[:3])) == []
    assert list(frames.take(data[3:8])) == [FramePart(1, b"he", final=True, ends=False)]
    assert list(frames.take(data[8:])) == [FramePart(1, b"llo", final=True, ends=True)]


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"identity"])
def test_an_answer_that_is_compressed_all_the_same(bench: Make, coding: bytes) -> None:
    """Can't be searched, so it does not pass; the server was asked for none."""
    asked: list[bytes] = []
    body = gzip.compress(SECRET) if coding == b"gzip" else b"a body"

    def answer(sock: socket.socket) -> None:
        asked.append(head_of(sock))
        sock.sendall(
            b"HTTP/1.1 200 %s\r\nContent-Encoding: %s\r\nX-%s: 1\r\nContent-Length: %d\r\n\r\n%s"
            % (SECRET, coding, SECRET, len(body), body)
        )

    credential = Credential("key", source="env:KEY", reflects=True)
    with serving(answer) as server:
        given = rules(rule("web.test", server.port, credential="key"), credentials=(credential,))
        run = bench(given, secrets={"key": SECRET.decode()})
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: web.test\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n")
            got = read_all(sock)
    assert b"accept-encoding: identity" in asked[0].lower()
    assert SECRET not in got
    assert got.startswith(b"HTTP/1.1 200" if coding == b"identity" else b"HTTP/1.1 502")
