"""A run as it can be looked into while it is there: what it is, its processes, its files."""

from __future__ import annotations

from collections.abc import Callable

from belljar.backends.contract import LaunchPlan, Process
from belljar.policy.models import Policy

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from belljar.sandbox.snapshots import Held


class Access:
    """Kept by the run's handle from its start to its end."""

    __slots__ = ("held", "plan", "policy", "process")

    def __init__(self, policy: Policy, plan: LaunchPlan, process: Process, held: Callable[[], Held]) -> None:
        self.policy = policy
        self.plan = plan
        self.process = process
        self.held = held
        """What the jar holds of the workspace, for a snapshot. Raises UsageError if it holds nothing."""


__all__ = ["Access"]
