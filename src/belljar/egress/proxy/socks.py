"""SOCKS5 (RFC 1928): a state machine that is shown what has arrived and says what to do with it, and the socket for it.

No authentication, CONNECT only. A name stays the bytes that were sent: whether it is one is judged where all names are.
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from belljar.egress.proxy.waiting import peek, until_readable, wake_when_more

MAX_MESSAGE = 4 + 1 + 255 + 2
"""The longest message of a handshake; the greeting has at most 257 bytes."""

SUCCEEDED = 0
NOT_ALLOWED = 2
_COMMAND_NOT_SUPPORTED = 7
_ADDRESS_NOT_SUPPORTED = 8
_NO_AUTHENTICATION = 0


def reply(code: int) -> bytes:
    """The answer to a request."""
    return bytes((5, code, 0, 1, 0, 0, 0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class SocksStep:
    """What to do next: take `consumed` bytes off the connection, send `reply`, and then what the rest says."""

    consumed: int
    reply: bytes = b""
    host: bytes = b""
    port: int = 0
    asked: bool = False
    """Whether the client has said where it wants to go."""
    failed: bool = False
    """Close after the reply."""


async def converse(sock: socket.socket, *, seconds: float) -> SocksStep | None:
    """Hold the handshake over a socket, up to where the client says where it wants to go; None when it failed.

    Only what belongs to the handshake is taken off the connection. The request is left unanswered.
    """
    handshake = Handshake()
    while True:
        step = await _next_step(sock, handshake, seconds)
        if step is None:
            return None
        sock.recv(step.consumed)
        if step.reply:
            sock.send(step.reply)
        if step.failed:
            return None
        if step.asked:
            return step


async def _next_step(sock: socket.socket, handshake: Handshake, seconds: float) -> SocksStep | None:
    seen = -1
    while True:
        arrived = peek(sock, MAX_MESSAGE)
        if arrived is not None:
            if len(arrived) == seen or not arrived:
                return None
            seen = len(arrived)
            step = handshake.step(arrived)
            if step is not None:
                wake_when_more(sock, 0)
                return step
            wake_when_more(sock, seen)
        if await until_readable(sock, seconds=seconds) is None:
            return None


class Handshake:
    """The state of one handshake."""

    def __init__(self) -> None:
        self._greeted = False

    def step(self, arrived: bytes) -> SocksStep | None:
        """What these bytes call for, or None: more have to come."""
        if not arrived:
            return None
        if arrived[0] != 5:
            return SocksStep(len(arrived), failed=True)
        if self._greeted:
            return _request(arrived)
        return self._greeting(arrived)

    def _greeting(self, arrived: bytes) -> SocksStep | None:
        if len(arrived) < 2 or len(arrived) < 2 + arrived[1]:
            return None
        length = 2 + arrived[1]
        if _NO_AUTHENTICATION not in arrived[2:length]:
            return SocksStep(length, b"\x05\xff", failed=True)
        self._greeted = True
        return SocksStep(length, b"\x05\x00")


def _request(arrived: bytes) -> SocksStep | None:
    if len(arrived) < 5:
        return None
    kind = arrived[3]
    sizes = {1: (4, 4), 3: (5, arrived[4]), 4: (4, 16)}
    if kind not in sizes:
        return SocksStep(len(arrived), reply(_ADDRESS_NOT_SUPPORTED), failed=True)
    start, size = sizes[kind]
    end = start + size
    if len(arrived) < end + 2:
        return None
    if arrived[1] != 1:
        return SocksStep(end + 2, reply(_COMMAND_NOT_SUPPORTED), failed=True)
    host = arrived[start:end]
    if kind != 3:
        host = str(ipaddress.ip_address(host)).encode()
    return SocksStep(end + 2, host=host, port=int.from_bytes(arrived[end : end + 2], "big"), asked=True)
