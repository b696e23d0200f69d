"""The guest's side of a container that no cable can be laid to: on its loopback, as on a network, the gate listens.

All of 127.0.0.0/8 is local, with no privilege. So the proxy gives names addresses out of it, the gate listens on the
policy's ports of every address, and a program that knows of no proxy arrives here. Each connection is carried to the
host with the place that was dialled, each datagram to the name server as a stream of one question. Nothing is decided
here: what is carried, the proxy judges.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Sequence

from belljar.guest.container.relay import (
    MOST,
    MOST_QUESTIONS,
    NAMES,
    PROXIES,
    Connection,
    dialled,
    pack,
    register_all,
    unpack,
)

RESOLVER = "127.18.0.1"
"""The name server. Other addresses of its port are free for the code's own."""
NAMES_PORT = 53
_QUESTION_SECONDS = 5.0
_REST_SECONDS = 0.02
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_MOST_MESSAGE = 4096
"""Bytes of a question, or of an answer that goes into a datagram."""


class LoopbackListener:
    """Listeners on the container's loopback, and the connections and questions that came in by them."""

    def __init__(self, send: Callable[[bytes], None], ports: Sequence[int]) -> None:
        self._send = send
        self._count = 0
        self._connections: dict[int, Connection] = {}
        self._by_descriptor: dict[int, Connection] = {}
        self._questions: dict[int, _Question] = {}
        self._listeners: dict[int, tuple[socket.socket, bytes | None]] = {}
        """With the role that is said of each connection; None where it is the place that was dialled."""
        self.unheard: list[int] = []
        """Ports that could not be had."""
        self._rests_until = 0.0
        """There was no descriptor for another connection: those wait, and the gate does not turn for nothing."""
        self._names: socket.socket | None = None
        for port, role in PROXIES.items():
            self._listen("127.0.0.1", port, role, shared=port in ports)
        self._listen(RESOLVER, NAMES_PORT, NAMES)
        self._answer_names()
        for port in ports:
            if port != NAMES_PORT:
                self._listen("0.0.0.0", port, None, shared=port in PROXIES)  # noqa: S104 - nobody else is in there

    def _listen(self, address: str, port: int, role: bytes | None, *, shared: bool = False) -> None:
        """`shared` is a port of which one address is the proxy's, and the others are hosts'."""
        try:
            listener = socket.create_server((address, port), backlog=MOST, reuse_port=shared)
        except OSError:
            self._miss(port)
            return
        listener.setblocking(False)  # noqa: FBT003
        self._listeners[listener.fileno()] = (listener, role)

    def _answer_names(self) -> None:
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            names.bind((RESOLVER, NAMES_PORT))
        except OSError:
            names.close()
            self._miss(NAMES_PORT)
            return
        names.setblocking(False)  # noqa: FBT003
        self._names = names

    def _miss(self, port: int) -> None:
        if port not in self.unheard:
            self.unheard.append(port)

    @property
    def answering(self) -> str:
        """Where names are answered; empty if nowhere."""
        return RESOLVER if self._names is not None else ""

    # --- the gate's loop ---

    def register(self, poll: select.poll, *, may_read: bool) -> None:
        """Tell what to wait for. Without `may_read`, nothing more is taken in: the channel is full."""
        self._give_up_late_ones()
        if may_read and len(self._connections) < MOST and time.monotonic() >= self._rests_until:
            for descriptor in self._listeners:
                poll.register(descriptor, select.POLLIN)
        if may_read and self._names is not None and len(self._questions) < MOST_QUESTIONS:
            poll.register(self._names.fileno(), select.POLLIN)
        self._by_descriptor = register_all(self._connections.values(), poll, may_read=may_read)

    def handle(self, descriptor: int, event: int) -> bool:
        """Something happened at one of its descriptors; False if it is none of its."""
        if descriptor in self._listeners:
            self._accept(*self._listeners[descriptor])
        elif self._names is not None and descriptor == self._names.fileno():
            self._ask(self._names)
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
        elif question := self._questions.get(number):
            self._answered(number, question, letter, data)

    def look_once_more(self) -> None:
        """The code has ended: what it tried last is carried, too, with what it said first."""
        for listener, role in self._listeners.values():
            while len(self._connections) < MOST and self._accept(listener, role):
                pass
        for connection in list(self._connections.values()):
            if connection.events(may_read=True) & select.POLLIN:
                connection.handle(select.POLLIN)
        if self._names is not None:
            self._ask(self._names)

    # --- connections ---

    def _accept(self, listener: socket.socket, role: bytes | None) -> bool:
        """Whether there was one."""
        try:
            end, _address = listener.accept()
            place = end.getsockname()
        except OSError as error:
            if error.errno in _SCARCE:
                self._rests_until = time.monotonic() + _REST_SECONDS
            return False
        number = self._open(role if role is not None else dialled(place[0], place[1]))
        self._connections[number] = Connection(number, end, self._send)
        return True

    def _open(self, said: bytes) -> int:
        self._count += 1
        self._send(pack(self._count, b"O", said))
        return self._count

    def _forget(self, connection: Connection) -> None:
        if connection.over:
            self._connections.pop(connection.number, None)

    # --- questions ---

    def _ask(self, names: socket.socket) -> None:
        """Carry what has arrived, as far as there is room."""
        for _datagram in range(MOST_QUESTIONS - len(self._questions)):
            try:
                asked, sender = names.recvfrom(_MOST_MESSAGE + 1)
            except OSError:  # no more; or an earlier answer found nobody
                return
            if 0 < len(asked) <= _MOST_MESSAGE:
                number = self._open(NAMES)
                self._send(pack(number, b"D", len(asked).to_bytes(2, "big") + asked))
                self._questions[number] = _Question(sender)

    def _answered(self, number: int, question: _Question, letter: bytes, data: bytes) -> None:
        if letter == b"D":
            question.heard += data
            size = int.from_bytes(question.heard[:2], "big")
            if len(question.heard) < 2 or len(question.heard) < 2 + size <= 2 + _MOST_MESSAGE:
                return
            self._say(question, size)
        if letter in (b"D", b"E"):
            self._send(pack(number, b"C"))
        if letter in (b"D", b"E", b"C"):
            del self._questions[number]

    def _say(self, question: _Question, size: int) -> None:
        assert self._names is not None
        if size > _MOST_MESSAGE:
            return
        try:
            self._names.sendto(question.heard[2 : 2 + size], question.sender)
        except OSError:
            pass  # whoever asked does not listen any more

    def _give_up_late_ones(self) -> None:
        now = time.monotonic()
        for number in [number for number, question in self._questions.items() if question.deadline < now]:
            self._send(pack(number, b"C"))
            del self._questions[number]


class _Question:
    """A datagram that was carried to the proxy, until its answer is complete."""

    def __init__(self, sender: tuple[str, int]) -> None:
        self.sender = sender
        self.heard = bytearray()
        self.deadline = time.monotonic() + _QUESTION_SECONDS


__all__ = ["NAMES_PORT", "RESOLVER", "LoopbackListener"]
