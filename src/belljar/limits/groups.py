"""The interface that both versions of control groups have, the names they use, and which version to make.

launcher: jar = create_jar_group(support, 7, owner_uid=kuid)
launcher: pid = fork_into(jar.stage_cgroup_fd())               the stage, before it drops to kuid
stage:      run = jar.run_group("run-1", limits)
stage:      pid = run.fork()                                   0 in the child, which is inside the group already
stage:      run.oom_fd() …, run.usage(), run.kill(), run.remove()
launcher: jar.remove()                                         whatever the stage left
"""

from __future__ import annotations

import os

from belljar._startup.records import Protocol
from belljar.limits.counters import Counter
from belljar.limits.detect import CgroupSupport, Mechanism
from belljar.limits.naming import group_name
from belljar.limits.values import Limits

CLOSING_SECONDS = 5.0
"""How long a kill and the removal after it may take before they count as failed."""
_UNIFIED = "/sys/fs/cgroup/cgroup.controllers"


class RunGroup(Protocol):
    """The group of one run. Used by the stage; every method works by descriptor alone."""

    name: str
    oom_mask: int
    """What to poll `oom_fd` for: POLLIN on v1, POLLPRI on v2."""

    @property
    def counts_all(self) -> bool:
        """Whether `usage` tells processor time, memory and processes; where not, /proc has to."""

    def end_as_one(self, *, whether: bool) -> None:
        """v2: whether the kernel ends all of it when memory runs out, as it does from the start. v1: it ends one."""

    def fork(self) -> int:
        """Like `os.fork`, with the child inside the group before this returns in it."""

    def enter_fds(self) -> list[int]:
        """v1: descriptors to each of which the single-threaded child itself writes `0`. v2: none."""

    def entered(self) -> None:
        """Whoever enters has descriptors of its own: those of `enter_fds` are closed."""

    def cgroup_fd(self) -> int | None:
        """v2: the directory for `fork_into`. v1: None."""

    def usage(self) -> dict[str, float]:
        """What the run used so far; a key is absent where the kernel does not count it.

        `cpu_seconds, memory_peak_bytes, memory_bytes, pids, pids_peak, pids_refused, oom_kills`.
        """

    def counters(self) -> tuple[list[Counter], list[int]]:
        """The same numbers, through files that are opened now: the caller's, to be read when the run ends."""

    def oom_kills(self) -> int:
        """How many processes the kernel killed because the group was out of memory."""

    def oom_fd(self) -> int | None:
        """A descriptor that wakes a poll for `oom_mask` when memory ran out; then ask `out_of_memory`."""

    def out_of_memory(self) -> bool:
        """Whether the group has run out of memory; also re-arms `oom_fd`."""

    def kill_once(self) -> None:
        """SIGKILL every process of the run, without waiting, and lift the limit on the processor that they die with.

        Best effort, and harmless when repeated: the caller watches for the end, and asks again until it has come.
        """

    def kill(self, seconds: float = CLOSING_SECONDS) -> None:
        """End every process of the run and verify it. Raises SandboxUnavailableError when some are left."""

    @property
    def freezer(self) -> str:
        """By what processes of the group can be made to stand still; empty where they can't."""

    def freeze(self) -> bool:
        """Have every process stand still; whether all do by now. Ask again until so: one may be inside of a call."""

    def thaw(self) -> None:
        """Let them go on. Harmless when they do."""

    def empty(self) -> bool:
        """Whether no process is left."""

    def remove(self, seconds: float = CLOSING_SECONDS) -> None:
        """Remove the group of a run that is over and close its descriptors. Verified, and harmless when repeated."""


class JarGroup(Protocol):
    """The group of one sandbox, in which its runs have theirs. Made and removed by the launcher."""

    name: str

    def stage_cgroup_fd(self) -> int | None:
        """What the launcher passes to `fork_into` to make the stage (v1: None, a plain fork)."""

    def run_group(self, name: str, limits: Limits) -> RunGroup:
        """Make a run's group and write its limits (stage, as the owner). Raises SandboxUnavailableError."""

    def thaw(self) -> None:
        """Let everything in it go on, where what stands still does not die (launcher)."""

    def remove(self, seconds: float = CLOSING_SECONDS) -> None:
        """Kill what is left, the stage included where it lives inside, and remove every group. Verified."""

    def close(self) -> None:
        """Close the descriptors of this process; the groups stay."""


def import_groups() -> None:
    """What makes groups here, most likely, before anybody asks for one."""
    if os.path.exists(_UNIFIED):
        import belljar.limits.cgroup_v2
    else:
        import belljar.limits.cgroup_v1  # noqa: F401


def create_jar_group(support: CgroupSupport, number: int | str, *, owner_uid: int | None = None) -> JarGroup | None:
    """Make the group of the launcher's sandbox `number`, owned by `owner_uid` if given; None when the host has none.

    Runs in the launcher, before the stage is forked. With `owner_uid` the launcher is root: it gives away the directory
    and the files through which processes are moved, never the files of the limits.

    Raises:
        SandboxUnavailableError: the kernel refused, or the launcher still has to be started in a systemd scope.
    """
    name = group_name(os.getpid(), number)
    if support.mechanism is Mechanism.NONE:
        return None
    if support.mechanism is Mechanism.V1:
        from belljar.limits.cgroup_v1 import JarGroupV1

        return JarGroupV1.create(support, name, owner_uid=owner_uid)
    from belljar.limits.cgroup_v2 import JarGroupV2

    return JarGroupV2.create(support, name, owner_uid=owner_uid)
