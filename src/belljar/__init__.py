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
    from belljar.sandbox.aio import AsyncSandbox
    from belljar.sandbox.result import RunResult
    from belljar.sandbox.sandbox import Sandbox, run

__all__ = [
    "AsyncSandbox",
    "BelljarError",
    "Policy",
    "PolicyError",
    "PrerequisiteError",
    "RunResult",
    "Sandbox",
    "SandboxUnavailableError",
    "run",
]

_HOMES = {
    "AsyncSandbox": "belljar.sandbox.aio",
    "BelljarError": "belljar.errors",
    "Policy": "belljar.policy.models",
    "PolicyError": "belljar.errors",
    "PrerequisiteError": "belljar.errors",
    "RunResult": "belljar.sandbox.result",
    "Sandbox": "belljar.sandbox.sandbox",
    "SandboxUnavailableError": "belljar.errors",
    "run": "belljar.sandbox.sandbox",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: `import belljar` itself costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'belljar' has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
