"""The sockets of DNS: datagrams answered from the address that was asked, and streams of messages with their length."""

from __future__ import annotations

import contextlib
import socket
import struct

from belljar.egress.protocols.dns import Lookup, answer
from belljar.egress.proxy.waiting import until_readable, until_writable

_AT_ONCE = 4
_MAX_DATAGRAM = 4096
_IDLE_SECONDS = 10.0
_MAX_QUESTIONS = 200
_IP_PKTINFO = 8  # missing in `socket` before Python 3.14
_V4_INFO = struct.Struct("=i4s4s")


def prepare(sock: socket.socket) -> None:
    """Let each datagram say which address it was sent to: the answer has to come from there."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)


def answer_datagrams(sock: socket.socket, lookup: Lookup) -> None:
    """Answer what has arrived."""
    for _datagram in range(_AT_ONCE):
        try:
            wire, ancillary, _flags, sender = sock.recvmsg(_MAX_DATAGRAM, 256)
        except OSError:
            return
        said = answer(wire, lookup)
        if said is not None:
            with contextlib.suppress(OSError):
                sock.sendmsg([said], _from_there(ancillary), 0, sender)


def _from_there(ancillary: list[tuple[int, int, bytes]]) -> list[tuple[int, int, bytes]]:
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_PKTINFO:
            return [(level, kind, data)]
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == _IP_PKTINFO:
            _interface, _local, asked = _V4_INFO.unpack_from(data)
            return [(level, kind, _V4_INFO.pack(0, asked, bytes(4)))]
    return []


async def answer_stream(sock: socket.socket, lookup: Lookup) -> None:
    """Answer the questions of one TCP connection until it ends."""
    for _question in range(_MAX_QUESTIONS):
        head = await _exactly(sock, 2)
        wire = await _exactly(sock, int.from_bytes(head, "big")) if head else b""
        said = answer(wire, lookup) if wire else None
        if said is None:
            return
        await _send(sock, len(said).to_bytes(2, "big") + said)


async def _send(sock: socket.socket, data: bytes) -> None:
    """Send all of it. Raises OSError."""
    while data:
        try:
            data = data[sock.send(data) :]
        except (BlockingIOError, InterruptedError):
            if await until_writable(sock, seconds=_IDLE_SECONDS) is None:
                raise TimeoutError("the client does not read") from None


async def _exactly(sock: socket.socket, count: int) -> bytes:
    """So many bytes, or none when they do not come."""
    read = b""
    while len(read) < count:
        try:
            piece = sock.recv(count - len(read))
        except (BlockingIOError, InterruptedError):
            if await until_readable(sock, seconds=_IDLE_SECONDS) is None:
                return b""
            continue
        if not piece:
            return b""
        read += piece
    return read
