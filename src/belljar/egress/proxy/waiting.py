"""Waiting for sockets, for the part of a connection that happens once: its first bytes, dialling, handshakes.

What waits here is an errand of a run: the run whose turn it is watches its sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

from belljar.egress.proxy.time_slices import READ, WRITE, Signal, TimeSlices


async def until_readable(*sockets: socket.socket, seconds: float) -> socket.socket | None:
    """The first of these that has something to read (or has ended), or None when none has in time."""
    return await _until(sockets, READ, seconds)


async def until_writable(sock: socket.socket, *, seconds: float) -> socket.socket | None:
    """The socket when it can be written to (or its connecting is over), or None when it can't in time."""
    return await _until((sock,), WRITE, seconds)


async def _until(sockets: tuple[socket.socket, ...], wanted: int, seconds: float) -> socket.socket | None:
    turns, ready = TimeSlices.running, Signal()
    assert turns is not None
    timer = turns.loop.call_later(max(0.0, seconds), ready.set)
    descriptors = [sock.fileno() for sock in sockets]
    for sock, descriptor in zip(sockets, descriptors, strict=True):
        turns.watch(descriptor, wanted, lambda _events, sock=sock: ready.set(sock))  # type: ignore[misc]
    try:
        found: socket.socket | None = await ready
        return found
    finally:
        timer.cancel()
        for descriptor in descriptors:
            turns.forget(descriptor)


def peek(sock: socket.socket, size: int) -> bytes | None:
    """What has arrived, left where it is; None when there is nothing yet, empty when nothing will come."""
    try:
        return sock.recv(size, socket.MSG_PEEK)
    except (BlockingIOError, InterruptedError):
        return None


def wake_when_more(sock: socket.socket, than: int) -> None:
    """Report the socket as readable only when it holds more than this many bytes; 0 is as usual."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, than + 1)


async def handshake(sock: ssl.SSLSocket, *, seconds: float) -> None:
    """Complete a TLS handshake.

    Raises:
        OSError: it failed (`ssl.SSLError`), or took too long.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        left = deadline - asyncio.get_running_loop().time()
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            ready = await until_readable(sock, seconds=left)
        except ssl.SSLWantWriteError:
            ready = await until_writable(sock, seconds=left)
        else:
            return
        if ready is None:
            raise TimeoutError("the TLS handshake took too long")
