"""What would happen to a request, step by step, without sending anything: neither a packet nor a question to DNS."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from belljar.egress.decide.credentials import applies, bound_to, other_credentials, outgoing
from belljar.egress.decide.names import NameRefused, split_authority
from belljar.egress.decide.rules import Rules
from belljar.egress.decide.steps import (
    Request,
    Verdict,
    addresses_for,
    decide_address,
    decide_connection,
    decide_name,
    decide_request,
    must_open,
)
from belljar.errors import UsageError

_PORTS = {"https": 443, "http": 80, "wss": 443, "ws": 80, "ssh": 22, "git": 9418, "postgres": 5432, "postgresql": 5432}
_PORTS |= {"redis": 6379, "mysql": 3306}
_HTTP = ("https", "http", "wss", "ws")


@dataclass(frozen=True, slots=True)
class Trial:
    """A verdict, and what was found on the way to it."""

    verdict: Verdict
    host: str
    port: int
    method: str = ""
    target: str = ""
    tls: str = ""
    """`opened`, `passed through`, or nothing without TLS."""
    addresses: tuple[str, ...] = ()
    """Where it would be dialled by the policy's own word."""
    credentials: tuple[str, ...] = ()
    other_credentials: str = ""
    """Why a credential that the code sends itself would be refused; nothing if it would not be."""


def trial(rules: Rules, url: str, method: str = "GET", *, enabled: bool = True) -> Trial:
    """Try `url`. Without a scheme, or with one that is not HTTP's, only the connection is judged.

    Raises:
        UsageError: when it is no URL.

    """
    scheme, host, port, target, bad = _parsed(url)
    if bad or not enabled:
        return Trial(_refusal(rules, bad, enabled=enabled), host, port, method, target)
    steps = [decide_name(rules, host, names_so_far=0), decide_connection(rules, host, port)]
    pinned = addresses_for(rules, host, port)
    steps += [decide_address(rules, host, port, ip) for ip, _ in pinned]
    shown = tuple(f"[{ip}]:{to or port}" if ":" in ip else f"{ip}:{to or port}" for ip, to in pinned)
    refused = next((step for step in steps if not step.allowed), None)
    if scheme not in _HTTP:
        return Trial(refused or steps[-1], host, port, addresses=shown)
    tls = "" if scheme in ("http", "ws") else "opened" if must_open(rules, host, port) else "passed through"
    authority = f"[{host}]" if ":" in host else host
    request = Request(host, port, bool(tls), method, target, authority)
    verdict = refused or decide_request(rules, request)
    if verdict.allowed and (used := _without_secrets(rules, verdict, request)) is not None:
        verdict = used
    return Trial(
        verdict,
        host,
        port,
        method,
        target,
        tls,
        shown,
        _used(rules, verdict, request),
        other_credentials(rules, verdict.rule, request) if verdict.allowed else "",
    )


def _without_secrets(rules: Rules, verdict: Verdict, request: Request) -> Verdict | None:
    """What the credentials say of it, as far as that depends on no secret: there is none here."""
    sent = outgoing(rules, verdict.rule, request, {item.name: "" for item in rules.credentials if not item.algorithm})
    return sent if isinstance(sent, Verdict) and sent.reason != "credential-missing" else None


def _parsed(url: str) -> tuple[str, str, int, str, str]:
    """Scheme, host, port, target, and why the host can't be one."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    try:
        parts = urlsplit(f"//{rest}")
    except ValueError:
        raise UsageError(f"wanted a URL such as https://api.example.com/v1, found {url[:100]!a}") from None
    if not parts.netloc or "@" in parts.netloc or (mark and not scheme.isalnum()):
        raise UsageError(f"wanted a URL such as https://api.example.com/v1, found {url[:100]!a}")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    default = _PORTS.get(scheme.lower())
    try:
        host, port = split_authority(parts.netloc)
    except NameRefused as error:
        return scheme.lower(), parts.netloc, default or 443, target, error.reason
    if port is None and default is None:
        raise UsageError(f"wanted a port, found {url[:100]!a}", hint=f"https://{host}/ or {host}:443")
    return scheme.lower(), host, port or default or 443, target, ""


def _refusal(rules: Rules, bad: str, *, enabled: bool) -> Verdict:
    reason = bad or "net-off"
    key = "net.allowlist" if enabled else "net.enabled"
    return Verdict(allowed=False, reason=reason, key=key, where=rules.places.get(key, ""))


def _used(rules: Rules, verdict: Verdict, request: Request) -> tuple[str, ...]:
    if not verdict.allowed or verdict.rule is None:
        return ()
    names = (verdict.rule.credential, verdict.rule.sign)
    bound = bound_to(rules, request.host, request.port)
    return tuple(item.name for item in bound if item.name in names and applies(item, request))
