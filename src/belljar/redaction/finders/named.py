"""Values that look random beside a name that tells what they are: `db_password = "…"`, `X-Api-Key: …`, `--token …`.

A name alone proves nothing: `token_count = 5`, `password: str` and `secret=os.environ["S"]` are not secrets. So the
name must not go on as something else, and the value must look like one: how random depends on how telling the name is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from belljar.redaction.finders.checks import basic_credentials, digits_and_letters, placeholder, varied
from belljar.redaction.kinds import Kind, Span
from belljar.redaction.view import TextView, matches, places

_WHOSE_KEY = re.compile(
    rb"(?:api|access|secret|private|auth|encrypt\w*|sign\w*|master|account|storage|service|licen[cs]e|deploy|app|client|"
    rb"shared|subscription|admin|write|ingest|hmac|jwt|root|stripe|openai|anthropic|aws|gcp|azure|session|webhook)[_-]?\Z"
)
_GOES_ON = re.compile(
    rb"(?:s?[_.-]?(?:count|len|limit|type|name|field|file|path|ur[il]|id|ids|expir|ttl|min|max|policy|hash|regex|pattern|"
    rb"label|hint|prompt|reset|chang|valid|size|index|budget|usage|list|format|class|error|required|manager|provider|store|"
    rb"scope|header|endpoint|algo|version|ref|arn|env|var|ring|rotat|length|input|box|strength|confirm|created|updated|at\b)|"
    rb"i[sz]|s\b)"
)
_ASSIGNED = re.compile(
    rb"""([\w.-]{0,40})\\?["'\]`]{0,3}[ \t]{0,8}"""
    rb"""(?::[ \t]{0,4}[A-Za-z_][\w.\[\]|]{0,40}[ \t]{0,4}=(?!=)|:=|=>|={1,3}|:|>)"""
    rb"""[ \t]{0,8}(?:[bru]{0,2}(?=["'`]))?\\?(["'`]?)"""
)
_FLAG = re.compile(rb"""([\w-]{0,40})[ \t]{1,4}(["']?)""")
_QUOTED = {quote: re.compile(b"[^" + quote + rb"\r\n]{1,400}") for quote in (b'"', b"'", b"`")}
_BARE = re.compile(
    rb"""[^\s"'`,;&<>(){}\[\]|\\=]{4,400}+={0,2}(?=[\s"'`,;&<>(){}\[\]|\\]|\Z)"""  # with = in it, it is a setting
)
_SCHEMES = {
    scheme: re.compile(scheme + b"(?<![a-z]" + scheme + rb")[ \t]{1,4}([a-z0-9._~+/=-]{8,4000})")
    for scheme in (b"bearer", b"basic")
}
_CODE = re.compile(r"[\s(){}<>|]|\$[\w{]|%[sd(]|::|://")
_PLACE = re.compile(
    r"\.{1,2}/|~|\*|@|--|process\.|os\.|self\.|env[.:]|vault:|arn:|ref:|"
    r"/?(?:[\w.-]{1,20}/)+[\w.-]{0,20}\Z|/[\w.-]{1,20}\Z"
)
_WORDY = re.compile(r"[A-Za-z]+(?:[._/-][A-Za-z]+)*\d{0,2}(?:\.(?:json|ya?ml|txt|py|pem|env|js|key))?")
_SIGN = re.compile(r"[^\w.:/-]")
_MASK = re.compile(r"(?:[*x•.#-]{3,}.{0,4}|.{0,4}[*x•.#]{4,})", re.IGNORECASE)


def named_secrets(view: TextView) -> Iterator[Span]:
    """Values beside telling names, and credentials of HTTP's Authorization."""
    for stem, form, judge in _NAMES:
        for place in places(view.lower, stem):
            if name := form.match(view.lower, place):
                yield from _value(view, name, judge)
    yield from _schemes(view)


def _value(view: TextView, name: re.Match[bytes], judge: object) -> Iterator[Span]:
    data = view.data
    start, after = name.span()
    assigned = _ASSIGNED.match(data, after) or _flag(view, after)
    if assigned is None or _GOES_ON.match(view.lower, *assigned.span(1)):
        return
    if name[0] == b"key" and not _WHOSE_KEY.search(view.lower, max(0, start - 16), start):
        return
    quote = assigned[2]
    value = (_QUOTED[quote] if quote else _BARE).match(data, assigned.end())
    if value is None:
        return
    start, end = value.span()
    if quote:
        end -= data[start:end].endswith(b"\\")  # an escaped quote: JSON within a string
    else:
        end = start + len(data[start:end].rstrip(b".:"))
    if callable(judge) and judge(view.text[start:end], quoted=bool(quote)):
        yield Span(start, end, Kind.NAMED_SECRET)


def _flag(view: TextView, after: int) -> re.Match[bytes] | None:
    """`--password hunter2`: the name of an option, and its value after a space."""
    word = view.words.rfind(b" ", max(0, after - 48), after) + 1
    return _FLAG.match(view.data, after) if view.data.startswith(b"--", word) else None


def _schemes(view: TextView) -> Iterator[Span]:
    for scheme, form in _SCHEMES.items():
        for found in matches(form, view.lower, scheme):
            start, end = found.span(1)
            value = view.text[start:end].rstrip(".")
            if basic_credentials(value) if scheme == b"basic" else _token(value, quoted=True):
                yield Span(start, start + len(value), Kind.NAMED_SECRET)


def _password(value: str, *, quoted: bool) -> bool:
    """People choose these: a digit or a sign among letters is enough."""
    if len(value) < 6 or _not_a_value(value) or (_WORDY.fullmatch(value) is not None and not value[-1].isdigit()):
        return False
    if not quoted and "." in value and value.replace(".", "").isalpha():
        return False
    digits, letters = digits_and_letters(value)
    return letters > 0 and (digits > 0 or _SIGN.search(value) is not None)


def _secret(value: str, *, quoted: bool) -> bool:  # noqa: ARG001
    return len(value) >= 12 and _random(value)


def _token(value: str, *, quoted: bool) -> bool:  # noqa: ARG001
    return len(value) >= 16 and _random(value)


def _random(value: str) -> bool:
    if _not_a_value(value) or _WORDY.fullmatch(value):
        return False
    digits, letters = digits_and_letters(value)
    if digits < 2:
        return digits == 1 and len(value) >= 20 and varied(value, 3.8) and value.lower() != value != value.upper()
    return letters >= 2 and digits + letters >= len(value) * 0.7 and varied(value, 2.8)


def _not_a_value(value: str) -> bool:
    """Code that names where the value is, a mask, or a word that stands for one."""
    return bool(_PLACE.match(value) or _CODE.search(value) or _MASK.fullmatch(value) or placeholder(value))


_NAMES = tuple(
    (stem, re.compile(form), judge)
    for stem, form, judge in (
        (b"pass", b"pass(?=w|phrase)", _password),
        (b"pwd", b"pwd", _password),
        (b"secret", b"secret", _secret),
        (b"credential", b"credential", _secret),
        (b"key", b"key", _secret),
        (b"token", b"token", _token),
        (b"session", b"session_?id", _token),
        (b"sig=", b"sig(?==)", _token),
    )
)
"""What is looked for, what of a name that has to be, and how a value beside it is judged."""
