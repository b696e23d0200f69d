"""belljar runs code an AI agent wrote: sealed by the operating system, limited by a policy, in plain sight."""

from __future__ import annotations

__version__ = "0.1.0"

TYPE_CHECKING = False  # type checkers take it for typing's, which takes 4 ms to import
if TYPE_CHECKING:
    from belljar.audit.redaction.slices import Slice
    from belljar.errors import (
        BelljarError,
        PolicyError,
        PrerequisiteError,
        SandboxUnavailableError,
    )
    from belljar.policy.models import Policy
    from belljar.sandbox.aio import AsyncSandbox
    from belljar.sandbox.aio_pool import AsyncPool
    from belljar.sandbox.aio_session import AsyncSession
    from belljar.sandbox.handles import output
    from belljar.sandbox.pool import Pool
    from belljar.sandbox.result import Fault, RunResult
    from belljar.sandbox.sandbox import Sandbox, run
    from belljar.sandbox.session import Session

__all__ = [
    "AsyncPool",
    "AsyncSandbox",
    "AsyncSession",
    "BelljarError",
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
    "AsyncPool": "belljar.sandbox.aio_pool",
    "AsyncSandbox": "belljar.sandbox.aio",
    "AsyncSession": "belljar.sandbox.aio_session",
    "BelljarError": "belljar.errors",
    "Fault": "belljar.sandbox.result",
    "Policy": "belljar.policy.models",
    "PolicyError": "belljar.errors",
    "Pool": "belljar.sandbox.pool",
    "PrerequisiteError": "belljar.errors",
    "RunResult": "belljar.sandbox.result",
    "Sandbox": "belljar.sandbox.sandbox",
    "SandboxUnavailableError": "belljar.errors",
    "Session": "belljar.sandbox.session",
    "Slice": "belljar.audit.redaction.slices",
    "output": "belljar.sandbox.handles",
    "run": "belljar.sandbox.sandbox",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: `import belljar` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
