"""cgroup v2: one hierarchy, one group for a run, and the kernel kills it as a whole.

    base            delegated to belljar: memory, cpu and pids are on in its cgroup.subtree_control, no process in it
    ├── belljar-launcher        the launcher itself (see systemd.py)
    └── belljar-…-7             a jar; the stage's kernel uid owns the directory and the files that move processes
        ├── stage               the stage itself, born there
        └── run-1               a run, made by the stage, entered by clone3

The stage has to live inside the jar's group: to put a child into a group, one needs write access to `cgroup.procs` of
the nearest group above both, and the base belongs to the launcher.
"""

from __future__ import annotations

import os
import select
import time

from belljar.errors import SandboxUnavailableError
from belljar.limits import groupfs
from belljar.limits.clone_into import fork_into
from belljar.limits.counters import Counter, open_counters
from belljar.limits.detect import CgroupSupport, Mechanism
from belljar.limits.groups import CLOSING_SECONDS
from belljar.limits.killing import kill_once, kill_until_empty, survivors
from belljar.limits.values import Limits

_STAGE = "stage"
_DELEGATED_FILES = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
"""What the kernel's documentation gives a delegatee besides the directory; never a limit of the group itself."""

_COUNTERS = (
    ("cpu.stat", Counter("cpu_seconds", "usage_usec", 1e-6)),
    ("memory.peak", Counter("memory_peak_bytes")),
    ("memory.events", Counter("oom_kills", "oom_kill")),
    ("pids.peak", Counter("pids_peak")),
    ("pids.events", Counter("pids_refused", "max")),
)


class JarGroupV2:
    """One sandbox's group, and the stage's inside it, as descriptors."""

    def __init__(self, name: str, controllers: tuple[str, ...], parent: int) -> None:
        self.name = name
        self._controllers = controllers
        self._parent = parent
        self._directory = -1
        self._stage = -1

    @classmethod
    def create(cls, support: CgroupSupport, name: str, *, owner_uid: int | None = None) -> JarGroupV2:
        """Make the group below the delegated base (launcher). Raises SandboxUnavailableError, leaving none behind."""
        if support.mechanism is not Mechanism.V2_DELEGATED or support.occupants:
            raise SandboxUnavailableError(
                "there is no delegated control group to make a jar's in",
                hint="start the launcher through limits.systemd.scope_command, then call prepare_delegated in it",
            )
        jar = cls(name, support.controllers, groupfs.open_directory(support.base()))
        try:
            jar._make_all(owner_uid)
        except (OSError, SandboxUnavailableError) as error:
            jar.remove()
            if isinstance(error, SandboxUnavailableError):
                raise
            raise SandboxUnavailableError(f"can't make the control group {name}: {error}") from error
        return jar

    def _make_all(self, owner_uid: int | None) -> None:
        self._directory = _make(self._parent, self.name)
        groupfs.write(self._directory, "cgroup.subtree_control", " ".join(f"+{name}" for name in self._controllers))
        self._stage = _make(self._directory, _STAGE)
        if owner_uid is not None:
            _give(self._directory, owner_uid)
            _give(self._stage, owner_uid)

    def stage_cgroup_fd(self) -> int | None:
        """The group that the stage has to be born in: `fork_into(jar.stage_cgroup_fd())`, as the launcher."""
        return self._stage

    def run_group(self, name: str, limits: Limits) -> RunGroupV2:
        """Make a run's group and write its limits (stage, as the owner)."""
        try:
            run = RunGroupV2(name, self._controllers, self._directory, _make(self._directory, name))
        except OSError as error:
            raise SandboxUnavailableError(f"can't make the control group {self.name}/{name}: {error}") from error
        try:
            run.write_limits(limits)
        except SandboxUnavailableError:
            run.remove()
            raise
        return run

    def thaw(self) -> None:
        """There is no need: what is frozen dies as anything else does."""

    def remove(self, seconds: float = CLOSING_SECONDS) -> None:
        """Kill what is left, the stage too, and remove every group (launcher). Verified, harmless when repeated."""
        deadline = time.monotonic() + seconds
        if self._directory >= 0:
            _kill(self._directory, self.name, deadline=deadline)
        if self._parent >= 0:
            groupfs.remove_tree(self._parent, self.name, deadline=deadline)
        self.close()

    def close(self) -> None:
        """Close this process's descriptors; the groups stay."""
        for descriptor in (self._stage, self._directory, self._parent):
            if descriptor >= 0:
                os.close(descriptor)
        self._stage = self._directory = self._parent = -1


class RunGroupV2:
    """One run's group as a descriptor."""

    oom_mask = select.POLLPRI

    def __init__(self, name: str, controllers: tuple[str, ...], parent: int, directory: int) -> None:
        self.name = name
        self._controllers = controllers
        self._parent = parent
        self._directory = directory
        self._memory_events: int | None = None

    def write_limits(self, limits: Limits) -> None:
        """Write every limit whose controller is on; a refused write is an error that names the file."""
        if limits.mem_bytes and "memory" in self._controllers:
            groupfs.write(self._directory, "memory.max", str(limits.mem_bytes))
            groupfs.write_if_present(self._directory, "memory.swap.max", "0")  # absent on a kernel without swap
            groupfs.write(self._directory, "memory.oom.group", "1")
            self._memory_events = os.open("memory.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directory)
            self.out_of_memory()
        if limits.cpu_quota and "cpu" in self._controllers:
            quota_us, period_us = limits.cpu_quota_and_period_us()
            groupfs.write(self._directory, "cpu.max", f"{quota_us} {period_us}")
        if limits.pids and "pids" in self._controllers:
            groupfs.write(self._directory, "pids.max", str(limits.group_pids()))

    def end_as_one(self, *, whether: bool) -> None:
        """Whether the kernel ends all of it when it is out of memory: and with it whoever shares a member's memory."""
        if self._memory_events is not None:
            groupfs.write(self._directory, "memory.oom.group", str(int(whether)))

    @property
    def counts_all(self) -> bool:
        """Whether both are on that count; processor time every group counts."""
        return {"memory", "pids"} <= {*self._controllers}

    def fork(self) -> int:
        """Like `os.fork`, with the child born in the group."""
        return fork_into(self._directory)

    def enter_fds(self) -> list[int]:
        """None: on v2 the child is born in the group."""
        return []

    def entered(self) -> None:
        """There was nothing open for it."""

    def cgroup_fd(self) -> int | None:
        """The group's directory, for `fork_into`."""
        return self._directory

    def usage(self) -> dict[str, float]:
        """What the run used so far; a key is absent where the kernel does not count it (`memory.peak` is from 5.19)."""
        directory = self._directory
        microseconds = groupfs.read_keyed(directory, "cpu.stat").get("usage_usec")
        found: dict[str, float | None] = {
            "cpu_seconds": None if microseconds is None else microseconds / 1e6,
            "memory_bytes": groupfs.read_number(directory, "memory.current"),
            "memory_peak_bytes": groupfs.read_number(directory, "memory.peak"),
            "oom_kills": groupfs.read_keyed(directory, "memory.events").get("oom_kill"),
            "pids": groupfs.read_number(directory, "pids.current"),
            "pids_peak": groupfs.read_number(directory, "pids.peak"),
            "pids_refused": groupfs.read_keyed(directory, "pids.events").get("max"),
        }
        return {key: value for key, value in found.items() if value is not None}

    def counters(self) -> tuple[list[Counter], list[int]]:
        """The numbers of `usage` that matter at a run's end, through files that are opened now."""
        return open_counters((self._directory, file, counter) for file, counter in _COUNTERS)

    def oom_kills(self) -> int:
        """How many processes the kernel killed because the group was out of memory: all of them, `oom.group` is on."""
        return groupfs.read_keyed(self._directory, "memory.events").get("oom_kill", 0)

    def oom_fd(self) -> int | None:
        """`memory.events`: POLLPRI wakes at every change of it, also one that is no kill; `out_of_memory` tells."""
        return self._memory_events

    def out_of_memory(self) -> bool:
        """Whether processes were killed for memory. Reads through `oom_fd` itself, which is what re-arms its poll."""
        if self._memory_events is None:
            return False
        text = os.pread(self._memory_events, 4096, 0).decode("ascii", "replace")
        return groupfs.flat_keyed(text).get("oom_kill", 0) > 0

    def kill_once(self) -> None:
        """SIGKILL every process, without waiting: `cgroup.kill` takes all at once, even while they fork."""
        if self._directory < 0:
            return
        _try_to_write(self._directory, "cpu.max", "max")
        if not _try_to_write(self._directory, "cgroup.kill", "1"):
            _try_to_write(self._directory, "pids.max", "0")
            kill_once(lambda: groupfs.pids_below(self._directory))

    def kill(self, seconds: float = CLOSING_SECONDS) -> None:
        """End every process of the run and verify it."""
        if self._directory >= 0:
            _kill(self._directory, self.name, deadline=time.monotonic() + seconds)

    @property
    def freezer(self) -> str:
        """The kernel stops a group as a whole (since 5.2)."""
        return "cgroup.freeze" if groupfs.exists(self._directory, "cgroup.freeze") else ""

    def freeze(self) -> bool:
        """Have every process stand still; whether all do by now."""
        groupfs.write(self._directory, "cgroup.freeze", "1")
        return groupfs.read_keyed(self._directory, "cgroup.events").get("frozen", 0) > 0

    def thaw(self) -> None:
        """Let them go on."""
        if self._directory >= 0:
            groupfs.write_if_present(self._directory, "cgroup.freeze", "0")

    def empty(self) -> bool:
        """Whether no process is left; a dead one that nobody has waited for does not count."""
        return self._directory < 0 or not _populated(self._directory)

    def remove(self, seconds: float = CLOSING_SECONDS) -> None:
        """Remove the group of a run that is over and close the descriptors."""
        if self._directory < 0:
            return
        groupfs.remove_directory(self._parent, self.name, deadline=time.monotonic() + seconds)
        if self._memory_events is not None:
            os.close(self._memory_events)
            self._memory_events = None
        os.close(self._directory)
        self._directory = -1


def _make(parent: int, name: str) -> int:
    os.mkdir(name, 0o755, dir_fd=parent)
    return groupfs.open_directory(name, dir_fd=parent)


def _give(directory: int, owner_uid: int) -> None:
    os.fchown(directory, owner_uid, -1)
    for name in _DELEGATED_FILES:
        if groupfs.exists(directory, name):
            os.chown(name, owner_uid, -1, dir_fd=directory, follow_symlinks=False)


def _kill(directory: int, name: str, *, deadline: float) -> None:
    """Kill a group and those inside it: `cgroup.kill` takes all at once, even while they fork; before 5.14 a loop."""
    if groupfs.write_if_present(directory, "cgroup.kill", "1"):
        done = _wait_until_empty(directory, deadline=deadline)
    else:
        groupfs.write_if_present(directory, "pids.max", "0")  # nothing new is born while the old is killed
        done = kill_until_empty(lambda: groupfs.pids_below(directory), deadline=deadline)
    if not done:
        raise survivors(name, groupfs.pids_below(directory))


def _try_to_write(directory: int, name: str, value: str) -> bool:
    """Write what makes a kill quicker; False where this kernel has no such file, or refuses."""
    try:
        return groupfs.write_if_present(directory, name, value)
    except SandboxUnavailableError:
        return False


def _populated(directory: int) -> bool:
    try:
        return groupfs.flat_keyed(groupfs.read(directory, "cgroup.events")).get("populated", 0) > 0
    except OSError as error:
        return not groupfs.gone(error)


def _wait_until_empty(directory: int, *, deadline: float) -> bool:
    """Wait for `populated 0` in cgroup.events, woken by the kernel; False at the deadline."""
    events = os.open("cgroup.events", os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    try:
        poller = select.poll()
        poller.register(events, select.POLLPRI)
        while groupfs.flat_keyed(os.pread(events, 4096, 0).decode()).get("populated", 0):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            poller.poll(max(1, int(left * 1000)))
    finally:
        os.close(events)
    return True
