"""Clauses that hold in the same way on every backend, because belljar itself holds them, or the host's kernel does."""

from __future__ import annotations

from collections.abc import Sequence

from belljar.backends.contract import Clause, Status

COVERED_IN_LIVE = "covered files in a live mount, and covered sockets and named pipes of the host"
_BEFORE_WRITING = "belljar, before a record is written, and where the policy says so before output is returned"
_SESSIONS_AND_AGENTS = {
    "session.idle_s": "belljar's clock, outside of the jar",
    "session.max_age_s": "the jar's own clock, as proc.timeout_ms for a run",
    "session.max_sessions": "a lock file for each session in the state directory",
    "session.keep_s": "belljar removes what is older",
    "agents.unsandboxed": "the tool asks the policy first",
}


def lost_in_live(paths: Sequence[str]) -> str:
    """Return what `fs.deny_globs` does not hold in live mounts at these paths."""
    return (
        f"{', '.join(paths)} is the host's own directory: a denied file that is replaced, or appears later, can be "
        "read, and a socket or named pipe of the host that appears later can be opened"
    )


def redaction_clauses() -> tuple[Clause, ...]:
    """Every clause beneath `logging` that is about redaction, and the one about quarantine."""
    keys = ("logging.redact_pii", "logging.redact", "logging.redact_in", "logging.let_through")
    quarantine = Clause("logging.quarantine", Status.ENFORCED, "belljar, before the run's end is told")
    return (*(Clause(key, Status.ENFORCED, _BEFORE_WRITING) for key in keys), quarantine)


def session_clauses() -> tuple[Clause, ...]:
    """Every clause beneath `session` and `agents`."""
    return tuple(Clause(key, Status.ENFORCED, by) for key, by in _SESSIONS_AND_AGENTS.items())
