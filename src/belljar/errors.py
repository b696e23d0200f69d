"""Every exception belljar raises, named by whose fault it is.

    BelljarError
    ├── PolicyError              the policy's author: a file, a key, a value
    ├── UsageError               the caller: an argument that can't be
    ├── PrerequisiteError        the host: something is missing or forbidden here
    ├── SandboxUnavailableError  the run: the jar could not be made or was lost
    ├── AuditError               the host: the audit log can't be written, so nothing may happen
    ├── KillSwitchError          an operator: the kill switch is on
    └── InternalError            ours: please report it

A refusal *inside* a jar is not an exception: it is a `Denial` in the result.

An exception that ends a run has the class of its cause in `fault`, as a result has: `code`, `policy` or `infra`. Only a
run that failed for `infra` is worth trying again. An exception about the call itself has `none`.
"""

from __future__ import annotations


class BelljarError(Exception):
    """What failed, and in `hint` what to type about it."""

    fault = "none"
    """The class of the cause: `none`, `code`, `policy` or `infra`."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n\nhint: {self.hint}" if self.hint else self.message


class PolicyError(BelljarError):
    """The policy can't be read or can't be granted; `problems` lists every place."""

    fault = "policy"

    def __init__(self, message: str, *, hint: str = "", problems: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems or (message,)


class UsageError(BelljarError):
    """An argument of the call is wrong."""


class PrerequisiteError(BelljarError):
    """The host lacks something that the run needs."""

    fault = "infra"


class SandboxUnavailableError(BelljarError):
    """The jar could not be made, or was lost before the code ended.

    `fault` is `infra`, unless earlier code in the jar is the cause: it filled the workspace, for example.
    """

    def __init__(self, message: str, *, hint: str = "", fault: str = "infra") -> None:
        super().__init__(message, hint=hint)
        self.fault = fault


class AuditError(BelljarError):
    """The audit log can't be written: what it would have recorded does not happen."""

    fault = "infra"


class KillSwitchError(BelljarError):
    """The kill switch is on: nothing may run."""

    fault = "policy"


class InternalError(BelljarError):
    """A fault of belljar itself."""

    fault = "infra"
