"""E-mail addresses, and passwords in URLs, which are what an @ can be part of."""

from __future__ import annotations

import re
from collections.abc import Iterator

from belljar.redaction.kinds import Kind, Span
from belljar.redaction.view import TextView, matches

_DOMAIN = re.compile(
    rb"@((?:[A-Za-z0-9\x80-\xff](?:[A-Za-z0-9\x80-\xff-]{0,61}[A-Za-z0-9\x80-\xff])?\.){1,8}([A-Za-z]{2,18}|xn--[a-z0-9]{2,20}))"
    rb"(?![A-Za-z0-9_@\x80-\xff]|-[A-Za-z0-9]|\.[A-Za-z0-9_])"
)
_USER_INFO = re.compile(rb"://[^\s/?#:@\"'<>`]{0,256}:([^\s/#\"'<>`@][^\s/\"'<>`@]{0,255})@(?=[A-Za-z0-9\[$%{_-])")
_USER = re.compile(rb"[^\s/?#@\"'<>`:]*:[^\s/?#@\"'<>`]*")
_LONGEST_LOCAL = 64
_GENERIC = frozenset(
    (  # noqa: SIM905 (a table of words)
        "com org net edu gov mil int info biz name pro aero asia cat coop jobs mobi museum post tel travel xxx app "
        "dev cloud online site store shop tech xyz club blog live news world today email agency company digital "
        "global group solutions systems services network media studio design software technology academy university "
        "school health care life love art bank finance money fund capital insurance legal law consulting marketing "
        "ltd inc llc gmbh ventures partners team work works space website press page wiki link click top vip win "
        "one fun games ai berlin london paris nyc tokyo amsterdam hamburg wien koeln swiss eus bzh scot wales test "
        "example invalid local internal lan corp home localdomain zone center support tools expert guru ninja rocks "
        "social community foundation energy green eco bio science engineering house estate restaurant cafe coffee "
        "pizza photography photos video audio radio fm tv tours holiday hotel fitness "
    ).split()
)
_FILES = frozenset(b"js ts py rb rs sh md so cc cs pl ps vb gz ml mm la ps".split())
"""Country codes that are file endings first."""
_NOBODY = frozenset(b"git hg svn".split())


def emails(view: TextView) -> Iterator[Span]:
    """Addresses whose domain can exist; `git@github.com:…` and `name@1.2.3` are none."""
    for found in matches(_DOMAIN, view.data, b"@"):
        at = found.start()
        start = view.mail.rfind(b" ", max(0, at - _LONGEST_LOCAL - 1), at) + 1
        start = max(start, at - _LONGEST_LOCAL)
        local = view.data[start:at]
        start += len(local) - len(local.lstrip(b".-+'%"))
        if start < at and _address(view.data, start, found):
            yield Span(start, found.end(), Kind.EMAIL)


def _address(data: bytes, start: int, found: re.Match[bytes]) -> bool:
    local, domain, top, end = data[start : found.start()], found[1], found[2].lower(), found.end()
    if local.endswith((b".", b"'")) or b".." in local:
        return False
    after, before = data[end : end + 1], data[start - 1 : start] if start else b""
    if local in _NOBODY or (after == b":" and data[end + 1 : end + 2].isalnum() and before in b"/ \t\r\n"):
        return False
    if (before == b"/" and data[start - 3 : start] != b"://") or before == b"@":
        return False  # a path or a scoped package: node_modules/@scope/name@host
    if _in_user_info(data, start):
        return False
    if len(top) == 2:
        return top not in _FILES or domain.count(b".") > 1
    return top.decode("latin-1") in _GENERIC or top.startswith(b"xn--")


def _in_user_info(data: bytes, start: int) -> bool:
    """Whether what is before `start` is `://user:`, so that the @ belongs to a URL."""
    scheme = data.rfind(b"://", max(0, start - 260), start)
    return scheme >= 0 and _USER.fullmatch(data, scheme + 3, start) is not None


def url_passwords(view: TextView) -> Iterator[Span]:
    """The password of `scheme://user:password@host`; one that is a variable or a mask is none."""
    for found in matches(_USER_INFO, view.data, b"://"):
        password = found[1]
        if not password.startswith((b"$", b"{", b"%(", b"%s", b"*", b"[")) and password.lower() not in _STAND_INS:
            yield Span(found.start(1), found.end(1), Kind.URL_PASSWORD)


_STAND_INS = frozenset(
    (b"password", b"pass", b"pw", b"pwd", b"xxx", b"xxxx", b"xxxxx", b"...", b"secret", b"token", b"passwd")
)
