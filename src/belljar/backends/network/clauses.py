"""How far the policy's network clauses hold, for backends whose jars have a gateway."""

from __future__ import annotations

from belljar.backends.contract import Clause, Status
from belljar.policy.keys import CLAUSES
from belljar.policy.models import Policy

NETWORK_CLAUSES = tuple(key for key in CLAUSES if key.startswith("net."))
_CLOSED = "an empty network namespace"
_OPEN = "a gateway namespace whose only sockets are the egress proxy's"


def network_clauses(policy: Policy) -> tuple[Clause, ...]:
    """Every clause beneath `net`. What a host's kernel can't do is a shortfall of the opened jar."""
    by = _OPEN if policy.net.enabled else _CLOSED
    return tuple(Clause(key, Status.ENFORCED, by) for key in NETWORK_CLAUSES)
