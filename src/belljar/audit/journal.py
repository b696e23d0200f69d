"""A line for every run that was refused, and for what the egress proxy refused to a run.

They are in `refusals.jsonl` in the state directory, readable by its owner only.
"""

from __future__ import annotations

import json
import os
import time

from belljar.audit.state import state_directory

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from typing import Any


def record_refusal(run_id: str, reason: str, **details: Any) -> None:
    """A run was not started. An OSError means that it was not written, and the caller should say so."""
    _write({"time": time.time(), "run_id": run_id, "event": "refused", "reason": reason, **details})


def record_egress_denial(run_id: str, at: float, reason: str, **details: Any) -> None:
    """The proxy refused something; `reason` is its stable code."""
    _write({"time": at, "run_id": run_id, "event": "egress-denied", "reason": reason, **details})


def _write(line: dict[str, Any]) -> None:
    directory = state_directory()
    os.makedirs(directory, mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(os.path.join(directory, "refusals.jsonl"), flags, 0o600)
    try:
        os.write(descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")
    finally:
        os.close(descriptor)
