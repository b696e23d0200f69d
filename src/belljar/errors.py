"""Every exception belljar raises, named by whose fault it is.

    BelljarError
    ├── PolicyError              the policy's author: a file, a key, a value
    ├── UsageError               the caller: an argument that can't be
    ├── PrerequisiteError        the host: something is missing or forbidden here
    ├── SandboxUnavailableError  the run: the jar could not be made or was lost
    │   ├── AuditError           the audit log can't be written, so nothing may happen
    │   └── KillSwitchError      the kill switch is on
    └── InternalError            ours: please report it

A refusal *inside* a jar is not an exception: it is a `Denial` in the result.
"""

from __future__ import annotations


class BelljarError(Exception):
    """What failed, and in `hint` what to type about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class PolicyError(BelljarError):
    """The policy can't be read or can't be granted; `problems` lists every place."""

    def __init__(self, message: str, *, hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems or (message,)


class UsageError(BelljarError):
    """An argument of the call is wrong."""


class PrerequisiteError(BelljarError):
    """The host lacks something that the run needs."""


class SandboxUnavailableError(BelljarError):
    """The jar could not be made, or was lost before the code ended."""


class AuditError(SandboxUnavailableError):
    """The audit log can't be written: what it would have recorded does not happen."""


class KillSwitchError(SandboxUnavailableError):
    """The kill switch is on: nothing may run."""


class InternalError(BelljarError):
    """A fault of belljar itself."""
