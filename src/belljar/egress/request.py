"""A request as it arrived, and what it says in every way in which it could be understood. Pure."""

from __future__ import annotations

from belljar.egress import paths
from belljar.egress.paths import AmbiguousPath
from belljar.policy.records import dataclass

_OTHER_METHOD = frozenset((b"x-http-method-override", b"x-http-method", b"x-method-override"))
_OTHER_PATH = frozenset((b"x-original-url", b"x-rewrite-url", b"x-original-uri"))


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


class Said:
    """What a request says, in every way in which it could be understood."""

    __slots__ = ("keys", "methods", "paths")

    def __init__(self, methods: tuple[str, ...], readings: tuple[str, ...] | None, keys: frozenset[str] | None) -> None:
        self.methods = methods
        self.paths = readings
        """None when it is ambiguous."""
        self.keys = keys

    @classmethod
    def of(cls, request: Request, path: str, query: str) -> Said:
        """Read a request whose target was split into these."""
        methods = [request.method]
        readings: tuple[str, ...] | None
        keys: frozenset[str] | None
        for name, value in request.headers:
            if name in _OTHER_METHOD:
                methods.append(value.decode("latin-1").strip().upper())
        try:
            readings = paths.readings(path)
            keys = paths.query_keys(query)
        except AmbiguousPath:
            readings, keys = None, None
        if any(name in _OTHER_PATH for name, _ in request.headers):
            readings = None
        return cls(tuple(methods), readings, keys)
