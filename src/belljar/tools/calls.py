"""One call of a tool: whose it is, how far it has come, and how it is ended from outside."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from belljar.audit.log import audit_log
from belljar.audit.stored import keep_input
from belljar.policy.models import Policy
from belljar.sandbox.record import redacting
from belljar.sandbox.record.stream import new_run_id

_LONGEST_NAME = 200
_LONGEST_REASON = 1000
_MOST_INPUT = 16 << 20


class Call:
    """A call, from the moment that it was asked for. Any thread may cancel it.

    Args:
        client: Who asks: `claude-agent-sdk`, `mcp`, or a program's own name.
        session: The client's own session, as it names it.
        tool_use: The client's own name of the call.
        scope: Whose the jars' sessions are: calls with another scope have others.
        policy: What holds for this call alone, instead of the toolbox's; it was checked to be tighter.
    """

    def __init__(
        self, *, client: str, session: str = "", tool_use: str = "", scope: str = "", policy: Policy | None = None
    ) -> None:
        self.id = new_run_id()
        self.client, self.session, self.tool_use, self.scope = client, session, tool_use, scope
        self.policy = policy
        self.is_recorded = False
        self.began = time.monotonic()
        self.output_bytes = 0
        self._lock = threading.Lock()
        self._cancelled = ""
        self._end: Callable[[str], None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return bool(self._cancelled)

    def watch(self, end: Callable[[str], None] | None) -> None:
        """What ends it, as long as something runs for it. A cancellation that came earlier takes effect."""
        with self._lock:
            self._end = end
            reason = self._cancelled
        if end is not None and reason:
            end(reason)

    def cancel(self, reason: str = "cancelled") -> None:
        """End what runs for it, now or as soon as it starts."""
        with self._lock:
            self._cancelled = self._cancelled or reason
            end = self._end
        if end is not None:
            end(reason)

    # --- the log ---

    def record(self, policy: Policy, tool: str, given: object, *, denied: str = "", **more: str) -> None:
        """Write it down, before anything of it happens. Raises AuditError, and then nothing may.

        `more` are words of whoever asks: redacted and bounded, as a reason to deny is.
        """
        text = _as_json(given)

        def clean(value: str, most: int) -> Any:
            return redacting.for_log(value[:most], self.id, policy)

        told = {
            "event": "tool",
            "call": self.id,
            "tool": clean(tool, _LONGEST_NAME),
            "client": self.client,
            "session": self.session[:_LONGEST_NAME],
            "tool_use": self.tool_use[:_LONGEST_NAME],
            "policy": policy.digest,
            "allowed": not denied,
            "input": keep_input(text),
            "input_bytes": len(text),
            **({"reason": clean(denied, _LONGEST_REASON)} if denied else {}),
            **{name: clean(value, _LONGEST_REASON) for name, value in more.items()},
        }
        audit_log().append(told)
        redacting.forget(self.id)
        self.is_recorded = True

    def record_answer(self, *, run: str, outcome: str, is_error: bool) -> None:
        """Write down how it ended, before the answer is given. Raises AuditError."""
        told = {"event": "answered", "call": self.id, "tool_use": self.tool_use[:_LONGEST_NAME], "outcome": outcome}
        seconds = round(time.monotonic() - self.began, 6)
        audit_log().append({**told, "is_error": is_error, "duration": seconds, **({"run": run} if run else {})})


def _as_json(given: object) -> bytes:
    """As it came. What is not JSON, or far too long, is told to be."""
    try:
        text = json.dumps(dict(given) if isinstance(given, Mapping) else given, sort_keys=True)
    except (TypeError, ValueError, RecursionError):
        text = '"what is no JSON"'
    return text.encode()[:_MOST_INPUT]
