"""What a connection from a jar begins with: TLS, HTTP, or anything else. Told from bytes that are only peeked at."""

from __future__ import annotations

import asyncio
import re
import socket
from enum import Enum

from belljar.egress.protocols.client_hello import MAX_HELLO, BadHelloError, Hello, begins_like_tls, read_hello
from belljar.egress.proxy.waiting import peek, until_readable, wake_when_more

_KNOWN_METHOD = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE|CONNECT|PRI)(?:[ \t]|\Z)", re.IGNORECASE)
_MAYBE_METHOD = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+(?:[ \t][^\r\n]*)?\Z")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_REQUEST_LINE = re.compile(rb"[^\r\n]*[ \t]HTTP/", re.IGNORECASE)
_PROXY_LINE = b"PROXY "
_PROXY_MARK = b"\r\n\r\n\x00"
"""How the PROXY protocol begins, in its versions 1 and 2: a server that takes it reads a request, or TLS, behind it."""
_BLANK = b" \t\r\n\v\f"
_MAX_LINE = 16 << 10
_UNSURE_SECONDS = 0.3
"""How long an opening that could become a request of an unknown method may be waited for."""
_FRAME_HEAD = 9
_SETTINGS = b"\x04\x00\x00\x00\x00\x00"
"""The rest of an HTTP/2 frame's head, after its length: settings, no flags, of the connection."""


class ConnectionKind(Enum):
    """What a connection turned out to be."""

    TLS = "tls"
    HTTP = "http"
    OTHER = "other"
    UNSURE = "unsure"
    """Not clear yet, and too slow to be waited for."""
    SERVER_FIRST = "server-first"
    ENDED = "ended"
    SILENT = "silent"
    BAD_TLS = "bad-tls"


class _Sure(Enum):
    HTTP = 1
    OTHER = 2
    LIKELY_HTTP = 3
    UNSURE = 4


def _judge(first: bytes) -> _Sure:
    """Tell whether this begins a request; leading blanks do not hide one, however many."""
    if first.startswith(_PROXY_MARK):
        return _Sure.HTTP
    line, newline, _rest = first.lstrip(_BLANK).partition(b"\n")
    if line.startswith(_PROXY_LINE):
        return _Sure.HTTP
    if not newline and line and _TOKEN.match(line):  # however long: a method has no limit, and neither has a word
        return _Sure.UNSURE
    if newline or len(first) >= _MAX_LINE:
        is_request = _REQUEST_LINE.match(line) or _KNOWN_METHOD.match(line)
        unfinished = not newline and (not line or _MAYBE_METHOD.match(line))
        return _Sure.HTTP if is_request or unfinished else _Sure.OTHER
    if _KNOWN_METHOD.match(line):
        return _Sure.LIKELY_HTTP
    return _Sure.UNSURE if not line or _MAYBE_METHOD.match(line) else _Sure.OTHER


def begins_http(data: bytes) -> bool:
    """Whether decrypted bytes, of which no more can be waited for, begin a request."""
    return _judge(data) in (_Sure.HTTP, _Sure.LIKELY_HTTP)


class Opening:
    """Goes on judging what a client says first on a connection that is carried already.

    A client may wait before it speaks, or take its time with its first line. What it says then is carried, as long as
    it is neither a request nor TLS: those would have been judged, had they come at once.
    """

    def __init__(self) -> None:
        self._said = b""
        self._long = False
        """Whether the first word was longer than any line, and was forgotten but for its beginning."""

    def judge(self, data: bytes) -> ConnectionKind:
        """HTTP, TLS or OTHER; UNSURE as long as it is not clear."""
        self._said += data
        tls = begins_like_tls(self._said)
        if tls is not False:
            return ConnectionKind.TLS if tls else ConnectionKind.UNSURE
        sure = _judge(self._said)
        if sure is _Sure.UNSURE:
            if len(self._said) >= _MAX_LINE and self._said.strip(_BLANK):
                self._said, self._long = b"x", True
            return ConnectionKind.UNSURE
        if self._long and b"\n" not in self._said:
            return ConnectionKind.UNSURE if len(self._said) < _MAX_LINE else ConnectionKind.OTHER
        return ConnectionKind.OTHER if sure is _Sure.OTHER else ConnectionKind.HTTP


async def look(
    client: socket.socket, server: socket.socket | None, *, seconds: float
) -> tuple[ConnectionKind, Hello | None]:
    """Tell what the client begins with, unless the server speaks first."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    try:
        seen, otherwise = 0, ConnectionKind.SILENT
        while True:
            first = peek(client, MAX_HELLO)
            if first is not None:
                done = len(first) == seen
                seen = len(first)
                verdict, hello, otherwise = _tell(first, final=done)
                if verdict is not None:
                    return verdict, hello
                if otherwise is ConnectionKind.UNSURE and server is not None:
                    deadline = min(deadline, loop.time() + _UNSURE_SECONDS)
                wake_when_more(client, seen)
            watched = (client,) if server is None else (client, server)
            ready = await until_readable(*watched, seconds=deadline - loop.time())
            if ready is None:
                return otherwise, None
            if server is not None and ready is server:
                if not _begins_http2(peek(server, _FRAME_HEAD)):
                    return ConnectionKind.SERVER_FIRST, None
                server = None  # it does not wait for the client, which speaks all the same
    finally:
        if seen:
            wake_when_more(client, 0)


def _begins_http2(said: bytes | None) -> bool:
    """Tell whether a server begins with its settings, as one that speaks HTTP/2 may without having heard its client."""
    return said is not None and len(said) == _FRAME_HEAD and said[3:] == _SETTINGS


def _tell(first: bytes, *, final: bool) -> tuple[ConnectionKind | None, Hello | None, ConnectionKind]:
    """Return what it is, or None while it is not clear; and what it is taken for when no more comes."""
    if not first:
        return ConnectionKind.ENDED, None, ConnectionKind.ENDED
    tls = begins_like_tls(first)
    if tls or first == b"\x16":
        try:
            hello = read_hello(first)
        except BadHelloError:
            return ConnectionKind.BAD_TLS, None, ConnectionKind.BAD_TLS
        if hello is not None:
            return ConnectionKind.TLS, hello, ConnectionKind.TLS
        return (ConnectionKind.BAD_TLS if final else None), None, ConnectionKind.BAD_TLS
    if tls is None:
        return (ConnectionKind.UNSURE if final else None), None, ConnectionKind.UNSURE
    sure = _judge(first)
    if sure is _Sure.HTTP or (sure is _Sure.LIKELY_HTTP and final):
        return ConnectionKind.HTTP, None, ConnectionKind.HTTP
    if sure is _Sure.OTHER:
        return ConnectionKind.OTHER, None, ConnectionKind.OTHER
    if final:  # or woken for nothing: what comes later is judged then
        return ConnectionKind.UNSURE, None, ConnectionKind.UNSURE
    return None, None, ConnectionKind.HTTP if sure is _Sure.LIKELY_HTTP else ConnectionKind.UNSURE
