"""The keys of a policy that are about agents: what a tool's caller may ask for."""

from __future__ import annotations

from belljar.policy.keys.key import Bound, Key, ValueKind

AGENT_KEYS = (
    Key(
        "agents.unsandboxed",
        ValueKind.BOOLEAN,
        "Whether the caller of the Bash tool may have a command run outside of any jar "
        "(`dangerously_disable_sandbox`), with a reason, which is recorded. Otherwise that is refused.",
        example=False,
        bound=Bound.OFF,
    ),
)
