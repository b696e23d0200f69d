"""What `Sandbox.stream` yields: output as it is produced, and at the end the result."""

from __future__ import annotations

from belljar.policy.records import dataclass
from belljar.sandbox.result import RunResult

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from typing import Literal


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of the code's output: raw bytes from an untrusted source."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    result: RunResult
