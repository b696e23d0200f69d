"""The redactor of each run: one for what is logged and what is returned, so that a value has one token in both.

It is imported and made only when there is something to look at: most runs log no text of the code's.
"""

from __future__ import annotations

from belljar.policy.models import Policy

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.redaction import Redactor

_SHORTEST = 12
_MOST = 1000
_OF_RUNS: dict[str, Redactor] = {}


def wanted(policy: Policy, place: str) -> bool:
    """Whether the policy has text redacted there: `log` or `result`."""
    logging = policy.logging
    return logging.redact_pii and bool(logging.redact) and place in logging.redact_in


def of_run(run_id: str, policy: Policy) -> Redactor | None:
    """That of a run."""
    found = _OF_RUNS.get(run_id)
    if found is None:
        from belljar.redaction import Redactor

        found = Redactor.for_policy(policy)
        if found is not None:
            while len(_OF_RUNS) >= _MOST:
                _OF_RUNS.pop(next(iter(_OF_RUNS)), None)
            _OF_RUNS[run_id] = found
    return found


def of_result(run_id: str, policy: Policy) -> Redactor | None:
    """That of a run whose output is redacted before it is returned; None if it is not."""
    return of_run(run_id, policy) if wanted(policy, "result") else None


def forget(run_id: str) -> None:
    """The run has ended, and everything of it was told."""
    _OF_RUNS.pop(run_id, None)


def for_log(value: Any, run_id: str, policy: Policy) -> Any:
    """Text, or a list of texts, as it may stand in the log."""
    if not wanted(policy, "log"):
        return value
    if isinstance(value, list | tuple):
        return [for_log(item, run_id, policy) for item in value]
    if not isinstance(value, str) or not _may_hold_something(value):
        return value
    redactor = of_run(run_id, policy)
    return value if redactor is None else redactor.text(value)


def _may_hold_something(text: str) -> bool:
    """Nothing that is looked for is shorter, or has neither a digit nor a mark in it."""
    if "@" in text or "=" in text or ":" in text:
        return True
    return len(text) >= _SHORTEST and any(letter.isdigit() for letter in text)
