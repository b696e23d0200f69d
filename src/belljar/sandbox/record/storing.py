"""Which runs' output is stored, and how: with tokens for what must not be told, before it touches the disk.

The policy's `logging.sample_ratio` is a share of all runs, chosen by their names, so that it is the same whoever asks.
Of any other run that did not end well, the last part is stored: it is what someone will look for. A share of 0 stores
nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from belljar.audit import outputs
from belljar.policy.models import Policy
from belljar.sandbox.record import redacting

MOST_OF_FAILED = 64 << 10
"""Bytes of each stream, of a run that failed and is not in the sample."""
_BEFORE = 128 << 10
"""Looked through besides, so that what is cut away is no half of a secret: no key is longer."""


def keep(
    run_id: str, part: int, captured: Mapping[str, bytes | bytearray], policy: Policy, *, whole: bool
) -> dict[str, Any]:
    """Store what was printed. What the audit log says of it: for each stream its size, digest, and what was cut off."""
    redactor = None
    if redacting.wanted(policy, "log") and not redacting.wanted(policy, "result"):
        redactor = redacting.of_run(run_id, policy)
    told: dict[str, Any] = {}
    for stream, raw in captured.items():
        if not raw:
            continue
        end = bytes(raw if whole else raw[-(MOST_OF_FAILED + _BEFORE) :])
        text = end
        if redactor is not None:
            reading = redactor.byte_stream()
            text = reading.feed(end) + reading.finish()
        text, left_out = (text, 0) if whole else _last(text, len(raw) - len(end))
        try:
            digest = outputs.keep(run_id, part, stream, text)
        except OSError as error:  # the run has ended, and its record is what counts
            told["error"] = f"it can't be written: {error.strerror}"
            break
        told[stream] = {"bytes": len(text), "digest": digest, **({"left_out": left_out} if left_out else {})}
    return told


def _last(text: bytes, left_out: int) -> tuple[bytes, int]:
    """The last lines, and how many bytes come before them."""
    if len(text) <= MOST_OF_FAILED:
        return text, left_out
    start = len(text) - MOST_OF_FAILED
    line = text.find(b"\n", start) + 1
    start = line if 0 < line < len(text) else start
    return text[start:], left_out + start
