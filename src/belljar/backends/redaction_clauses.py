"""What holds the policy's clauses about what is written down: the same everywhere, because belljar itself does it."""

from __future__ import annotations

from belljar.backends.contract import Clause, Status

_HELD = "belljar, before a record is written, and where the policy says so before output is returned"


def redaction_clauses() -> tuple[Clause, ...]:
    """Every clause beneath `logging` that is about redaction, and the one about quarantine."""
    keys = ("logging.redact_pii", "logging.redact", "logging.redact_in", "logging.let_through")
    quarantine = Clause("logging.quarantine", Status.ENFORCED, "belljar, before the run's end is told")
    return (*(Clause(key, Status.ENFORCED, _HELD) for key in keys), quarantine)
