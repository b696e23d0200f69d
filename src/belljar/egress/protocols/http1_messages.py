"""HTTP/1.1 messages as they are sent on: rebuilt from what was parsed; what was not understood does not pass."""

from __future__ import annotations

import re

from belljar.egress.decide.credentials import scrub
from belljar.egress.decide.names import NameRefused, split_authority
from belljar.egress.decide.request import MAX_FIELD, fold

MAX_HEAD = 64 << 10
MAX_HEADERS = 256
_MOST_SEARCHED = 20 << 10
"""Bytes of a head that are searched for tokens or secrets. Other runs wait for that: it takes up to some 20 ms."""

Header = tuple[bytes, bytes]
"""A name and its value."""

CHUNKS_END = b"0\r\n\r\n"
_HOP_BY_HOP = frozenset(
    {
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"http2-settings"),
    }
)
_HANDLED = _HOP_BY_HOP | {b"content-length", b"host", b"expect"}
_DIGITS = 18
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_AFTER_AUTHORITY = re.compile(rb"[/?#]")
_LONG_FIELD = f"a header, or a target, longer than {MAX_FIELD >> 10} KiB"
_NOTHING: frozenset[bytes] = frozenset()
_NOT_FOR_CLIENTS = frozenset({*_HOP_BY_HOP, b"content-length", b"alt-svc"})
"""Alt-Svc names other ways to the same host, none of which there are in a jar."""


class BadMessageError(Exception):
    """A message that is not, or not unambiguously, HTTP/1.1."""


class RequestHead:
    """The head of a request as it was parsed."""

    __slots__ = (
        "authority",
        "chunked",
        "expects",
        "headers",
        "keep_alive",
        "length",
        "method",
        "spelling",
        "target",
        "upgrade",
        "version",
    )

    def __init__(self, method: bytes, target: bytes, version: str, headers: list[Header]) -> None:
        """Raises BadMessageError."""
        if version not in ("1.1", "1.0"):
            raise BadMessageError(f"HTTP/{version}")
        self.method = method
        self.target = target
        self.version = version
        self.authority: bytes | None = None
        self.chunked = False
        self.length: bytes | None = None
        self.upgrade = False
        self.expects = False
        check_fields(target, headers)
        options = b""
        upgrade = b""
        spelling: dict[bytes, bytes] = {}
        kept: list[Header] = []
        for name, value in headers:
            small = name.lower()
            if small not in _HANDLED:
                spelling[small] = name
                kept.append((small, value))
            elif small == b"host":
                if self.authority is not None:
                    raise BadMessageError("two Host headers")
                self.authority = value
            elif small == b"content-length":
                if self.length is not None or not value.isdigit() or len(value) > _DIGITS:
                    raise BadMessageError("a length that is not one number")
                self.length = b"%d" % int(value)
            elif small == b"transfer-encoding":
                if self.chunked or value.strip().lower() != b"chunked":
                    raise BadMessageError("a transfer coding other than chunked")
                self.chunked = True
            elif small == b"expect":
                if value.strip().lower() != b"100-continue":
                    raise BadMessageError("an expectation other than 100-continue")
                self.expects = True
            elif small == b"connection":
                options += b"," + value.lower()
            elif small == b"upgrade":
                upgrade = value.strip().lower()
        if self.chunked and (self.length is not None or version == "1.0"):
            raise BadMessageError("both a length and chunks")
        named = frozenset([option.strip() for option in options.split(b",")]) if options else _NOTHING
        self.keep_alive = b"close" not in named and (version == "1.1" or b"keep-alive" in named)
        self.upgrade = upgrade == b"websocket" and b"upgrade" in named
        if b"upgrade" in named and (self.chunked or self.length not in (None, b"0")):
            raise BadMessageError("a body with a change of protocol")
        if named:
            kept = [header for header in kept if header[0] not in named]
        self.headers = tuple(kept)
        """Those that go from end to end, names in small letters."""
        self.spelling = spelling
        """How the client spells the names."""

    @property
    def has_body(self) -> bool:
        """Return True if a body follows, or chunks that could be none."""
        return self.chunked or self.length not in (None, b"0")

    @property
    def path(self) -> str:
        """The path without its query, for people."""
        return self.target.partition(b"?")[0].decode("latin-1")

    def send_on(self, headers: tuple[Header, ...], target: bytes) -> bytes:
        """The head for the server, with these headers."""
        spelling = self.spelling
        parts = [self.method, b" ", target, b" HTTP/1.1\r\nHost: ", self.authority or b"", b"\r\n"]
        for name, value in headers:
            parts += (spelling.get(name) or name.title(), b": ", value, b"\r\n")
        if self.length is not None:
            parts += (b"Content-Length: ", self.length, b"\r\n")
        elif self.chunked:
            parts.append(b"Transfer-Encoding: chunked\r\n")
        if self.expects:
            parts.append(b"Expect: 100-continue\r\n")
        if self.upgrade:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        elif self.has_body:  # a server that ignores the body would go on to read it as another request
            parts.append(b"Connection: close\r\n")
        parts.append(b"\r\n")
        return b"".join(parts)


def check_fields(target: bytes, headers: list[Header]) -> None:
    """Raise BadMessageError if the head of a request holds what servers cut off, or read differently."""
    if len(headers) > MAX_HEADERS:
        raise BadMessageError("too many headers")
    if len(target) > MAX_FIELD:
        raise BadMessageError(_LONG_FIELD)
    for name, value in headers:
        if len(name) + len(value) > MAX_FIELD:
            raise BadMessageError(_LONG_FIELD)
        if (plain := fold(name)) in _HANDLED and plain != name.lower():
            raise BadMessageError("a name that some servers take for that of another header")
    if _CONTROL.search(b"".join([value for _name, value in headers])):
        raise BadMessageError("a control character in a header")


def check_searched(*texts: bytes) -> None:
    """Raise BadMessageError if a head is too long to be searched in one step."""
    if sum(map(len, texts)) > _MOST_SEARCHED:
        raise BadMessageError(f"a head longer than {_MOST_SEARCHED >> 10} KiB can't be searched for tokens or secrets")


def split_absolute(target: bytes) -> tuple[str, int, bytes] | None:
    """The host, the port and the origin form of an absolute `http` target; None when it is no absolute target.

    Raises:
        BadMessageError: another scheme.
        NameRefused: a host that is not plain.
    """
    scheme, colon, rest = target.partition(b"://")
    if target[:1] == b"/" or target == b"*" or not colon:
        return None
    if scheme.lower() != b"http":
        raise BadMessageError("another scheme than http: ask with CONNECT")
    mark = _AFTER_AUTHORITY.search(rest)
    end = mark.start() if mark else len(rest)
    host, port = split_authority(rest[:end])
    origin = rest[end:] or b"/"
    return host, port or 80, origin if origin[:1] == b"/" else b"/" + origin


def split_connect(target: bytes) -> tuple[str, int]:
    """The host and the port of a CONNECT's target.

    Raises:
        NameRefused: not plain, or without a port.
    """
    host, port = split_authority(target)
    if port is None:
        raise NameRefused("name-form")
    return host, port


def reflected_header(name: bytes, value: bytes, reflected: tuple[bytes, ...]) -> Header:
    """A header of an answer without the secrets.

    Raises:
        BadMessageError: it tells of a body that can't be searched, because it is compressed.
    """
    if name.lower() == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
        raise BadMessageError(
            "the body is compressed, although that was not asked for: secrets could not be found in it"
        )
    return scrub(name, reflected), scrub(value, reflected)


UNTIL_CLOSE = "until-close"
LENGTH = "length"
CHUNKS = "chunks"
NONE = "none"


class ResponseHead:
    """The head of a response as it was parsed, and how its body is framed."""

    __slots__ = ("body", "close", "head", "status")

    def __init__(
        self,
        status: int,
        words: bytes,
        headers: list[Header],
        request: RequestHead,
        *,
        reflected: tuple[bytes, ...] = (),
    ) -> None:
        """Raises BadMessageError."""
        self.status = status
        self.close = False
        length: bytes | None = None
        coding: bytes | None = None
        named = _NOTHING
        kept: list[bytes] = []
        if reflected:
            check_searched(words, *(text for header in headers for text in header))
        for name, value in headers:
            small = name.lower()
            if small not in _NOT_FOR_CLIENTS:
                shown, said = reflected_header(name, value, reflected) if reflected else (name, value)
                kept += (shown, b": ", said, b"\r\n")
            elif small == b"content-length":
                length = value
            elif small == b"transfer-encoding":
                coding = value.strip().lower()
            elif small == b"connection" and value.lower() != b"keep-alive":
                named |= {option.strip() for option in value.lower().split(b",")}
        if coding not in (None, b"chunked"):
            raise BadMessageError("the server used a transfer coding other than chunked")
        self.close = b"close" in named
        self.body = self._framing(request, length, chunked=coding is not None)
        for at in range(len(kept) - 4, -1, -4) if named else ():
            if kept[at].lower() in named:
                del kept[at : at + 4]
        parts = [b"HTTP/1.1 %d " % status, scrub(words, reflected) if reflected else words, b"\r\n", *kept]
        if length is not None:
            parts += (b"Content-Length: ", length, b"\r\n")
        if self.body == CHUNKS and request.version == "1.1":
            parts.append(b"Transfer-Encoding: chunked\r\n")
        if status == 101:
            parts.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
        elif status >= 200:
            parts.append(self._connection(request))
        parts.append(b"\r\n")
        self.head = b"".join(parts)

    def _framing(self, request: RequestHead, length: bytes | None, *, chunked: bool) -> str:
        if request.method == b"HEAD" or self.status < 200 or self.status in (204, 304):
            return NONE
        if chunked:
            return CHUNKS
        return UNTIL_CLOSE if length is None else LENGTH

    def ends_connection(self, request: RequestHead) -> bool:
        """Whether the client's connection ends with this response."""
        unframed = self.body == UNTIL_CLOSE or (self.body == CHUNKS and request.version == "1.0")
        return unframed or not request.keep_alive

    def _connection(self, request: RequestHead) -> bytes:
        if self.ends_connection(request):
            return b"Connection: close\r\n"
        return b"Connection: keep-alive\r\n" if request.version == "1.0" else b""
