"""How far the policy's network clauses hold, for backends whose jars can have a network."""

from __future__ import annotations

from belljar.backends.contract import Clause, Status
from belljar.policy.models import HostRule, Policy

NETWORK_CLAUSES = (
    "net.enabled",
    "net.allowlist",
    "net.denylist",
    "net.allow_builtin",
    "net.host_ports",
    "net.publish",
    "net.strip_headers",
    "net.budget_mb",
    "net.max_name_length",
    "net.max_name_entropy",
    "net.max_names",
    "net.ca_file",
    "net.canary_files",
)
"""Those of the table of keys, which a plain run does not read (a test compares them)."""
_CLOSED = "an empty network namespace"
_GATEWAY = "a gateway namespace whose only sockets are the egress proxy's"
_MOST_NAMED = 5


def network_clauses(policy: Policy, by: str = _GATEWAY) -> tuple[Clause, ...]:
    """Every clause beneath `net`. What a host's kernel can't do is a shortfall of the opened jar."""
    if not policy.net.enabled:
        return tuple(Clause(key, Status.ENFORCED, _CLOSED) for key in NETWORK_CLAUSES)
    told = {"net.allowlist": by + _passed_through(policy)}
    return tuple(Clause(key, Status.ENFORCED, told.get(key, by)) for key in NETWORK_CLAUSES)


def _passed_through(policy: Policy) -> str:
    """What nobody looks into, in words."""
    hosts = [] if policy.net.canary_files else [rule.host for rule in policy.net.allowlist if not _inspects(rule)]
    if not hosts:
        return ""
    named = ", ".join(hosts[:_MOST_NAMED]) + (", …" if len(hosts) > _MOST_NAMED else "")
    return (
        f"; TLS with {named} is passed through, its server name checked: another service behind the same front "
        "would not be noticed (a rule with methods or paths looks inside)"
    )


def _inspects(rule: HostRule) -> bool:
    return bool(rule.methods or rule.paths or rule.query or rule.credential or rule.sign or rule.rate)
