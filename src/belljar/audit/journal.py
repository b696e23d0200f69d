"""A line for every run that was refused: in `refusals.jsonl` in the state directory, readable by its owner only."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from belljar.audit.state import state_directory


def record_refusal(run_id: str, reason: str, **details: Any) -> None:
    """Write it down. An OSError means that it was not written, and the caller should say so."""
    directory = state_directory()
    os.makedirs(directory, mode=0o700, exist_ok=True)
    line = {"time": time.time(), "run_id": run_id, "event": "refused", "reason": reason, **details}
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(os.path.join(directory, "refusals.jsonl"), flags, 0o600)
    try:
        os.write(descriptor, json.dumps(line, separators=(",", ":")).encode() + b"\n")
    finally:
        os.close(descriptor)
