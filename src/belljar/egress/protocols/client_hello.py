"""ClientHellos: the server name that a TLS client wants, read strictly. Pure.

The bytes come from inside a jar. Servers differ in what they forgive: one takes an alert before the hello, one any
version of a record, one the second of two names. Whatever two servers could read differently is refused here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_HELLO = 64 << 10
_MAX_HELLOS = 2
"""The first, and the one that answers a HelloRetryRequest."""
_MAX_RECORDS = 64
"""Records that one ClientHello may be cut into."""
_MAX_FRAGMENT = 1 << 14
_MAX_ENCRYPTED = _MAX_FRAGMENT + 256

_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE, _APPLICATION_DATA, _HEARTBEAT = range(0x14, 0x19)
_CLIENT_HELLO, _SERVER_HELLO = 1, 2
_SERVER_NAME, _PROTOCOLS = 0, 16
_ENCRYPTED_HELLO = frozenset((*range(0xFE00, 0xFE10), 0xFF02, 0xFF03, 0xFFCE))
"""Extensions that carry another, encrypted ClientHello: RFC 9849, its drafts, and ESNI before them."""
_RETRY = bytes.fromhex("cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c")
"""The `random` of a ServerHello that is a HelloRetryRequest (RFC 8446, 4.1.3)."""
_RANDOM = slice(6, 38)
_LIKELY_HELLO = re.compile(rb"\x16\x03.[\x00-\x40].\x01", re.DOTALL)
"""The minor version is any: servers look at the major one of a first record alone (RFC 8446, 5.1: it is ignored)."""
_HANDSHAKE_MARK = b"\x16\x03"


class BadHelloError(Exception):
    """It starts like TLS, and is no plain ClientHello."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A ClientHello."""

    server_name: str | None
    protocol: str
    """The best of `h2` and `http/1.1` that the client offers, or nothing."""
    encrypted: bool = False
    """Whether it carries a second, encrypted ClientHello, which may name another host. Browsers also send a dummy."""


def begins_like_tls(first: bytes) -> bool | None:
    """Return True if some server takes a connection that starts so for TLS, None if more bytes are needed to tell."""
    kind = first[0]
    if kind & 0x80:  # the ClientHello of SSL 2, which names no server and which OpenSSL and Java still take
        if len(first) < 5:
            return None if len(first) < 3 or first[2] == _CLIENT_HELLO else False
        return first[2] == _CLIENT_HELLO and first[3] in (0, 2, 3)
    if not _CHANGE_CIPHER_SPEC <= kind <= _HEARTBEAT:
        return False
    if len(first) < 2:
        return None
    if first[1] == 3:
        return True
    if first[1] >= 0x10 or kind not in (_ALERT, _HANDSHAKE):
        return False
    if len(first) < 6:  # Go takes any version below 16 in the first record
        return None
    length = int.from_bytes(first[3:5], "big")
    return length == 2 if kind == _ALERT else length == 0 or first[5] == _CLIENT_HELLO


def read_hello(first: bytes) -> Hello | None:
    """Return the ClientHello that a connection begins with, or None if more bytes are needed.

    Raises:
        BadHelloError: it begins with anything else.
    """
    hellos = ClientRecords().feed(first)
    if not hellos and len(first) >= MAX_HELLO:
        raise BadHelloError("longer than any ClientHello")
    return hellos[0] if hellos else None


class ClientRecords:
    """Follows the TLS records of a client, from the first one until the server has chosen keys."""

    def __init__(self) -> None:
        self._head = b""
        self._kind = 0
        self._left = 0
        self._message = bytearray()
        self._records = 0
        self._hellos = 0

    @property
    def is_hello(self) -> bool:
        """Return True if what came so far can be nothing but a ClientHello."""
        begun = self._message[:6]
        return self._hellos > 0 or (len(begun) == 6 and begun[:2] == b"\x01\x00" and begun[4] == 3)

    def feed(self, data: bytes) -> list[Hello]:
        """Take the next bytes and return the ClientHellos that end in them.

        Raises:
            BadHelloError: a server could take something else in them for a ClientHello.
        """
        found: list[Hello] = []
        at = 0
        while at < len(data):
            if not self._left:
                more = data[at : at + 5 - len(self._head)]
                self._head += more
                at += len(more)
                if len(self._head) == 5:
                    self._begin_record()
                continue
            fragment = data[at : at + self._left]
            self._left -= len(fragment)
            at += len(fragment)
            if self._kind == _HANDSHAKE:
                self._message += fragment
                if hello := self._whole_message():
                    found.append(hello)
        return found

    def _begin_record(self) -> None:
        kind, major, length = self._head[0], self._head[1], int.from_bytes(self._head[3:5], "big")
        self._head = b""
        self._kind, self._left = kind, length
        if major != 3 or not length:
            raise BadHelloError("a record of another version, or an empty one")
        if kind == _HANDSHAKE:
            self._records += 1
            if length > _MAX_FRAGMENT or self._records > _MAX_RECORDS:
                raise BadHelloError("a ClientHello in too many records")
            return
        longest = {_CHANGE_CIPHER_SPEC: 1, _ALERT: 2, _APPLICATION_DATA: _MAX_ENCRYPTED}.get(kind, 0)
        if not self._hellos or self._message or length > longest:
            raise BadHelloError("something else before, or within, the ClientHello")

    def _whole_message(self) -> Hello | None:
        message = self._message
        if message[0] != _CLIENT_HELLO:
            raise BadHelloError("a handshake that does not begin with a ClientHello")
        if len(message) < 4:
            return None
        length = 4 + int.from_bytes(message[1:4], "big")
        if length > MAX_HELLO or len(message) > length or self._hellos == _MAX_HELLOS:
            raise BadHelloError("more than a ClientHello")
        if len(message) < length:
            return None
        self._hellos += 1
        self._records = 0
        self._message = bytearray()
        return _parse(bytes(message[4:]))


class Greeting:
    """Both directions of a TLS connection, until what the client says is encrypted."""

    def __init__(self) -> None:
        self._client = ClientRecords()
        self._heard = b""
        self._deaf = False
        """Whether the server speaks no TLS. Then the client stays watched."""

    def from_client(self, data: bytes) -> list[Hello]:
        """Return the ClientHellos that end in these bytes. Raises BadHelloError."""
        return self._client.feed(data)

    def chosen(self, data: bytes) -> bool:
        """Take bytes of the server. Return True if it has chosen keys: it reads no ClientHello any more."""
        if self._deaf:
            return False
        self._heard += data
        said = self._messages()
        while len(said) >= 38 and said[0] == _SERVER_HELLO:
            if said[_RANDOM] != _RETRY:
                return True
            said = said[4 + int.from_bytes(said[1:4], "big") :]
        self._deaf = self._deaf or len(self._heard) > MAX_HELLO
        return False

    def _messages(self) -> bytes:
        """Return the handshake messages in what the server has said so far."""
        heard, at = self._heard, 0
        messages = b""
        while at + 5 <= len(heard):
            kind, length = heard[at], int.from_bytes(heard[at + 3 : at + 5], "big")
            if heard[at + 1] != 3 or kind not in (_CHANGE_CIPHER_SPEC, _ALERT, _HANDSHAKE):
                self._deaf = True
                break
            if kind == _HANDSHAKE:
                messages += heard[at + 5 : at + 5 + length]
            at += 5 + length
        return messages


class HelloSearch:
    """Looks for ClientHellos on a connection that began with another protocol (STARTTLS)."""

    def __init__(self) -> None:
        self._window = b""
        self._records: ClientRecords | None = None
        """Those of what is likely to be a ClientHello and starts the window."""

    def feed(self, data: bytes) -> list[Hello]:
        """Take the client's next bytes and return the ClientHellos that end in them.

        Raises:
            BadHelloError: a ClientHello that two servers could read differently.
        """
        self._window += data
        found: list[Hello] = []
        new = data
        while True:
            if self._records is None:
                likely = _LIKELY_HELLO.search(self._window) if _HANDSHAKE_MARK in self._window else None
                if likely is None:
                    self._window = self._window[-5:]
                    return found
                new = self._window = self._window[likely.start() :]
                self._records = ClientRecords()
            try:
                hellos = self._records.feed(new)
                if not hellos:
                    return found
            except BadHelloError:
                if self._records.is_hello:
                    raise
                hellos = []
            found += hellos
            self._records, self._window = None, self._window[1:]


def _parse(body: bytes) -> Hello:
    """Read a ClientHello that begins with its version. Raises BadHelloError."""
    version, body = _cut(body, 2)
    _random, body = _cut(body, 32)
    session, body = _sized(body, 1)
    ciphers, body = _sized(body, 2)
    methods, body = _sized(body, 1)
    if version[0] != 3 or len(session) > 32 or not ciphers or len(ciphers) % 2 or not methods:
        raise BadHelloError("a ClientHello that is not well formed")
    extensions = _extensions(body) if body else {}
    return Hello(
        server_name=_server_name(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else None,
        protocol=_protocol(extensions.get(_PROTOCOLS)),
        encrypted=not _ENCRYPTED_HELLO.isdisjoint(extensions),
    )


def _extensions(body: bytes) -> dict[int, bytes]:
    rest, after = _sized(body, 2)
    if after:
        raise BadHelloError("something after the extensions")
    found: dict[int, bytes] = {}
    while rest:
        kind, rest = _cut(rest, 2)
        number = int.from_bytes(kind, "big")
        if number in found:
            raise BadHelloError("an extension twice")
        found[number], rest = _sized(rest, 2)
    return found


def _server_name(value: bytes) -> str:
    names, after = _sized(value, 2)
    kind, names = _cut(names, 1)
    name, more = _sized(names, 2)
    if after or more or kind != b"\x00" or not name:
        raise BadHelloError("other than one server name")
    return name.decode("latin-1")


def _protocol(value: bytes | None) -> str:
    if value is None:
        return ""
    rest, after = _sized(value, 2)
    offered = set()
    while rest:
        name, rest = _sized(rest, 1)
        offered.add(name)
    if after or not offered or b"" in offered:
        raise BadHelloError("a list of protocols that is not well formed")
    return next((name.decode() for name in (b"h2", b"http/1.1") if name in offered), "")


def _cut(data: bytes, count: int) -> tuple[bytes, bytes]:
    if len(data) < count:
        raise BadHelloError("a ClientHello that ends too early")
    return data[:count], data[count:]


def _sized(data: bytes, width: int) -> tuple[bytes, bytes]:
    """Return a part that says its length in so many bytes, and what follows it."""
    length, rest = _cut(data, width)
    return _cut(rest, int.from_bytes(length, "big"))
