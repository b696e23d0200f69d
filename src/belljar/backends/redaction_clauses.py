"""What holds the policy's clauses about redaction: the same on every backend, because belljar itself does it."""

from __future__ import annotations

from belljar.backends.contract import Clause, Status

_HELD = "belljar, before a record is written, and where the policy says so before output is returned"


def redaction_clauses() -> tuple[Clause, ...]:
    """Every clause beneath `logging` that is about redaction."""
    keys = ("logging.redact_pii", "logging.redact", "logging.redact_in", "logging.let_through")
    return tuple(Clause(key, Status.ENFORCED, _HELD) for key in keys)
