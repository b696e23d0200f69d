"""What each request has to pass, HTTP/1.1 and HTTP/2 alike, and what becomes of it on the way."""

from __future__ import annotations

import time
from collections.abc import Callable

from belljar.egress.decide.credentials import OutgoingRequest, outgoing, reflecting
from belljar.egress.decide.steps import Request, Verdict, decide_request
from belljar.egress.protocols.http1_messages import Header, check_searched
from belljar.egress.proxy.relay.passing import ByteMeter
from belljar.egress.proxy.relay.websocket import ClientSearch
from belljar.egress.proxy.run import NOT_RECORDED, ProxiedRun


class Passage:
    """A request that may pass: as it is sent on, and what is done with its bytes and those of the answer."""

    __slots__ = ("act", "headers", "meter", "reflected", "target")

    def __init__(
        self,
        headers: tuple[Header, ...],
        target: bytes,
        meter: ByteMeter | None,
        reflected: tuple[bytes, ...],
        act: int,
    ) -> None:
        self.headers = headers
        """Names in small letters."""
        self.target = target
        self.meter = meter
        self.reflected = reflected
        """Secrets that are blotted out of the answer."""
        self.act = act
        """The number of the decision, which has to be in the audit log before the request is sent on."""


_Said = tuple[str, int, bool, str, bytes, bytes | None, tuple[Header, ...], bool]
_MAX_KNOWN = 256
_SMALL = 2048


def _is_small(said: _Said) -> bool:
    return len(said[4]) + sum([len(name) + len(value) for name, value in said[6]]) < _SMALL


class RequestCheck:
    """Judges the requests of one connection."""

    __slots__ = ("_run", "tls", "turns")

    def __init__(self, run: ProxiedRun, *, tls: bool) -> None:
        self._run = run
        self.turns = run.turns
        self.tls = tls

    def judge(  # noqa: PLR0917 they are a request
        self,
        host: str,
        port: int,
        method: str,
        target: bytes,
        authority: bytes | None,
        headers: tuple[Header, ...],
        *,
        body: bool,
    ) -> Passage | Verdict:
        """Whether a request may pass, and as what. Told of. The headers are those that go from end to end."""
        run = self._run
        verdict, sent = self._decided((host, port, self.tls, method, target, authority, headers, body))
        refused = None if verdict.allowed else verdict
        if refused is None:
            refused = run.limits.request(host, verdict.rule, time.monotonic())
        if refused is None and run.limits.left(host, verdict.rule) == 0:
            refused = run.limits.spend(host, verdict.rule, 1)
        run.tell("request", host, port, refused or verdict, method=method, path=_path(target))
        if refused is not None:
            return refused
        assert sent is not None
        for name in sent.used:
            run.tell("credential", host, port, Verdict(allowed=True, detail=name), method=method, path=_path(target))
        reflected = reflecting(run.rules, host, port, run.secrets) if run.secrets else ()
        kept = sent.headers
        if reflected or run.tokens:  # compressed frames could not be looked into, and no more could compressed answers
            kept = tuple(header for header in kept if header[0] != b"sec-websocket-extensions")
        if reflected:
            kept = (*(header for header in kept if header[0] != b"accept-encoding"), (b"accept-encoding", b"identity"))
        return Passage(kept, sent.target.encode("latin-1"), run.meter(host, port, verdict.rule), reflected, run.act)

    def _decided(self, said: _Said) -> tuple[Verdict, OutgoingRequest | None]:
        """The verdict, and what is sent. What depends on nothing but the request is decided once for the same one."""
        known: tuple[Verdict, OutgoingRequest | None] | None = self._run.decided.get(said)
        if known is not None:
            return known
        request = Request(*said)
        verdict = decide_request(self._run.rules, request)
        sent = None
        if verdict.allowed:
            changed = outgoing(self._run.rules, verdict.rule, request, self._run.secrets, created=int(time.time()))
            if isinstance(changed, Verdict):
                verdict = changed
            else:
                sent = changed
        if (verdict.rule is None or verdict.rule.sign is None) and _is_small(said):
            if len(self._run.decided) >= _MAX_KNOWN:
                self._run.decided.clear()
            self._run.decided[said] = verdict, sent
        return verdict, sent

    def recorded(self, passage: Passage) -> bool:
        """Whether it is in the audit log that a request may pass."""
        return self._run.recorded(passage.act)

    def when_answered(self, passage: Passage, then: Callable[[], None]) -> None:
        """Call this when it is, or can't be: then `refusal` says so."""
        self._run.when_answered(passage.act, then)

    @property
    def refusal(self) -> Verdict | None:
        """Why nothing may be sent on any more."""
        return NOT_RECORDED if self._run.unrecorded else None

    def has_token(self, host: str, port: int, *texts: bytes) -> bool:
        """Whether a canary token is in the head of a request. Then the run is stopped.

        Raises:
            BadMessageError: the head is too long to be searched in one step.
        """
        check_searched(*texts)
        return not self.scanner(host, port).clean(b"\n".join(texts))

    @property
    def scans(self) -> bool:
        """Whether there are tokens to look for."""
        return bool(self._run.tokens)

    def scanner(self, host: str, port: int) -> ByteMeter:
        """For the body of a request, in its parts."""
        return ByteMeter(self._run, host, port, None)

    def watch(self, host: str, port: int) -> ClientSearch | None:
        """For the frames of a WebSocket, if there are tokens to look for."""
        return ClientSearch(self.scanner(host, port), self.scanner(host, port)) if self.scans else None

    def tell_refused(self, host: str, port: int, verdict: Verdict, method: str = "", path: str = "") -> None:
        """Tell of a request that was refused before it could be judged."""
        self._run.tell("request", host, port, verdict, method=method, path=path)


def _path(target: bytes) -> str:
    return target.partition(b"?")[0].decode("latin-1")
