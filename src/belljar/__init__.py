"""belljar runs code an AI agent wrote: sealed by the operating system, limited by a policy, in plain sight."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for typing's, which takes 4 ms to import
if TYPE_CHECKING:
    from belljar.errors import (
        BelljarError,
        PolicyError,
        PrerequisiteError,
        SandboxUnavailableError,
    )
    from belljar.policy.models import Policy
    from belljar.redaction.slices import Slice
    from belljar.sandbox.aio.pool import AsyncPool
    from belljar.sandbox.aio.sandbox import AsyncSandbox
    from belljar.sandbox.aio.session import AsyncSession
    from belljar.sandbox.pool.pool import Pool
    from belljar.sandbox.record.handles import output
    from belljar.sandbox.record.result import Fault, RunResult
    from belljar.sandbox.run.executor import Command, Executor
    from belljar.sandbox.run.sandbox import Sandbox, run
    from belljar.sandbox.session.session import Session

__all__ = [
    "AsyncPool",
    "AsyncSandbox",
    "AsyncSession",
    "BelljarError",
    "Command",
    "Executor",
    "Fault",
    "Policy",
    "PolicyError",
    "Pool",
    "PrerequisiteError",
    "RunResult",
    "Sandbox",
    "SandboxUnavailableError",
    "Session",
    "Slice",
    "output",
    "run",
]

_HOMES = {
    "AsyncPool": "belljar.sandbox.aio.pool",
    "AsyncSandbox": "belljar.sandbox.aio.sandbox",
    "AsyncSession": "belljar.sandbox.aio.session",
    "BelljarError": "belljar.errors",
    "Command": "belljar.sandbox.run.executor",
    "Executor": "belljar.sandbox.run.executor",
    "Fault": "belljar.sandbox.record.result",
    "Policy": "belljar.policy.models",
    "PolicyError": "belljar.errors",
    "Pool": "belljar.sandbox.pool.pool",
    "PrerequisiteError": "belljar.errors",
    "RunResult": "belljar.sandbox.record.result",
    "Sandbox": "belljar.sandbox.run.sandbox",
    "SandboxUnavailableError": "belljar.errors",
    "Session": "belljar.sandbox.session.session",
    "Slice": "belljar.redaction.slices",
    "output": "belljar.sandbox.record.handles",
    "run": "belljar.sandbox.run.sandbox",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: `import belljar` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
