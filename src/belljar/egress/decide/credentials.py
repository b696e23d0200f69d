"""What a request carries when it leaves: the policy's credential in place of a placeholder, and nobody else's. Pure.

A host for which the policy has a credential takes no other, by whichever rule a request passes: a key that came with
the code would make an allowed API a way to someone else's account.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_plus

from belljar.egress.decide import paths
from belljar.egress.decide.addresses import judge
from belljar.egress.decide.credential_names import is_credential_header, is_credential_key
from belljar.egress.decide.encodings import Reflected, Scrubber, scrub
from belljar.egress.decide.names import host_matches, is_address, split_authority
from belljar.egress.decide.paths import AmbiguousPath
from belljar.egress.decide.request import OTHER_HOST, fold
from belljar.egress.decide.rules import Rule, Rules
from belljar.egress.decide.steps import Request, Said, Verdict, lifted_upload
from belljar.egress.secret_sources import fetch
from belljar.policy.carriers import guarded
from belljar.policy.models import Credential

Headers = tuple[tuple[bytes, bytes], ...]

_KEY_WORDS = (b"key", b"token", b"auth", b"bearer", b"secret")
_NOTHING_REFLECTED = Reflected()
_SHORTEST_PASSWORD = 6
_SIGNATURES = frozenset((b"signature", b"signature-input"))
_TELLS_OF_PROXIES = (b"proxy-", b"x-forwarded-")
_ALWAYS_STRIPPED = frozenset((b"forwarded", b"x-real-ip", b"via", b"keep-alive"))


@dataclass(frozen=True, slots=True)
class OutgoingRequest:
    """A request as it is sent on. Its secrets are not in its `repr`."""

    headers: Headers = field(repr=False)
    target: str = field(repr=False)
    used: tuple[str, ...] = ()
    """The names of the credentials that it carries."""


def outgoing(
    rules: Rules, rule: Rule | None, request: Request, secrets: Mapping[str, str], *, created: int = 0
) -> OutgoingRequest | Verdict:
    """The request with the policy's credential, or the verdict that refuses it.

    Args:
        rules: all of them.
        rule: the one that allowed the request.
        request: as it was decided.
        secrets: of the run, by the names of their credentials.
        created: the time of a signature, in seconds since 1970.

    """
    target = request.target.decode("latin-1") if isinstance(request.target, bytes) else request.target
    headers = stripped(rules, request.headers)
    bound = bound_to(rules, request.host, request.port)
    if not (bound or lifted_upload(rules, request) or _is_guarded(rule, request)):
        return OutgoingRequest(headers, target)
    kept, foreign = _without_credentials(headers, bound)
    target, foreign_keys = _without_keys(target, bound, at_known_api=guarded(request.host) is not None)
    foreign += foreign_keys
    if foreign and not bound and _is_guarded(rule, request):
        return _refused("unbound-credential", foreign[0], rule)
    if foreign and any(item.on_foreign_credential == "refuse" for item in bound):
        return _refused("foreign-credential", foreign[0], rule)
    clean = Request(request.host, request.port, request.tls, request.method, target, request.authority, kept)
    sent = _with_own(rules, rule, clean, secrets, created)
    if isinstance(sent, OutgoingRequest) and not sent.used and lifted_upload(rules, request):
        return _refused("upload-without-credential", "", rule)
    return sent


def _is_guarded(rule: Rule | None, request: Request) -> bool:
    """Return True if the host is an API where a key decides whose account has the data, and the rule says no more."""
    return rule is not None and not rule.foreign_credentials and guarded(request.host) is not None


def other_credentials(rules: Rules, rule: Rule | None, request: Request) -> str:
    """The reason for which a request with a credential that is not the policy's is refused; empty if it is not."""
    if bound := bound_to(rules, request.host, request.port):
        return "foreign-credential" if any(item.on_foreign_credential == "refuse" for item in bound) else ""
    return "unbound-credential" if _is_guarded(rule, request) else ""


def stripped(rules: Rules, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers without those that tell of proxies, and those that the policy takes out."""
    unwanted: frozenset[bytes] = _ALWAYS_STRIPPED | OTHER_HOST
    if rules.strip_headers:
        unwanted |= {fold(name.encode("ascii")) for name in rules.strip_headers}
    return tuple(
        (name, value)
        for name, value in headers
        if (plain := fold(name)) not in unwanted and not plain.startswith(_TELLS_OF_PROXIES)
    )


def bound_to(rules: Rules, host: str, port: int) -> tuple[Credential, ...]:
    """The credentials that any rule has for this host and port."""
    if not rules.credentials:
        return ()
    found: tuple[Credential, ...] = rules.remembered(("bound", host, port), lambda: _bound_to(rules, host, port))
    return found


def _bound_to(rules: Rules, host: str, port: int) -> tuple[Credential, ...]:
    names = {
        name
        for rule in rules.allow
        if (rule.credential or rule.sign) and port in rule.ports and host_matches(rule.host, host)
        for name in (rule.credential, rule.sign)
    }
    return tuple(item for item in rules.credentials if item.name in names)


def reflecting(rules: Rules, host: str, port: int, secrets: Mapping[str, str]) -> Reflected:
    """The secrets that answers of this host are to be searched for; then ask it for no compression."""
    reflected = tuple(
        part
        for item in bound_to(rules, host, port)
        if item.reflects and item.name in secrets and item.kind != "signature"
        for part in _parts(item, secrets[item.name])
    )
    if not reflected:
        return _NOTHING_REFLECTED
    found: Reflected = rules.remembered(("reflected", reflected), lambda: Reflected(reflected))
    return found


def _parts(item: Credential, secret: str) -> Iterator[bytes]:
    """What a host may tell of a secret: all of it, and of HTTP Basic the password alone."""
    yield secret.encode()
    _user, colon, password = secret.partition(":")
    if "{base64}" in item.format and colon and len(password) >= _SHORTEST_PASSWORD:
        yield password.encode()


def _without_credentials(headers: Headers, bound: tuple[Credential, ...]) -> tuple[Headers, list[str]]:
    """The headers that are no credential, and the names of those that are someone else's.

    Cookies are taken out and not complained about: clients send back what a host gave them before.
    """
    carried = {item.header.lower().encode("ascii"): item for item in bound if item.kind == "header"}
    signs = any(item.kind == "signature" for item in bound)
    kept: list[tuple[bytes, bytes]] = []
    foreign: list[str] = []
    for written, value in headers:
        name = fold(written)  # which many servers take for the same
        if name == b"cookie" and name not in carried:
            continue
        unwanted = is_credential_header(name) or (signs and name in _SIGNATURES) or _is_key_in_subprotocol(name, value)
        if not unwanted and name not in carried:
            kept.append((written, value))
        elif name not in carried or not _is_placeholder(value, carried[name]):
            foreign.append(name.decode("ascii", "replace"))
    return tuple(kept), foreign


def _is_key_in_subprotocol(name: bytes, value: bytes) -> bool:
    """Browsers can put a key into a WebSocket's opening in no other way."""
    return name == b"sec-websocket-protocol" and any(word in value.lower() for word in _KEY_WORDS)


def _is_placeholder(value: bytes, credential: Credential) -> bool:
    """Whether a header holds the placeholder: by itself, after a scheme, in the format, or inside of HTTP Basic."""
    if not credential.placeholder:
        return False
    wanted = credential.placeholder.encode("ascii")
    scheme, _, rest = value.strip().rpartition(b" ")
    if rest == wanted or (credential.header.lower().encode("ascii"), value) == _header(
        credential, credential.placeholder
    ):
        return True
    if scheme.strip().lower() != b"basic":
        return False
    try:
        return wanted in base64.b64decode(rest, validate=True).split(b":")
    except (binascii.Error, ValueError):
        return False


def _without_keys(target: str, bound: tuple[Credential, ...], *, at_known_api: bool) -> tuple[str, list[str]]:
    """The target without credentials in its query, and the keys of those that are someone else's."""
    path, mark, query = target.partition("?")
    if not mark:
        return target, []
    carried = {item.query.lower(): item for item in bound if item.query}
    kept: list[str] = []
    foreign: list[str] = []
    for piece in query.split("&"):
        pairs = [part.partition("=") for part in piece.split(";")]
        decoded = [(unquote_plus(key).lower(), unquote_plus(value)) for key, _, value in pairs]
        found = [
            key for key, value in decoded if key in carried or is_credential_key(key, value, at_known_api=at_known_api)
        ]
        if not found:
            kept.append(piece)
            continue
        own = carried.get(found[0])
        if len(pairs) > 1 or own is None or unquote_plus(pairs[0][2]) != (own.placeholder or ""):
            foreign.append(found[0])
    return path + (f"?{'&'.join(kept)}" if kept else ""), foreign


def _with_own(
    rules: Rules, rule: Rule | None, request: Request, secrets: Mapping[str, str], created: int
) -> OutgoingRequest | Verdict:
    """The request, which has no credential any more, with those that its rule has for it."""
    headers, target, used = request.headers, str(request.target), []
    for name in (rule.credential, rule.sign) if rule else ():
        credential = rules.credential(name)
        if credential is None or not applies(credential, request):
            continue
        if credential.name not in secrets:
            return _refused("credential-missing", credential.name, rule)
        if credential.kind == "signature":
            sent = Request(request.host, request.port, request.tls, request.method, target, request.authority, headers)
            headers += _signature(credential, secrets[credential.name], sent, created)
        elif not (request.tls or _stays_here(rule, request.host)):
            return _refused("no-tls", credential.name, rule)
        elif credential.kind == "query":
            target = _with_key(target, credential.query or "", secrets[credential.name])
        else:
            headers += (_header(credential, secrets[credential.name]),)
        used.append(credential.name)
    return OutgoingRequest(headers, target, tuple(used))


def _header(credential: Credential, secret: str) -> tuple[bytes, bytes]:
    encoded = base64.b64encode(secret.encode()).decode("ascii")
    before, mark, after = credential.format.partition("{base64}")
    value = before + encoded + after if mark else secret.join(credential.format.split("{}"))
    return credential.header.lower().encode("ascii"), value.encode("utf-8")


def _with_key(target: str, key: str, secret: str) -> str:
    mark = "&" if "?" in target else "?"
    return f"{target}{mark}{quote(key, safe='')}={quote(secret, safe='')}"


def _signature(credential: Credential, secret: str, request: Request, created: int) -> Headers:
    from belljar.egress.decide.signing import signature_headers

    return signature_headers(credential, secret, request, created)


def applies(credential: Credential, request: Request) -> bool:
    """Whether a credential is for this request, of those whose rule names it."""
    if credential.hosts and not any(host_matches(host, request.host) for host in credential.hosts):
        return False
    if not (credential.methods or credential.paths):
        return True
    try:
        said = Said.of(request, *paths.split_target(request.target))
    except AmbiguousPath:
        return False
    if credential.methods and not set(said.methods) <= set(credential.methods):
        return False
    return not credential.paths or (said.paths is not None and paths.allowed_by(credential.paths, said.paths))


def _stays_here(rule: Rule | None, host: str) -> bool:
    """Whether it is only ever dialled on this host's loopback address, where nobody listens on the way."""
    pinned = [split_authority(address)[0] for address in rule.addresses] if rule else []
    dialled = pinned or ([host] if is_address(host) else [])
    return bool(dialled) and all(judge(ip) == "loopback" for ip in dialled)


def _refused(reason: str, detail: str, rule: Rule | None) -> Verdict:
    key, where = (rule.key, rule.where) if rule else ("credentials", "")
    return Verdict(allowed=False, reason=reason, detail=detail, rule=rule, key=key, where=where)


__all__ = [
    "OutgoingRequest",
    "Scrubber",
    "applies",
    "bound_to",
    "fetch",
    "other_credentials",
    "outgoing",
    "reflecting",
    "scrub",
    "stripped",
]
