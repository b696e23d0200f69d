"""What `Sandbox.stream` yields: output as it is produced, and at the end the result."""

from __future__ import annotations

from typing import Literal

from belljar.policy.records import dataclass
from belljar.sandbox.result import RunResult


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of the code's output: raw bytes from an untrusted source."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event."""

    result: RunResult
