"""What runs use over time: one thread for all runs of this process that live longer than a second; none for others.

Once a second each of them is asked; a run that lives long keeps every second, fourth, eighth … of its samples, so that
there are never more than some hundred. They go into the audit log with the run's end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from belljar.errors import BelljarError

if TYPE_CHECKING:
    from belljar.sandbox.record.stream import Handle

EVERY_SECONDS = 1.0
_MOST = 240

Sample = tuple[float, float, int, int]
"""Seconds since the run began, of processor time until then, bytes of memory, processes."""


class Samples:
    """Those of one run."""

    def __init__(self) -> None:
        self.every = EVERY_SECONDS
        self.taken: list[Sample] = []

    def due(self, seconds: float) -> bool:
        """Whether it is time for the next one."""
        return not self.taken or seconds - self.taken[-1][0] >= self.every - EVERY_SECONDS / 2

    def add(self, sample: Sample) -> None:
        """The next one."""
        self.taken.append(sample)
        if len(self.taken) >= _MOST:
            self.taken = self.taken[::2]
            self.every *= 2


def watch(long_runs: Callable[[], Iterable[tuple[Handle, float]]]) -> None:
    """The thread: until there is no such run any more. `long_runs` tells them, and when each began."""
    while runs := list(long_runs()):
        for handle, since in runs:
            due = handle.samples is None or handle.samples.due(time.time() - since)
            if due and (sample := _look_at(handle, since)) is not None:
                handle.samples = handle.samples or Samples()
                handle.samples.add(sample)
        time.sleep(EVERY_SECONDS)


def _look_at(handle: Handle, since: float) -> Sample | None:
    """One look; None if the run has just ended, or its backend can't tell."""
    ask = getattr(handle.process, "usage", None)
    if ask is None:
        return None
    try:
        used = ask()
    except (BelljarError, OSError):
        return None
    if not used:
        return None
    seconds = round(time.time() - since, 2)
    return seconds, round(used["cpu_seconds"], 3), int(used["memory_bytes"]), int(used["processes"])
