"""What holds the clauses about sessions and agents: the same on every backend, because belljar itself does it."""

from __future__ import annotations

from belljar.backends.contract import Clause, Status

_HELD = {
    "session.idle_s": "belljar's clock, outside of the jar",
    "session.max_age_s": "the jar's own clock, as proc.timeout_ms for a run",
    "session.max_sessions": "a lock file for each session in the state directory",
    "session.keep_s": "belljar removes what is older",
    "agents.unsandboxed": "the tool asks the policy first",
}


def session_clauses() -> tuple[Clause, ...]:
    """Every clause beneath `session` and `agents`."""
    return tuple(Clause(key, Status.ENFORCED, by) for key, by in _HELD.items())
