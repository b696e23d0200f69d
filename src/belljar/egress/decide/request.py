"""A request as it arrived, and what it says in every way in which it could be understood. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_plus

from belljar.egress.decide import paths
from belljar.egress.decide.paths import AmbiguousPath

MAX_FIELD = 16 << 10
"""The longest header, and the longest target."""
OTHER_HOST = frozenset(
    (b"x-host", b"x-original-host", b"x-http-host-override", b"x-backend-host", b"x-envoy-original-host")
)
"""Headers by which proxies tell their servers of another host; X-Forwarded-Host is one of many that begin so."""
_OTHER_METHOD = frozenset(
    (b"x-http-method-override", b"x-http-method", b"x-method-override", b"x-method", b"x-override-method")
)
_OTHER_METHOD_KEYS = frozenset(
    ("_method", "_httpmethod", "$httpmethod", "x-http-method-override", "x-http-method", "x-method-override")
)
_OTHER_PATH = frozenset(
    (
        *(
            b"x-original-url",
            b"x-original-uri",
            b"x-original-path",
            b"x-rewrite-url",
            b"x-rewrite-uri",
            b"x-override-url",
        ),
        *(b"x-envoy-original-path", b"x-http-path-override", b"x-http-destinationurl", b"x-waws-unencoded-url"),
        *(b"x-proxy-url", b"x-real-url", b"x-request-uri", b"x-replaced-path", b"x-uri"),
    )
)
_BODILESS = ("GET", "HEAD")
_WORDS = re.compile(r"[\s,;]+")
_FOLDED = bytes(code if chr(code).isalnum() and code < 128 else ord("-") for code in range(256)).lower()


def fold(name: bytes) -> bytes:
    """Return the name of a header as servers that hand it on in a variable understand it: `X_Foo` is `x-foo`."""
    return name.translate(_FOLDED)


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it arrived. `host` and `port` are what was dialled, `authority` is what the request says."""

    host: str
    port: int
    tls: bool
    method: str
    target: str | bytes
    authority: str | bytes | None
    headers: tuple[tuple[bytes, bytes], ...] = ()
    """Names in small letters."""
    body: bool = False
    """Whether it announces a body."""

    @property
    def odd_body(self) -> bool:
        """Return True if it has a body to which HTTP gives no meaning."""
        return self.body and self.method.upper() in _BODILESS


class Said:
    """What a request says, in every way in which it could be understood."""

    __slots__ = ("keys", "methods", "odd_body", "paths")

    def __init__(
        self,
        methods: tuple[str, ...],
        readings: tuple[str, ...] | None,
        keys: frozenset[str] | None,
        *,
        odd_body: bool = False,
    ) -> None:
        self.methods = methods
        self.paths = readings
        """None when it is ambiguous."""
        self.keys = keys
        self.odd_body = odd_body

    @classmethod
    def of(cls, request: Request, path: str, query: str) -> Said:
        """Read a request whose target was split into these."""
        methods = [request.method]
        readings: tuple[str, ...] | None
        keys: frozenset[str] | None
        names = [fold(name) for name, _value in request.headers]
        for name, (_written, value) in zip(names, request.headers, strict=True):
            if name in _OTHER_METHOD:
                methods += _methods_in(value.decode("latin-1"))
        for piece in re.split("[&;]", query) if query else ():
            key, _, said = piece.partition("=")
            if unquote_plus(key).lower() in _OTHER_METHOD_KEYS:
                methods += _methods_in(unquote_plus(said))
        try:
            readings = paths.readings(path)
            keys = paths.query_keys(query)
        except AmbiguousPath:
            readings, keys = None, None
        if readings is not None and any("?" in reading for reading in readings):
            keys = None
        if not _OTHER_PATH.isdisjoint(names):
            readings = None
        return cls(tuple(methods), readings, keys, odd_body=request.odd_body)


def _methods_in(text: str) -> list[str]:
    """Return each word of a header that names a method: servers take the first, the last, or the whole."""
    return [word.upper() for word in _WORDS.split(text) if word] or [""]
