"""What `Sandbox.stream` yields: output as it is produced, and at the end the result."""

from __future__ import annotations

from belljar._startup.records import dataclass
from belljar.sandbox.record.result import RunResult

TYPE_CHECKING = False  # see _startup/records.py
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
