"""What holds the policy's clauses about redaction: the same on every backend, because belljar itself does it."""

from __future__ import annotations

from belljar.backends.contract import Clause, Status
from belljar.policy.models import Policy

_NOT_LOGGED = "no output of the code is written to any log"


def redaction_clauses(policy: Policy) -> tuple[Clause, ...]:
    """Every clause beneath `logging` that is about redaction."""
    held = ("logging.redact_pii", "logging.redact", "logging.let_through")
    return (*(Clause(key, Status.ENFORCED, _NOT_LOGGED) for key in held), _places(policy))


def _places(policy: Policy) -> Clause:
    if policy.logging.redact_pii and "result" in policy.logging.redact_in:
        return Clause("logging.redact_in", Status.UNSUPPORTED, "nothing", "results are returned as they are")
    return Clause("logging.redact_in", Status.ENFORCED, _NOT_LOGGED)
