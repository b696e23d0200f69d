"""What every backend promises: `probe`, `compile`, `launch`, and the values that pass between them.

`compile` is pure: a plan can be made, printed and compared on any machine. Only `probe` and `launch` touch the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from belljar.policy.models import Mount, Policy


class Status(StrEnum):
    """How far a clause of the policy holds on a backend."""

    ENFORCED = "enforced"
    DEGRADED = "degraded"
    UNSUPPORTED = "unsupported"


@dataclass(frozen=True, slots=True)
class Clause:
    """One clause of the policy and what holds it; `lost` says what a degraded one can't hold."""

    key: str
    status: Status
    by: str
    lost: str = ""


@dataclass(frozen=True, slots=True)
class EnforcementReport:
    """Every clause of a policy, accounted for."""

    clauses: tuple[Clause, ...]

    def clause(self, key: str) -> Clause:
        """The clause named `key`."""
        return next(clause for clause in self.clauses if clause.key == key)

    def shortfalls(self) -> tuple[Clause, ...]:
        """The clauses that are not fully enforced."""
        return tuple(clause for clause in self.clauses if clause.status is not Status.ENFORCED)

    def refused_by(self, policy: Policy) -> tuple[Clause, ...]:
        """The shortfalls that the policy does not accept: any of them stops the run."""
        if policy.on_degraded == "allow":
            return ()
        accepted = () if policy.on_degraded == "refuse" else policy.on_degraded
        return tuple(clause for clause in self.shortfalls() if clause.key not in accepted)


@dataclass(frozen=True, slots=True)
class Check:
    """One line of `belljar doctor`: what was looked at, what was found, what it means, what to type."""

    name: str
    ok: bool
    found: str
    meaning: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a backend works on this host, and why."""

    backend: str
    available: bool
    reason: str
    hint: str = ""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run: a command, or code in a language. The policy says what it may do."""

    argv: tuple[str, ...] = ()
    """The command; empty when `code` is given."""
    code: bytes | None = None
    language: str = "python"
    script_name: str = ""
    """The name that the code's file has in the jar (`script.py`), for tracebacks."""
    arguments: tuple[str, ...] = ()
    """Arguments for the code."""
    env: Mapping[str, str] = field(default=MappingProxyType({}))
    """The caller's environment, from which `env.pass` picks."""
    explain_denials: bool = False


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """All that `launch` needs, and nothing that has to be decided any more. Plain data, JSON-ready."""

    backend: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    workdir: str
    limits: Mapping[str, Any]
    stage: Mapping[str, Any]
    """What is prepared outside the jar before it is made; its form is the backend's own."""
    report: EnforcementReport
    policy_digest: str


__all__ = [
    "Availability",
    "Check",
    "Clause",
    "EnforcementReport",
    "LaunchPlan",
    "Mount",
    "RunRequest",
    "Status",
]
