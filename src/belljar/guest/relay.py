"""Connections to the egress proxy, for a container that no cable can be laid to: carried over the gate's own channel.

The gate listens on the container's loopback for programs that are told of a proxy. What they say travels in frames to
the host, which hands each connection to the proxy; the container itself has no network at all. Both sides use this.

A frame's payload is the connection's number, a letter, and data:

    O  opened, with the name of the door that was used      D  data      E  no more data will come
    A  so many bytes were taken (four bytes)                C  it is over
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Callable

PORTS = {3128: b"http-proxy", 1080: b"socks"}
MOST = 256
"""Connections at once; others wait in the listener's queue."""
_WINDOW = 1 << 16
"""How much of one connection may be under way before the other side has said that it took it."""
_CHUNK = 1 << 15
_HEAD = struct.Struct("!Ic")
_RESETS = (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN)


def pack(number: int, letter: bytes, data: bytes = b"") -> bytes:
    """The payload of a frame."""
    return _HEAD.pack(number, letter) + data


def unpack(payload: bytes) -> tuple[int, bytes, bytes]:
    """Number, letter and data. Raises ValueError for what is no such payload."""
    if len(payload) < _HEAD.size:
        raise ValueError("a frame that is too short")
    number, letter = _HEAD.unpack_from(payload)
    return number, letter, payload[_HEAD.size :]


class Connection:
    """One end of a carried connection: a socket here, frames to and from the other end."""

    def __init__(self, number: int, end: socket.socket, send: Callable[[bytes], None]) -> None:
        self.number = number
        self.end = end
        self._send = send
        self._unsaid = bytearray()
        self._under_way = 0
        self._reads, self._writes = True, True
        self._said_all = False
        self.over = False
        end.setblocking(False)  # noqa: FBT003

    def events(self, *, may_read: bool) -> int:
        """What to poll the socket for."""
        wanted = select.POLLIN if may_read and self._reads and self._under_way < _WINDOW else 0
        return wanted | (select.POLLOUT if self._unsaid else 0)

    def handle(self, event: int) -> None:
        """The socket can be read or written, or is broken."""
        if event & select.POLLOUT:
            self._write()
        if not self.over and event & (select.POLLIN | select.POLLHUP | select.POLLERR) and self._reads:
            self._read()
        elif event & select.POLLERR and not self.over:
            self.close()

    def _read(self) -> None:
        try:
            data = self.end.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if data:
            self._under_way += len(data)
            self._send(pack(self.number, b"D", data))
        else:
            self._reads = False
            self._send(pack(self.number, b"E"))
            self._end_if_done()

    def hear(self, letter: bytes, data: bytes) -> None:
        """A frame from the other end."""
        if letter == b"D":
            if len(self._unsaid) + len(data) > 2 * _WINDOW:  # the other end does not keep to the window
                self.close()
                return
            self._unsaid += data
            self._write()
        elif letter == b"A" and len(data) == 4:
            self._under_way -= int.from_bytes(data, "big")
        elif letter == b"E":
            self._said_all = True
            self._write()
        elif letter == b"C":
            self._finish()

    def _write(self) -> None:
        taken = 0
        try:
            while self._unsaid:
                written = self.end.send(self._unsaid[:_CHUNK])
                del self._unsaid[:written]
                taken += written
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.close()
            return
        if taken:
            self._send(pack(self.number, b"A", taken.to_bytes(4, "big")))
        if self._said_all and not self._unsaid and self._writes:
            self._writes = False
            try:
                self.end.shutdown(socket.SHUT_WR)
            except OSError as error:
                if error.errno not in _RESETS:
                    raise
            self._end_if_done()

    def _end_if_done(self) -> None:
        if not self._reads and not self._writes:
            self.close()

    def close(self) -> None:
        """End it on both sides."""
        if not self.over:
            self._send(pack(self.number, b"C"))
            self._finish()

    def _finish(self) -> None:
        if not self.over:
            self.over = True
            self.end.close()


class Wicket:
    """The guest's side: listeners on the container's loopback, and the connections that came in by them."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self._count = 0
        self._connections: dict[int, Connection] = {}
        self._by_descriptor: dict[int, Connection] = {}
        self._listeners = {}
        for port, role in PORTS.items():
            listener = socket.create_server(("127.0.0.1", port), backlog=MOST)
            listener.setblocking(False)  # noqa: FBT003
            self._listeners[listener.fileno()] = (listener, role)

    def register(self, poll: select.poll, *, may_read: bool) -> None:
        """Tell what to wait for. Without `may_read`, nothing more is taken in: the channel is full."""
        if may_read and len(self._connections) < MOST:
            for descriptor in self._listeners:
                poll.register(descriptor, select.POLLIN)
        self._by_descriptor = {}
        for connection in self._connections.values():
            descriptor = connection.end.fileno()
            self._by_descriptor[descriptor] = connection
            if events := connection.events(may_read=may_read):
                poll.register(descriptor, events)

    def handle(self, descriptor: int, event: int) -> bool:
        """Something happened at one of its descriptors; False if it is none of its."""
        if descriptor in self._listeners:
            self._accept(*self._listeners[descriptor])
        elif connection := self._by_descriptor.get(descriptor):
            if not connection.over:
                connection.handle(event)
            self._forget(connection)
        else:
            return False
        return True

    def hear(self, payload: bytes) -> None:
        """A frame from the host."""
        number, letter, data = unpack(payload)
        if connection := self._connections.get(number):
            connection.hear(letter, data)
            self._forget(connection)

    def _accept(self, listener: socket.socket, role: bytes) -> None:
        try:
            end, _address = listener.accept()
        except OSError:
            return
        self._count += 1
        self._send(pack(self._count, b"O", role))
        self._connections[self._count] = Connection(self._count, end, self._send)

    def _forget(self, connection: Connection) -> None:
        if connection.over:
            self._connections.pop(connection.number, None)


class Exit:
    """The host's side: each connection that the guest opens becomes one of the proxy's."""

    def __init__(self, send: Callable[[bytes], None], hand_over: Callable[[bytes, socket.socket], None]) -> None:
        self._send = send
        self._hand_over = hand_over
        self._connections: dict[int, Connection] = {}
        self._by_descriptor: dict[int, Connection] = {}

    def register(self, poll: select.poll, *, may_read: bool) -> None:
        """Tell what to wait for. Without `may_read`, nothing more is taken in: the guest takes too little."""
        self._by_descriptor = {}
        for connection in self._connections.values():
            descriptor = connection.end.fileno()
            self._by_descriptor[descriptor] = connection
            if events := connection.events(may_read=may_read):
                poll.register(descriptor, events)

    def handle(self, descriptor: int, event: int) -> None:
        """Something happened at a descriptor that may be one of its."""
        if connection := self._by_descriptor.get(descriptor):
            if not connection.over:
                connection.handle(event)
            self._forget(connection)

    def hear(self, payload: bytes) -> None:
        """A frame from the guest. What makes no sense is not listened to."""
        try:
            number, letter, data = unpack(payload)
        except ValueError:
            return
        connection = self._connections.get(number)
        if letter == b"O" and connection is None and data in PORTS.values() and len(self._connections) < MOST:
            self._open(number, data)
        elif connection is not None:
            connection.hear(letter, data)
            self._forget(connection)

    def _open(self, number: int, role: bytes) -> None:
        ours, theirs = socket.socketpair()
        connection = Connection(number, ours, self._send)
        with theirs:
            try:
                self._hand_over(role, theirs)
            except OSError:  # the proxy is gone
                connection.close()
                return
        self._connections[number] = connection

    def _forget(self, connection: Connection) -> None:
        if connection.over:
            self._connections.pop(connection.number, None)

    def close(self) -> None:
        """The run is over."""
        for connection in self._connections.values():
            connection.end.close()
        self._connections = {}


def hand_over(relay: socket.socket, role: bytes, end: socket.socket) -> None:
    """Pass a connection on to whoever has the other end of `relay`. Raises OSError when nobody has."""
    socket.send_fds(relay, [role], [end.fileno()], socket.MSG_NOSIGNAL)


__all__ = ["MOST", "PORTS", "Connection", "Exit", "Wicket", "hand_over", "pack", "unpack"]
