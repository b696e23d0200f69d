"""What becomes tokens before a model sees it: by the policy of the call, and in one numbering for each scope."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from belljar.policy.models import LoggingPolicy, Policy
from belljar.sandbox.record import redacting

_MOST = 200


class Cleaner(NamedTuple):
    """How text is redacted that is shown under one policy."""

    text: Callable[[str], str] = str
    """For whatever nobody has looked at yet: files, names, reasons."""
    output: Callable[[str], str] = str
    """For what a run printed. Where the policy has results redacted, it comes so from the jar."""


class Cleaners:
    """Those of a toolbox. Any thread may use it.

    A scope has its own: from the number of a token another could tell which values were seen there.
    """

    def __init__(self, *, redact: bool) -> None:
        self._redact = redact
        self._made: OrderedDict[tuple[str, LoggingPolicy], Cleaner] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, policy: Policy, scope: str) -> Cleaner:
        """The one for a call."""
        if not self._redact:
            return Cleaner()
        key = (scope, policy.logging)  # what a policy says about anything else changes no token
        with self._lock:
            found = self._made.pop(key, None) or _made(policy)
            self._made[key] = found
            while len(self._made) > _MOST:
                self._made.popitem(last=False)
        return found


def _made(policy: Policy) -> Cleaner:
    from belljar.redaction import Redactor

    redactor = Redactor.for_policy(policy)
    if redactor is None:
        return Cleaner()
    return Cleaner(redactor.text, str if redacting.wanted(policy, "result") else redactor.text)
