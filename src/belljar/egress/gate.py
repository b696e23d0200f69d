"""What each request has to pass, HTTP/1.1 and HTTP/2 alike, and what becomes of it on the way."""

from __future__ import annotations

from belljar.egress.decide import Request, Verdict, decide_request
from belljar.egress.http1_messages import Header
from belljar.egress.run import Run


class Gate:
    """Judges the requests of one connection."""

    __slots__ = ("_run", "tls")

    def __init__(self, run: Run, *, tls: bool) -> None:
        self._run = run
        self.tls = tls

    def judge(
        self,
        host: str,
        port: int,
        *,
        method: str,
        target: bytes,
        authority: bytes | None,
        lower: tuple[Header, ...],
        headers: list[Header],
    ) -> tuple[Verdict, list[Header], bytes]:
        """Whether a request may pass, and the headers and the target with which it does. Told of."""
        verdict = decide_request(self._run.rules, Request(host, port, self.tls, method, target, authority, lower))
        path = target.partition(b"?")[0].decode("latin-1")
        self._run.tell("request", host, port, verdict, method=method, path=path)
        return verdict, headers, target

    def tell_refused(self, host: str, port: int, verdict: Verdict, method: str = "", path: str = "") -> None:
        """Tell of a request that was refused before it could be judged."""
        self._run.tell("request", host, port, verdict, method=method, path=path)
