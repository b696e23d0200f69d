"""The limits of one run as plain data: what the host decides, the launcher is told, and the stage writes."""

from __future__ import annotations

from collections.abc import Mapping

from belljar._startup.records import NamedTuple

CPU_PERIOD_US = 100_000
"""The kernel's own default: short enough that a throttled run still feels alive."""

_SHORTEST_QUOTA_US = 1_000
"""The kernel refuses a quota below this (EINVAL)."""


class Limits(NamedTuple):
    """A run's share of the machine. Zero means "no limit of this kind"."""

    mem_bytes: int = 0
    cpu_quota: float = 0.0
    """Processors: 0.5 is half of one, 2 is two whole ones."""
    pids: int = 0
    """Processes and threads of the code itself."""
    open_files: int = 0
    file_size_bytes: int = 0
    helper_pids: int = 0
    """belljar's own processes that live in the run's group beside the code (bwrap's two, the gate)."""

    def to_json(self) -> dict[str, float]:
        """As a JSON-ready dict."""
        return self._asdict()

    @classmethod
    def from_json(cls, values: Mapping[str, float]) -> Limits:
        """The limits out of `to_json`'s dict; an unknown key is an error, a missing one is "no limit".

        Raises:
            ValueError: a key is unknown, or a value is negative or not a number.
        """
        if unknown := sorted(set(values) - set(cls._fields)):
            raise ValueError(f"limits: unknown {', '.join(unknown)}; known are {', '.join(cls._fields)}")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
                raise ValueError(f"limits: {name} is {value!r}, wanted a number that is not negative")
        whole = {name: value if name == "cpu_quota" else int(value) for name, value in values.items()}
        return cls(**whole)  # type: ignore[arg-type]

    def group_pids(self) -> int:
        """What a group's `pids.max` has to be: the code's processes and ours beside them; zero is no limit."""
        return self.pids + self.helper_pids if self.pids else 0

    def cpu_quota_and_period_us(self) -> tuple[int, int]:
        """The share as (quota, period) in microseconds, within the bounds that the kernel accepts."""
        period = CPU_PERIOD_US if self.cpu_quota * CPU_PERIOD_US >= _SHORTEST_QUOTA_US else CPU_PERIOD_US * 10
        return max(_SHORTEST_QUOTA_US, round(self.cpu_quota * period)), period
