"""What the proxy tells of its decisions: one event for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

UNRECORDED = "unrecorded"
"""Said of one whose decision could not be recorded: nothing of it passes any more."""


@dataclass(frozen=True, slots=True)
class Event:
    """One decision of the proxy, or what became of one."""

    run_id: str
    time: float
    """Seconds since 1970."""
    kind: str
    """What was decided about: `name`, `connect`, `tls`, `request`, `credential`, `udp`, `canary`; `closed` tells of a
    connection's end and its bytes; `proxy` of a fault of the proxy itself."""
    host: str = ""
    port: int = 0
    method: str = ""
    path: str = ""
    allowed: bool = True
    reason: str = ""
    """A stable code, empty when allowed."""
    detail: str = ""
    rule: str = ""
    """The key of the rule that decided, such as `net.allowlist[2]`."""
    where: str = ""
    """File and line of that rule."""
    bytes_out: int = 0
    bytes_in: int = 0

    def to_json(self) -> list[Any]:
        """Plain values, in the order of the fields."""
        return [getattr(self, name) for name in self.__slots__]

    @classmethod
    def from_json(cls, values: list[Any]) -> Event:
        """The event that `to_json` wrote."""
        return cls(*values)
