"""Connections to the egress proxy, for a container that no cable can be laid to: carried over the gate's own channel.

The gate listens on the container's loopback (`loopback_listener`). What programs say there travels in frames to the
host, which hands each connection to the proxy; the container itself has no network at all. Both sides use this.

A frame's payload is the connection's number, a letter, and data:

    O  opened, with what for (see `opening`)      D  data      E  no more data will come
    A  so many bytes were taken (four bytes)      C  it is broken off

A connection that ends in order ends by the `E` of both sides, each when it has passed on what it heard before: after a
`C` nothing more is passed on.
"""

from __future__ import annotations

import errno
import select
import socket
import struct
from collections.abc import Callable, Iterable

PROXIES = {3128: b"http-proxy", 1080: b"socks"}
"""For programs that are told of a proxy, by port."""
NAMES = b"dns"
"""Questions about names and their answers, each with its length before it."""
DIALLED = b"tcp"
"""Whatever was dialled; four bytes of address and two of port follow."""
MOST = 256
"""Connections at once; others wait in the listener's queue."""
MOST_QUESTIONS = 64
"""Datagrams that wait for their answer; others wait in the socket's queue."""
_WINDOW = 1 << 16
"""How much of one connection may be under way before the other side has said that it took it."""
_CHUNK = 1 << 15
_HEAD = struct.Struct("!Ic")
_MARK = b"\0"
_ROOM = 1 << 20
"""For the mark, in a queue that is full without it."""
_RESET = struct.pack("ii", 1, 0)
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


def dialled(address: str, port: int) -> bytes:
    """What is said with `O` of a connection to this place."""
    return DIALLED + socket.inet_aton(address) + port.to_bytes(2, "big")


def opening(said: bytes) -> bytes | None:
    """What a guest says with `O`, as the proxy is told it; None for what makes no sense.

    A role, and after `tcp` the place that was dialled, in words. What that place is, and who may go there, the proxy
    decides as for any other that was dialled: the guest may say what it wants.
    """
    if said in (*PROXIES.values(), NAMES):
        return said
    place = said.removeprefix(DIALLED)
    if len(said) != len(DIALLED) + 6 or len(place) != 6 or place[4:] == bytes(2):
        return None
    return b"%s %s:%d" % (DIALLED, socket.inet_ntoa(place[:4]).encode(), int.from_bytes(place[4:], "big"))


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
            data, broken_off = receive(self.end, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self.close()
            return
        if data:
            self._under_way += len(data)
            self._send(pack(self.number, b"D", data))
        if broken_off:
            self.close()
        elif not data:
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
            self._under_way = max(0, self._under_way - int.from_bytes(data, "big"))
        elif letter == b"E":
            self._said_all = True
            self._write()
        elif letter == b"C" and self._said_all:  # what it had to say is complete; it only hears nothing any more
            self._reads = False
            self._end_if_done()
        elif letter == b"C":
            self._break_off()

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
        if not self._reads and not self._writes:  # the other end finds that out by itself
            self._finish()

    def close(self) -> None:
        """Break it off on both sides."""
        if not self.over:
            self._send(pack(self.number, b"C"))
            self._break_off()

    def _break_off(self) -> None:
        """A program whose connection this is finds it reset: what it has read is not all that there was."""
        try:
            self.end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except OSError:
            pass
        self._finish()

    def _finish(self) -> None:
        if not self.over:
            self.over = True
            self.end.close()


def register_all(connections: Iterable[Connection], poll: select.poll, *, may_read: bool) -> dict[int, Connection]:
    """Tell what to wait for of each; they, by their descriptors."""
    found = {}
    for connection in connections:
        descriptor = connection.end.fileno()
        found[descriptor] = connection
        if events := connection.events(may_read=may_read):
            poll.register(descriptor, events)
    return found


class Exit:
    """The host's side: each connection that the guest opens becomes one of the proxy's."""

    def __init__(self, send: Callable[[bytes], None], hand_over: Callable[[bytes, socket.socket], None]) -> None:
        self._send = send
        self._hand_over = hand_over
        self._connections: dict[int, Connection] = {}
        self._by_descriptor: dict[int, Connection] = {}

    def register(self, poll: select.poll, *, may_read: bool) -> None:
        """Tell what to wait for. Without `may_read`, nothing more is taken in: the guest takes too little."""
        self._by_descriptor = register_all(self._connections.values(), poll, may_read=may_read)

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
        if connection is not None:
            connection.hear(letter, data)
            self._forget(connection)
        elif letter == b"O":
            role = opening(data)
            if role is not None and len(self._connections) < MOST + MOST_QUESTIONS:
                self._open(number, role)
            else:
                self._send(pack(number, b"C"))

    def _open(self, number: int, role: bytes) -> None:
        try:
            ours, theirs = socket.socketpair()
        except OSError:  # this process has no descriptor left
            self._send(pack(number, b"C"))
            return
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


def break_off(end: socket.socket, descriptor: int) -> None:
    """Have the other side see, when this end of a pair is closed, that it was broken off. Such pairs know no reset.

    So a last byte is sent with a descriptor, whichever, which nothing else that is sent here has. Raises OSError.
    """
    end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ROOM)
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", descriptor))
    socket.socket.sendmsg(end, [_MARK], [rights], socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)  # beneath TLS, if any


def receive(end: socket.socket, size: int) -> tuple[bytes, bool]:
    """What has arrived, and whether it was broken off after that. The descriptor of `break_off` is not taken."""
    data, _none, flags, _sender = end.recvmsg(size)
    if flags & socket.MSG_CTRUNC:
        return data[: -len(_MARK)], True
    return data, False


__all__ = [
    "DIALLED",
    "MOST",
    "MOST_QUESTIONS",
    "NAMES",
    "PROXIES",
    "Connection",
    "Exit",
    "break_off",
    "dialled",
    "hand_over",
    "opening",
    "pack",
    "receive",
    "register_all",
    "unpack",
]
