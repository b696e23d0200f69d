"""The built-in deny list, as the proxy holds it, and the words about it. The list itself is the policy's."""

from __future__ import annotations

from belljar.policy.builtin import BUILTIN, BUILTIN_NAMES, HOST_NAME, BuiltIn

__all__ = ["BUILTIN", "BUILTIN_NAMES", "HOST_NAME", "BuiltIn", "why"]


def why(name: str) -> str:
    """The reason for an entry, in words."""
    return next((entry.why for entry in BUILTIN if entry.name == name), "")
