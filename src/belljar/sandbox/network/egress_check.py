"""Before the code starts: try, from inside its jar's network, a name and a host that must be refused."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack

from belljar.backends.contract import Listener
from belljar.backends.network.addresses import PROXY_ADDRESS
from belljar.egress.decide.rules import Rules
from belljar.egress.decide.steps import decide_connection, decide_name
from belljar.egress.events import Event
from belljar.guest.container.relay import NAMES, dialled, hand_over, opening, receive

ROLES = ("canary-udp", "canary-tcp", "canary-relay")
_SECONDS = 5.0
_ADDRESS = "192.0.2.1"
"""An address for examples: nobody has it."""
_NXDOMAIN, _QUERY_A_IN = 3, b"\x00\x01\x00\x01"


class Canary:
    """The attempts of one run. Those that the policy itself would allow are not made."""

    def __init__(self, rules: Rules, sockets: Iterable[Listener]) -> None:
        self._sockets = {one.role: one for one in sockets}
        self._name = f"{_label()}.belljar-canary.invalid"
        self._tries_name = not decide_name(rules, self._name).allowed
        port = next((one.port for role, one in self._sockets.items() if role in ("canary-tcp", "canary-relay")), 0)
        self._tries_host = bool(port) and not decide_connection(rules, _ADDRESS, port).allowed
        self._port = port

    def is_own(self, event: Event) -> bool:
        """Whether a decision was about one of the attempts, the first time that it is asked."""
        if event.host == self._name:
            return True
        if self._tries_host and (event.host, event.port, event.kind) == (_ADDRESS, self._port, "connect"):
            self._tries_host = False
            return True
        return False

    def close(self) -> None:
        """Nothing is tried: there is no proxy that could refuse it."""
        for one in self._sockets.values():
            os.close(one.descriptor)

    def problems(self) -> list[str]:
        """What was not refused; empty when all is well."""
        with ExitStack() as stack:
            opened = {
                role: stack.enter_context(socket.socket(fileno=one.descriptor)) for role, one in self._sockets.items()
            }
            for each in opened.values():
                each.settimeout(_SECONDS)
            return list(self._attempt(opened))

    def _attempt(self, opened: dict[str, socket.socket]) -> Iterator[str]:
        if "canary-udp" in opened and self._tries_name:
            yield from _ask(opened["canary-udp"], self._name)
        if "canary-tcp" in opened and self._tries_host:
            yield from _dial(opened["canary-tcp"], self._port)
        if "canary-relay" in opened:
            yield from self._carried(opened["canary-relay"])

    def _carried(self, relay: socket.socket) -> Iterator[str]:
        """As if a container's gate had brought these connections."""
        if self._tries_name:
            yield from _through(relay, b"http-proxy", lambda end: _connect(end, self._name))
            yield from _through(relay, NAMES, lambda end: _ask_stream(end, self._name))
        if self._tries_host:
            place = opening(dialled(_ADDRESS, self._port))
            assert place is not None
            yield from _through(relay, place, _request)


def _label() -> str:
    """Random letters and digits, of as much entropy as a name may not have."""
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    return "".join(letters[byte % len(letters)] for byte in os.urandom(48))


def _through(relay: socket.socket, role: bytes, attempt: Callable[[socket.socket], Iterable[str]]) -> Iterator[str]:
    """Try this with a connection that is handed to the proxy."""
    ours, theirs = socket.socketpair()
    with ours:
        ours.settimeout(_SECONDS)
        try:
            with theirs:
                hand_over(relay, role, theirs)
        except OSError as error:
            yield f"the egress proxy takes no connection: {error}"
            return
        yield from attempt(ours)


def _question(name: str) -> bytes:
    labels = b"".join(struct.pack("B", len(label)) + label.encode() for label in name.split(".")) + b"\0"
    return os.urandom(2) + b"\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00" + labels + _QUERY_A_IN


def _ask(resolver: socket.socket, name: str) -> Iterator[str]:
    question = _question(name)
    try:
        resolver.connect((PROXY_ADDRESS, 53))
        resolver.send(question)
        answer = resolver.recv(512)
    except OSError as error:
        yield f"the egress proxy does not answer for names: {error}"
        return
    yield from _judge(question, answer)


def _ask_stream(resolver: socket.socket, name: str) -> Iterator[str]:
    question = _question(name)
    try:
        resolver.sendall(struct.pack("!H", len(question)) + question)
        answer = resolver.recv(512)[2:]
    except OSError as error:
        yield f"the egress proxy does not answer for names: {error}"
        return
    yield from _judge(question, answer)


def _judge(question: bytes, answer: bytes) -> Iterator[str]:
    if len(answer) < 12 or answer[:2] != question[:2] or answer[3] & 0xF != _NXDOMAIN:
        yield "a name that nobody listed was not refused"


def _connect(proxy: socket.socket, name: str) -> Iterator[str]:
    try:
        proxy.sendall(f"CONNECT {name}:443 HTTP/1.1\r\nHost: {name}:443\r\n\r\n".encode())
        answer = proxy.recv(64)
    except OSError as error:
        yield f"the egress proxy does not answer: {error}"
        return
    if not answer.startswith(b"HTTP/1.1 403"):
        yield "a name that nobody listed was not refused"


def _dial(connection: socket.socket, port: int) -> Iterator[str]:
    try:
        connection.connect((_ADDRESS, port))
    except ConnectionError:
        return  # refused without words
    except OSError as error:
        yield f"the egress proxy does not answer for hosts: {error}"
        return
    yield from _request(connection)


def _request(connection: socket.socket) -> Iterator[str]:
    try:
        connection.sendall(f"GET / HTTP/1.1\r\nHost: {_ADDRESS}\r\nConnection: close\r\n\r\n".encode())
        answer, _reset = receive(connection, 64)
    except ConnectionError:
        return  # refused without words
    except OSError as error:
        yield f"the egress proxy does not answer for hosts: {error}"
        return
    if answer and not answer.startswith(b"HTTP/1.1 403"):
        yield "a host that nobody listed was not refused"


__all__ = ["ROLES", "Canary"]
