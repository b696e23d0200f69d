"""What may pass: small pure steps, in the order in which a connection meets them.

    decide_name          a name is asked for, by DNS, CONNECT or SOCKS
    decide_connection    a host and a port are dialled
    decide_server_name   TLS is to be passed through: its server name against the host that was dialled
    decide_address       what the name resolved to, before it is dialled
    decide_request       a request: its Host, method, path and query
    (credentials, rate and budget follow: `credentials.outgoing`, `budget.Limits`)

In each step what is denied comes first, then what is allowed, and what nothing allows is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from belljar.egress.decide import paths
from belljar.egress.decide.addresses import judge
from belljar.egress.decide.names import (
    NameRefused,
    covered_labels,
    entropy,
    host_matches,
    is_address,
    normalise,
    split_authority,
)
from belljar.egress.decide.paths import AmbiguousPath
from belljar.egress.decide.request import Request, Said
from belljar.egress.decide.rules import Rule, Rules
from belljar.policy import carriers
from belljar.policy.builtin import HOST_NAME

_SHORTEST_CODED = 16
"""Shorter labels hold too few characters to tell a word from data."""
_NEVER = ("CONNECT", "TRACE")
"""A relay within the relay; and an echo of what the proxy added."""
_METHOD = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,40}\Z")
_HOST_ADDRESSES = ("127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something may pass, and if not why: a code of `reasons`, a detail, the rule that decided."""

    allowed: bool
    reason: str = ""
    detail: str = ""
    rule: Rule | None = None
    key: str = ""
    """What in the policy decided: `net.allowlist[2]`, `net.max_names`."""
    where: str = ""
    """`file:line` of that."""


def decide_name(rules: Rules, name: str | bytes, *, names_so_far: int = 0) -> Verdict:
    """Whether a name may be known. `names_so_far` counts the other names that the run has been given."""
    try:
        host = normalise(name)
    except NameRefused as error:
        return _refused(rules, error.reason)
    if host == HOST_NAME:
        return _host_allowed(rules) if rules.host_ports else _refused(rules, "name-not-listed", key="net.host_ports")
    if denial := _denied(rules, host, None):
        return denial
    naming = _by_precision([rule for rule in rules.allow if _means(rule, host)])
    if not naming:
        return _unlisted(rules, host)
    if any(rule.host == host for rule in naming):
        return _allowed(naming[0])
    if is_address(host):
        return _public(rules, host, naming[0])
    if len(host) > rules.max_name_length:
        return _refused(rules, "name-too-long", f"{len(host)} characters", key="net.max_name_length")
    for rule in naming:
        if not _coded(rules, rule, host):
            break
    else:
        return _refused(rules, "name-entropy", key="net.max_name_entropy")
    if names_so_far >= rules.max_names:
        return _refused(rules, "too-many-names", key="net.max_names")
    return _allowed(rule)


def _coded(rules: Rules, rule: Rule, host: str) -> bool:
    long = [label for label in covered_labels(rule.host, host) if len(label) >= _SHORTEST_CODED]
    return any(entropy(label) > rules.max_name_entropy for label in long)


def _by_precision(naming: Iterable[Rule]) -> list[Rule]:
    """Whole names first, `*` last: the longest pattern leaves the least to whoever asks."""
    return sorted(naming, key=lambda rule: (rule.host.startswith("*"), -len(rule.host)))


def decide_connection(rules: Rules, host: str, port: int) -> Verdict:
    """Whether a host may be dialled on this port. What a request says is decided later."""
    verdict: Verdict = rules.remembered(("connection", host, port), lambda: _connection(rules, host, port))
    return verdict


def _connection(rules: Rules, host: str, port: int) -> Verdict:
    try:
        host = normalise(host)
    except NameRefused as error:
        return _refused(rules, error.reason)
    if denial := _denied(rules, host, port):
        return denial
    if host == HOST_NAME:
        allowed = port in rules.host_ports
        return _host_allowed(rules) if allowed else _refused(rules, "port-not-listed", str(port), key="net.host_ports")
    naming = [rule for rule in rules.allow if _means(rule, host)]
    if not naming:
        return _unlisted(rules, host)
    fitting = [rule for rule in naming if port in rule.ports]
    if not fitting:
        return _refused(rules, "port-not-listed", str(port), naming[0])
    if is_address(host) and not any(rule.host == host for rule in fitting):
        return _public(rules, host, fitting[0])
    return _allowed(fitting[0])


def must_open(rules: Rules, host: str, port: int) -> bool:
    """Whether TLS with this host has to be opened, because something about it is inside."""
    if rules.canaries:
        return True
    if host == HOST_NAME:
        return any(rule.narrows for rule in _denying(rules, host, port))
    allowing = _allowing(rules, host, port)
    if is_address(host) and allowing and not any(rule.host == host for rule in allowing):
        return True  # a star covers it: without a name it can't be told which host it is, but from the inside
    return inspects(rules, host, port)


def inspects(rules: Rules, host: str, port: int) -> bool:
    """Whether a rule for this host and port looks at requests, so that what is no request can't pass."""
    allowing = any(rule.inspects for rule in _allowing(rules, host, port))
    if allowing or any(rule.narrows for rule in _denying(rules, host, port)):
        return True
    return takes_no_foreign_credential(rules, host, port) or any(host_matches(rule.host, host) for rule in rules.lifted)


def takes_no_foreign_credential(rules: Rules, host: str, port: int) -> bool:
    """Return True if a rule for a model vendor's API or a cloud's leaves out `foreign_credentials`."""
    if carriers.guarded(host) is None:
        return False
    return not all(rule.foreign_credentials for rule in _allowing(rules, host, port))


def lifted_upload(rules: Rules, request: Request) -> Rule | None:
    """The lifted entry of the built-in list by which this request is an upload."""
    lifted = [rule for rule in rules.lifted if _port_fits(rule, request.port) and host_matches(rule.host, request.host)]
    if not lifted:
        return None
    said = Said.of(request, *paths.split_target(request.target))
    return next((rule for rule in lifted if _denies(rule, said)), None)


def decide_server_name(rules: Rules, host: str, port: int, server_name: str | bytes | None) -> Verdict:
    """Whether the server name of a TLS hello is the host that was dialled."""
    rule = next(iter(_allowing(rules, host, port)), None)
    if not server_name:
        return _allowed(rule) if is_address(host) else _refused(rules, "server-name-missing", "", rule)
    try:
        said = normalise(server_name)
    except NameRefused as error:
        return _refused(rules, error.reason, "TLS server name", rule)
    return _allowed(rule) if said == host else _refused(rules, "server-name-mismatch", said, rule)


def name_hidden(rules: Rules, host: str, port: int) -> Verdict:
    """Return the refusal of an encrypted ClientHello that can't be opened any more."""
    return _refused(rules, "server-name-hidden", "", next(iter(_allowing(rules, host, port)), None))


def decide_address(rules: Rules, host: str, port: int, ip: str) -> Verdict:
    """Whether `ip`, which is what `host` resolved to, may be dialled. It has to be the address that then is dialled."""
    try:
        kind = judge(ip)
        plain = normalise(ip)
    except ValueError:
        return _refused(rules, "address-form", "", None)
    for denying in rules.deny:
        if not denying.narrows and denying.host == plain and _port_fits(denying, port):
            return _denial(denying)
    if host == HOST_NAME:
        named = plain in _HOST_ADDRESSES and port in rules.host_ports
        return (
            _host_allowed(rules)
            if named
            else _refused(rules, "private-address", f"{ip} is {kind}", key="net.host_ports")
        )
    naming = _allowing(rules, host, port)
    if not naming:
        return decide_connection(rules, host, port)
    rule = naming[0]
    if any(plain == each.host or plain in _pinned_ips(each) for each in naming):
        return _allowed(rule)
    pinned = any(each.addresses for each in naming)
    if pinned or kind:
        return _refused(
            rules, "private-address" if kind else "address-not-listed", f"{ip} is {kind or 'not pinned'}", rule
        )
    return _allowed(rule)


def addresses_for(rules: Rules, host: str, port: int) -> tuple[tuple[str, int | None], ...]:
    """Where a host is dialled by the policy's own word; nothing means that DNS is asked."""
    if host == HOST_NAME:
        return tuple((ip, None) for ip in _HOST_ADDRESSES)
    for rule in _by_precision(_allowing(rules, host, port)):
        if rule.addresses:
            return tuple(split_authority(address) for address in rule.addresses)
    return ((host, None),) if is_address(host) else ()


def decide_request(rules: Rules, request: Request) -> Verdict:
    """Whether a request may be sent on: every request of a kept-alive connection, by all that it says."""
    connection = decide_connection(rules, request.host, request.port)
    if not connection.allowed:
        return connection
    if refusal := _authority(rules, request, connection.rule):
        return refusal
    method = request.method
    if method.upper() in _NEVER or not _METHOD.match(method):
        return _refused(rules, "method-not-listed", method[:40], connection.rule)
    try:
        path, query = paths.split_target(request.target)
    except AmbiguousPath:
        return _refused(rules, "bad-request", "target", connection.rule)
    denying, allowing = _denying(rules, request.host, request.port), _allowing(rules, request.host, request.port)
    if not denying and (request.host == HOST_NAME or not (allowing[0].narrows or request.odd_body)):
        return connection
    said = Said.of(request, path, query)
    for rule in denying:
        if _denies(rule, said):
            return _denial(rule)
    if request.host != HOST_NAME:
        return _first_that_allows(rules, allowing, said)
    return _refused(rules, "body-not-listed", method, key="net.host_ports") if request.odd_body else connection


def _authority(rules: Rules, request: Request, rule: Rule | None) -> Verdict | None:
    """A refusal, unless the request is for the host and port that were dialled."""
    if request.authority is None or not request.authority:
        return _refused(rules, "authority-missing", "", rule)
    if request.authority == request.host:
        return None
    try:
        host, port = split_authority(request.authority)
    except NameRefused as error:
        return _refused(rules, error.reason, "Host", rule)
    if host != request.host or port not in (None, request.port):
        return _refused(rules, "authority-mismatch", host if port is None else f"{host}:{port}", rule)
    return None


def _denies(rule: Rule, said: Said) -> bool:
    """What can't be understood fits every pattern of a deny rule, and case makes no difference to one."""
    if rule.methods and not any(method.upper() in rule.methods for method in said.methods):
        return False
    if rule.paths and said.paths is not None and not paths.denied_by(rule.paths, said.paths):
        return False
    if rule.query and said.keys is not None:
        return bool({key.lower() for key in said.keys} & {key.lower() for key in rule.query})
    return True


def _first_that_allows(rules: Rules, allowing: tuple[Rule, ...], said: Said) -> Verdict:
    """The first rule that allows all of it; else the refusal of the one that came closest."""
    closest: tuple[int, Verdict] | None = None
    for rule in allowing:
        depth, reason, detail = _lacks(rule, said)
        if not reason:
            return _allowed(rule)
        if closest is None or depth > closest[0]:
            closest = (depth, _refused(rules, reason, detail, rule))
    assert closest is not None
    return closest[1]


def _lacks(rule: Rule, said: Said) -> tuple[int, str, str]:
    """What a rule does not allow of a request: how far it got, the reason and a detail. No reason: it allows all."""
    for method in said.methods:
        if rule.methods and method not in rule.methods:
            return 0, "method-not-listed", method[:40]
    if rule.paths:
        if said.paths is None:
            return 1, "path-ambiguous", ""
        if not paths.allowed_by(rule.paths, said.paths):
            return 1, "path-not-listed", said.paths[0][:200]
    if rule.query:
        if said.keys is None:
            return 2, "path-ambiguous", "query"
        if unlisted := sorted(said.keys - set(rule.query)):
            return 2, "query-not-listed", unlisted[0][:100]
    if said.odd_body and not rule.get_body:
        return 3, "body-not-listed", said.methods[0]
    return 4, "", ""


def _allowing(rules: Rules, host: str, port: int) -> tuple[Rule, ...]:
    found: tuple[Rule, ...] = rules.remembered(
        ("allowing", host, port),
        lambda: tuple(rule for rule in rules.allow if port in rule.ports and _means(rule, host)),
    )
    return found


def _means(rule: Rule, host: str) -> bool:
    """Return True if a rule is for this host; one with a star is not for hosts that need a rule of their own."""
    return host_matches(rule.host, host) and carriers.names(rule.host, host)


def _unlisted(rules: Rules, host: str) -> Verdict:
    """The refusal of a host that no rule opens. A rule that is too broad for it is named."""
    broad = next((rule for rule in rules.allow if host_matches(rule.host, host)), None)
    if broad is not None and (known := carriers.reserved(host)):
        return _refused(rules, "rule-too-broad", f"{known[0].kind}: {known[0].why}", broad)
    return _refused(rules, "address-not-listed" if is_address(host) else "name-not-listed")


def _denying(rules: Rules, host: str, port: int) -> tuple[Rule, ...]:
    found: tuple[Rule, ...] = rules.remembered(
        ("denying", host, port),
        lambda: tuple(rule for rule in rules.deny if _port_fits(rule, port) and host_matches(rule.host, host)),
    )
    return found


def _port_fits(rule: Rule, port: int | None) -> bool:
    return not rule.ports or port in rule.ports


def _denied(rules: Rules, host: str, port: int | None) -> Verdict | None:
    """A denial by a rule that looks at no request; without a port, only by one for every port."""
    for rule in rules.deny:
        if not rule.narrows and _port_fits(rule, port) and host_matches(rule.host, host):
            return _denial(rule)
    return None


def _pinned_ips(rule: Rule) -> set[str]:
    return {split_authority(address)[0] for address in rule.addresses}


def _allowed(rule: Rule | None) -> Verdict:
    if rule is None:
        return Verdict(allowed=True)
    return Verdict(allowed=True, rule=rule, key=rule.key, where=rule.where)


def _host_allowed(rules: Rules) -> Verdict:
    return Verdict(allowed=True, key="net.host_ports", where=rules.places.get("net.host_ports", ""))


def _public(rules: Rules, ip: str, rule: Rule) -> Verdict:
    """What a `*` says of an address: it means the public ones."""
    kind = judge(ip)
    return _refused(rules, "private-address", f"{ip} is {kind}", rule) if kind else _allowed(rule)


def _denial(rule: Rule) -> Verdict:
    reason = f"builtin-{rule.builtin}" if rule.builtin else "denied-by-rule"
    return Verdict(False, reason, "", rule, rule.key, rule.where)  # noqa: FBT003


def _refused(rules: Rules, reason: str, detail: str = "", rule: Rule | None = None, *, key: str = "") -> Verdict:
    if rule is not None:
        return Verdict(False, reason, detail, rule, rule.key, rule.where)  # noqa: FBT003
    key = key or "net.allowlist"
    return Verdict(False, reason, detail, None, key, rules.places.get(key, ""))  # noqa: FBT003


__all__ = [
    "Request",
    "Said",
    "Verdict",
    "addresses_for",
    "decide_address",
    "decide_connection",
    "decide_name",
    "decide_request",
    "decide_server_name",
    "inspects",
    "lifted_upload",
    "must_open",
    "name_hidden",
    "takes_no_foreign_credential",
]
