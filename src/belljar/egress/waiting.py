"""Waiting for sockets, for the part of a connection that happens once: its first bytes, dialling, handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl


async def until_readable(*sockets: socket.socket, seconds: float) -> socket.socket | None:
    """The first of these that has something to read (or has ended), or None when none has in time."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[socket.socket | None] = loop.create_future()
    for sock in sockets:
        loop.add_reader(sock, _settle, ready, sock)
    return await _settled(ready, loop, seconds, readers=sockets)


async def until_writable(sock: socket.socket, *, seconds: float) -> socket.socket | None:
    """The socket when it can be written to (or its connecting is over), or None when it can't in time."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[socket.socket | None] = loop.create_future()
    loop.add_writer(sock, _settle, ready, sock)
    return await _settled(ready, loop, seconds, writers=(sock,))


async def _settled(
    ready: asyncio.Future[socket.socket | None],
    loop: asyncio.AbstractEventLoop,
    seconds: float,
    *,
    readers: tuple[socket.socket, ...] = (),
    writers: tuple[socket.socket, ...] = (),
) -> socket.socket | None:
    timer = loop.call_later(seconds, _settle, ready, None)
    try:
        return await ready
    finally:
        timer.cancel()
        for sock in readers:
            loop.remove_reader(sock)
        for sock in writers:
            loop.remove_writer(sock)


def _settle(ready: asyncio.Future[socket.socket | None], value: socket.socket | None) -> None:
    if not ready.done():
        ready.set_result(value)


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
