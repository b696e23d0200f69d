"""What a program in a jar reads when it was refused: plain words, the rule, and what would allow it."""

from __future__ import annotations

from belljar.egress.decide import reasons
from belljar.egress.decide.steps import Verdict

REASON_HEADER = "X-Belljar-Reason"
_STATUS = {
    "upstream": "502 Bad Gateway",
    "upstream-certificate": "502 Bad Gateway",
    "proxy": "502 Bad Gateway",
    "rate": "429 Too Many Requests",
    "bad-request": "400 Bad Request",
    "unrecorded": "503 Service Unavailable",
    "limit": "503 Service Unavailable",
}


def status(verdict: Verdict) -> str:
    """The status line's code and words."""
    return _STATUS.get(verdict.reason, "403 Forbidden")


def body(verdict: Verdict, *, host: str, port: int, method: str = "", path: str = "") -> str:
    """The refusal in words."""
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    lines = [
        f"belljar: {' '.join(part for part in (method, place) if part)}{path} was refused.",
        "",
        f"reason: {verdict.reason}: {reasons.words(verdict.reason, verdict.detail)}",
    ]
    if verdict.key:
        lines.append(f"rule:   {verdict.key}" + (f" ({verdict.where})" if verdict.where else ""))
    allow = reasons.change(verdict, host=host, port=port, method=method, path=path)
    if allow:
        lines.append(f"allow:  {allow}")
    return "\n".join(lines) + "\n"


def response(verdict: Verdict, *, host: str, port: int, method: str = "", path: str = "", close: bool = True) -> bytes:
    """The whole answer, as HTTP/1.1."""
    text = body(verdict, host=host, port=port, method=method, path=path).encode("utf-8", "replace")
    head = (
        f"HTTP/1.1 {status(verdict)}\r\n"
        "Content-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(text)}\r\n"
        f"{REASON_HEADER}: {verdict.reason}\r\n"
        "Cache-Control: no-store\r\n"
        f"Connection: {'close' if close else 'keep-alive'}\r\n\r\n"
    ).encode("ascii", "replace")
    return head if method == "HEAD" else head + text
