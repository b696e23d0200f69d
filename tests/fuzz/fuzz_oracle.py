"""What the rules of the fuzzing say, written down a second time and as plainly as can be.

Nothing here is shared with belljar: where the two differ in favour of what is sent, something has been let through.
"""

from __future__ import annotations

import posixpath
import re
import ssl
from urllib.parse import unquote_to_bytes

_NAME = re.compile(rb"(?:web\.test|(?:[a-z0-9_-]+\.)+wild\.test)\.?\Z", re.IGNORECASE)
_AUTHORITY = re.compile(rb"web\.test\.?(?::(?:443|80))?\Z", re.IGNORECASE)


def name_is_listed(name: bytes) -> bool:
    """The whole name or a subdomain of the starred one; a last dot means nothing."""
    return _NAME.match(name) is not None


def place_is_listed(name: bytes, port: int) -> bool:
    """A name with its port."""
    ports = (443,) if b"wild" in name.lower() else (443, 80)
    return name_is_listed(name) and port in ports


def request_is_listed(method: bytes, target: bytes, authority: bytes) -> bool:
    """GET or POST of /ok and beneath, however a server reads the target, and never beneath /ok/denied."""
    if method not in (b"GET", b"POST") or not _AUTHORITY.match(authority):
        return False
    path = target.partition(b"?")[0].partition(b"#")[0]
    return all(_path_is_listed(reading) for reading in _readings(path))


def _path_is_listed(path: bytes) -> bool:
    return (path == b"/ok" or path.startswith(b"/ok/")) and not path.startswith(b"/ok/denied")


def _readings(path: bytes) -> set[bytes]:
    """As it was sent, decoded once and twice, with backslashes for slashes, and each of these made plain."""
    once = unquote_to_bytes(path)
    found = {path, once, unquote_to_bytes(once)}
    found |= {each.replace(b"\\", b"/") for each in found}
    plain = {b"/" + posixpath.normpath(each).lstrip(b"/") for each in found}
    return found | plain


def question_of(wire: bytes) -> bytes | None:
    """The name in a DNS question, if it is written out plainly."""
    at, labels = 12, []
    while at < len(wire) and 0 < wire[at] < 64:
        labels.append(wire[at + 1 : at + 1 + wire[at]])
        at += 1 + wire[at]
    return b".".join(labels) if at < len(wire) and wire[at] == 0 else None


def socks_request(data: bytes) -> tuple[bytes, int] | None:
    """Where a whole SOCKS5 handshake with a name wants to go."""
    if len(data) < 2 or data[0] != 5:
        return None
    data = data[2 + data[1] :]
    if len(data) < 5 or data[:2] != b"\x05\x01" or data[3] != 3:
        return None
    length = data[4]
    port = data[5 + length : 7 + length]
    return (data[5 : 5 + length], int.from_bytes(port, "big")) if len(port) == 2 else None


def server_name_of(first: bytes) -> bytes | None:
    """The server name in a ClientHello, read by hand."""
    hello = b""
    while first[:2] == b"\x16\x03" and len(first) >= 5:
        length = int.from_bytes(first[3:5], "big")
        hello, first = hello + first[5 : 5 + length], first[5 + length :]
    try:
        at = 4 + 2 + 32
        at += 1 + hello[at]
        at += 2 + int.from_bytes(hello[at : at + 2], "big")
        at += 1 + hello[at] + 2
        while at + 4 <= len(hello):
            kind, length = int.from_bytes(hello[at : at + 2], "big"), int.from_bytes(hello[at + 2 : at + 4], "big")
            if kind == 0:
                return hello[at + 9 : at + 9 + int.from_bytes(hello[at + 7 : at + 9], "big")]
            at += 4 + length
    except IndexError:
        pass
    return None


def names_in_tls(data: bytes) -> set[str | None]:
    """The server names that OpenSSL is asked for by what begins with, or changes to, TLS."""
    found: set[str | None] = set()
    for context in _CONTEXTS:
        context.sni_callback = lambda _connection, name, _context: found.add(name)
        incoming = ssl.MemoryBIO()
        incoming.write(data.removeprefix(b"STARTTLS\r\n"))
        connection = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
        try:
            connection.do_handshake()
        except ssl.SSLError:
            pass
    return found


def _contexts() -> tuple[ssl.SSLContext, ...]:
    """Without a certificate OpenSSL stops behind the extensions; asked for the newest version only, before any key."""
    newest = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    newest.minimum_version = ssl.TLSVersion.TLSv1_3
    return newest, ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


_CONTEXTS = _contexts()
