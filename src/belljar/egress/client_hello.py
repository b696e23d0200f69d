"""What a TLS client says first: the server name it wants and whether it speaks HTTP/2. OpenSSL itself reads it.

The bytes come from inside a jar and were only peeked at: the connection is handed on with them still unread.
"""

from __future__ import annotations

import ssl

from belljar.policy.records import dataclass

MAX_HELLO = 64 << 10


class BadHelloError(Exception):
    """It starts like TLS and is no ClientHello that OpenSSL takes."""


@dataclass(frozen=True, slots=True)
class Hello:
    """A ClientHello."""

    server_name: str | None
    protocol: str
    """The best of `h2` and `http/1.1` that the client offers, or nothing."""


def looks_like_tls(first: bytes) -> bool:
    """Whether a connection that starts so is TLS: a handshake record of version 3.x."""
    return first[:2] == b"\x16\x03"


class HelloReader:
    """Reads ClientHellos.

    A context without a certificate stops right after the extensions, before any key is made. It has to be TLS 1.3 for
    that; a client of TLS 1.2 is read with `certified`, a context that can answer it.
    """

    def __init__(self, certified: ssl.SSLContext) -> None:
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        bare.minimum_version = ssl.TLSVersion.TLSv1_3
        self._seen: list[str | None] = []
        self._contexts = (bare, certified)
        for context in self._contexts:
            context.set_alpn_protocols(["h2", "http/1.1"])
            context.sni_callback = self._note

    def _note(self, _connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        self._seen.append(name)

    def read(self, first: bytes) -> Hello | None:
        """The hello in these bytes, or None while they are too few.

        Raises:
            BadHelloError: no ClientHello, or longer than anyone's.
        """
        for context in self._contexts:
            self._seen.clear()
            incoming = ssl.MemoryBIO()
            incoming.write(first)
            connection = context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True)
            try:
                connection.do_handshake()
            except ssl.SSLWantReadError:
                if not self._seen and len(first) < MAX_HELLO:
                    return None
            except ssl.SSLError:
                pass
            if self._seen:
                return Hello(self._seen[0], connection.selected_alpn_protocol() or "")
        raise BadHelloError
