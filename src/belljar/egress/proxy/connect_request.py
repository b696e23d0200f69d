"""The CONNECT of a client that uses us as its HTTP proxy: exactly its head is taken off the connection."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

import httptools

from belljar.egress.decide.names import NameRefused
from belljar.egress.protocols.http1_messages import MAX_HEAD, split_connect
from belljar.egress.proxy.waiting import peek, until_readable, wake_when_more

_METHOD = b"CONNECT "


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """Where a CONNECT wants to go; without a host, `reason` says what is wrong with it."""

    host: str
    port: int
    reason: str = ""
    said: str = ""


async def read_connect(sock: socket.socket, *, seconds: float) -> ConnectRequest | None:
    """The CONNECT that the connection begins with; None when it begins with another request, which is left unread.

    Raises:
        OSError: no whole head came.
    """
    head = await _peek_head(sock, seconds)
    if head is None:
        return None
    sock.recv(len(head))
    return parse(head)


async def _peek_head(sock: socket.socket, seconds: float) -> bytes | None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    seen = -1
    while True:
        first = peek(sock, MAX_HEAD)
        if first is not None:
            if len(first) == seen or not first:
                raise ConnectionResetError("the client is gone")
            if first[: len(_METHOD)] != _METHOD[: len(first)]:
                wake_when_more(sock, 0)
                return None
            end = first.find(b"\r\n\r\n")
            if end >= 0:
                wake_when_more(sock, 0)
                return first[: end + 4]
            if len(first) >= MAX_HEAD:
                return first
            seen = len(first)
            wake_when_more(sock, seen)
        if await until_readable(sock, seconds=deadline - loop.time()) is None:
            raise TimeoutError("the head took too long")


class _Reader:
    def __init__(self) -> None:
        self.target = b""

    def on_url(self, part: bytes) -> None:
        self.target += part


def parse(head: bytes) -> ConnectRequest:
    """What a CONNECT's head says."""
    reader = _Reader()
    parser = httptools.HttpRequestParser(reader)
    try:
        parser.feed_data(head)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError:
        return ConnectRequest("", 0, "bad-request", _shown(reader.target))
    if parser.get_http_version() not in ("1.1", "1.0"):
        return ConnectRequest("", 0, "bad-request", _shown(reader.target))
    try:
        host, port = split_connect(reader.target)
    except NameRefused as error:
        return ConnectRequest("", 0, error.reason, _shown(reader.target))
    return ConnectRequest(host, port)


def _shown(target: bytes) -> str:
    return target.decode("latin-1")[:253]
