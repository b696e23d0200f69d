"""Every reason for a refusal, once: its code, what it says to people, and the smallest change that would allow it.

The codes are stable: they are in results, in the audit record and in what the code reads in a 403.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from belljar.egress.decide.steps import Verdict

REASONS = MappingProxyType(
    {
        "name-form": "the name of the host is not plain: letters, digits, '-', '_' and '.' only",
        "address-form": "the address is not written plainly: four decimal numbers, or IPv6 without a zone",
        "name-not-listed": "no entry of net.allowlist names this host",
        "rule-too-broad": "a rule with a star does not open this kind of host, only one that names it does",
        "name-too-long": "the name is longer than net.max_name_length",
        "name-entropy": "a part of the name looks like encoded data (net.max_name_entropy)",
        "too-many-names": "the run has asked for net.max_names different names already",
        "address-not-listed": "no entry of net.allowlist names this address",
        "port-not-listed": "the host is listed, and this port of it is not",
        "private-address": "the address is not on the public internet, and no rule names it",
        "server-name-mismatch": "the TLS server name is not the host that was dialled",
        "server-name-missing": "TLS without a server name: it can't be seen which host is meant",
        "server-name-hidden": "the ClientHello is encrypted: it can't be seen which host is meant",
        "authority-mismatch": "the Host of the request is not the host that was dialled",
        "authority-missing": "the request says no Host",
        "method-not-listed": "no rule for this host allows the method",
        "path-not-listed": "no rule for this host allows the path",
        "query-not-listed": "no rule for this host allows this key in the query",
        "body-not-listed": "a GET or HEAD with a body, which a server could take for another request",
        "path-ambiguous": "servers would understand this path in different ways",
        "denied-by-rule": "an entry of net.denylist denies it",
        "foreign-credential": "a credential that is not the policy's was sent to a host that has one",
        "unbound-credential": "a credential was sent to an API for which the policy has none, and may be anyone's",
        "upload-without-credential": "uploads are opened only together with a credential of the policy's",
        "rate": "more requests than the rule's rate allows",
        "budget": "the byte budget is used up",
        "canary": "a canary token was in what was sent: the run is stopped",
        "bad-request": "the request is not valid HTTP",
        "not-http": "a rule for this host looks at requests, and this is neither TLS nor HTTP",
        "not-inspected": "a rule for this host looks into TLS, and the client does not accept that",
        "no-tls": "a credential is only sent through TLS",
        "credential-missing": "the credential could not be got on the host",
        "udp": "UDP does not leave a jar, but for DNS",
        "icmp": "ICMP does not leave a jar",
        "protocol": "only TCP, and DNS, leave a jar",
        "upstream": "the host could not be reached",
        "upstream-certificate": "the certificate of the host could not be verified",
        "limit": "too many connections at once, or too slow a request",
        "unrecorded": "it could not be written to the audit log, and nothing passes unrecorded",
        "proxy": "the proxy is gone",
        "net-off": "the network is off",
    }
)
"""Code to words. `builtin-NAME` codes are those of the built-in deny list."""


def words(reason: str, detail: str = "") -> str:
    """What a reason code says."""
    if reason.startswith("builtin-"):
        from belljar.egress.decide.builtin import why

        text = f"belljar's own deny list: {why(reason.removeprefix('builtin-'))}"
    else:
        text = REASONS.get(reason, reason)
    return f"{text} ({detail})" if detail else text


def change(
    verdict: Verdict, *, host: str = "", port: int = 443, method: str = "", path: str = "", query: str = ""
) -> str:
    """The smallest change of the policy that would allow what the verdict refuses; nothing when none would."""
    reason, rule = verdict.reason, verdict.rule
    name = _text(host)
    entry = f"net.allowlist: [{name}]" if port in (80, 443) else f"net.allowlist: [{{host: {name}, ports: [{port}]}}]"
    if verdict.allowed:
        return ""
    if reason.startswith("builtin-"):
        return f"net.allow_builtin: [{reason.removeprefix('builtin-')}]"
    if reason == "port-not-listed" and rule is None:
        return f"net.host_ports: [{port}]"
    key = rule.key if rule else "net.allowlist[]"
    table = {
        "net-off": f"net.enabled: true, {entry}",
        "name-not-listed": entry,
        "rule-too-broad": entry,
        "unbound-credential": (
            f"{key}.credential, a credential of the policy's; "
            f"or net.allowlist: [{{host: {name}, foreign_credentials: true}}]"
        ),
        "upload-without-credential": f"{key}.credential, a credential of the policy's",
        "address-not-listed": entry,
        "name-too-long": f"net.max_name_length: {len(host)}",
        "name-entropy": f"net.allowlist: [{name}], by its whole name",
        "too-many-names": "net.max_names, larger",
        "port-not-listed": f"{key}.ports, with {port}",
        "private-address": entry if verdict.detail.startswith(f"{host} ") else _pin(name, verdict.detail),
        "method-not-listed": f"{key}.methods, with {method}",
        "path-not-listed": f"{key}.paths, with {_text(path or '/')}",
        "body-not-listed": f"{key}.get_body: true" if rule else "",
        "query-not-listed": f"{key}.query, with {_text(verdict.detail or query)}",
        "denied-by-rule": f"remove {key}",
        "rate": f"{key}.rate, larger",
        "budget": f"{key}.budget_mb, larger" if rule else "net.budget_mb, larger",
        "not-http": f"a rule for {name} without methods, paths, query, credential, sign and rate",
    }
    return table.get(reason, "")


def _pin(name: str, detail: str) -> str:
    """The rule that names the private address, which is the first word of the detail."""
    return f"net.allowlist: [{{host: {name}, addresses: [{_text(detail.partition(' ')[0])}]}}]"


def _text(value: str) -> str:
    """A word as YAML has it."""
    import re

    if re.match(r"[A-Za-z/.][A-Za-z0-9_./+-]*\Z", value):
        return value
    return "'" + "".join(character if character.isprintable() else "?" for character in value).replace("'", "''") + "'"
