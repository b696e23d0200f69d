"""What the container has used: told by its own control group, read-only inside; without one, by its dead."""

from __future__ import annotations

import os
import resource
import time

_V1 = "/sys/fs/cgroup"
_V2 = "/sys/fs/cgroup"


class UsageMeter:
    """Reads the group's counters; what was there before the code started is not the code's."""

    def __init__(self, cpu_quota: float | None) -> None:
        """`cpu_quota` is given where a kernel in between counts time as used that the host gave to others (gVisor)."""
        self._cpu_quota = cpu_quota
        self._started = time.monotonic()
        self._second = os.path.exists(f"{_V2}/cgroup.controllers")
        self._cpu_before = self._cpu() or 0.0
        self._oom_before = self.oom_kills()
        self._refused_before = self.pids_refused()

    def oom_kills(self) -> int:
        """How often the kernel killed something here for want of memory."""
        if self._second:
            return _field(f"{_V2}/memory.events", "oom_kill")
        return _field(f"{_V1}/memory/memory.oom_control", "oom_kill")

    def new_oom_kills(self) -> int:
        """The same, since the code started."""
        return self.oom_kills() - self._oom_before

    def pids_refused(self) -> int:
        """How often a fork was refused for their number."""
        return _field(f"{_V2}/pids.events" if self._second else f"{_V1}/pids/pids.events", "max")

    def new_pids_refused(self) -> int:
        """The same, since the code started."""
        return self.pids_refused() - self._refused_before

    def cpu_seconds(self) -> float:
        """Processor time of the code and all its children, those nobody waited for included where the group tells."""
        counted = self._cpu()
        if counted is not None:
            return max(0.0, counted - self._cpu_before)
        dead = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = dead.ru_utime + dead.ru_stime
        if self._cpu_quota is None:
            return used
        return min(used, self._cpu_quota * (time.monotonic() - self._started))

    def peak_memory_bytes(self) -> int:
        """The most that was in use at once: of the group, or of the largest process."""
        name = f"{_V2}/memory.peak" if self._second else f"{_V1}/memory/memory.max_usage_in_bytes"
        return _number(name) or resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024

    def now(self) -> dict[str, float]:
        """What the code and its children use at the moment; nothing where no group tells."""
        cpu = self._cpu()
        memory = _number(f"{_V2}/memory.current" if self._second else f"{_V1}/memory/memory.usage_in_bytes")
        processes = _number(f"{_V2}/pids.current" if self._second else f"{_V1}/pids/pids.current")
        if cpu is None or not memory or not processes:
            return {}
        used = max(0.0, cpu - self._cpu_before)
        return {"cpu_seconds": used, "memory_bytes": memory, "processes": max(1, processes - 1)}  # one is the gate

    def _cpu(self) -> float | None:
        if self._second:
            microseconds = _field(f"{_V2}/cpu.stat", "usage_usec")
            return microseconds / 1e6 if microseconds else None
        nanoseconds = _number(f"{_V1}/cpuacct/cpuacct.usage")
        return nanoseconds / 1e9 if nanoseconds else None


def _number(path: str) -> int:
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0


def _field(path: str, name: str) -> int:
    try:
        with open(path) as file:
            for line in file:
                key, _, value = line.partition(" ")
                if key == name:
                    return int(value)
    except (OSError, ValueError):
        return 0
    return 0
