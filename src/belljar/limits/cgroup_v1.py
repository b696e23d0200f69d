"""cgroup v1: each controller has a hierarchy of its own, and a run has one group in each.

The launcher (root: on v1 an ordinary user has no group) makes the jar's groups below the ones that it is in itself, and
gives them to the stage's kernel uid. The stage makes the runs' groups in them. The child enters by writing `0` to each
`tasks` file itself, single-threaded: naming another's pid would cost it a grace period of the kernel.

The freezer is a hierarchy that no run enters: its groups are made when a run is to stand still, which is rare, and then
the grace period does not matter.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Mapping

from belljar.errors import SandboxUnavailableError
from belljar.limits import groupfs
from belljar.limits.counters import Counter, open_counters, read_counters
from belljar.limits.detect import CgroupSupport
from belljar.limits.groups import CLOSING_SECONDS
from belljar.limits.killing import kill_once, kill_until_empty, survivors
from belljar.limits.values import Limits

_OOM_KILLS = Counter("oom_kills", "oom_kill")
_COUNTERS = (
    ("cpuacct", "cpuacct.usage", Counter("cpu_seconds", scale=1e-9)),
    ("memory", "memory.max_usage_in_bytes", Counter("memory_peak_bytes")),
    ("memory", "memory.oom_control", _OOM_KILLS),
    ("pids", "pids.peak", Counter("pids_peak")),
    ("pids", "pids.events", Counter("pids_refused", "max")),
)
FREEZER = "freezer"
_MOVING_FILES = ("tasks", "cgroup.procs")
"""Given to the stage with the directory, so that it owns what is in the jar and none of the jar's own limits."""


class JarGroupV1:
    """One sandbox's groups, one for each hierarchy, as descriptors."""

    def __init__(self, name: str, parents: dict[str, int], directories: dict[str, int]) -> None:
        self.name = name
        self._parents = parents
        self._directories = directories

    @classmethod
    def create(cls, support: CgroupSupport, name: str, *, owner_uid: int | None = None) -> JarGroupV1:
        """Make the groups (launcher). Raises SandboxUnavailableError, and then leaves none behind."""
        jar = cls(name, {}, {})
        try:
            jar._make_all(support.directories, owner_uid)
        except OSError as error:
            jar.remove()
            raise SandboxUnavailableError(f"can't make the control group {name}: {error}") from error
        return jar

    def _make_all(self, paths: Mapping[str, str], owner_uid: int | None) -> None:
        made: dict[str, str] = {}
        for controller, path in paths.items():
            if path in made:  # controllers that share a hierarchy (`cpu,cpuacct` on most hosts) share a group
                self._directories[controller] = self._directories[made[path]]
                continue
            made[path] = controller
            self._parents[controller] = groupfs.open_directory(path)
            self._directories[controller] = _make(self._parents[controller], self.name)
            if owner_uid is not None:
                _give(self._directories[controller], owner_uid)

    def stage_cgroup_fd(self) -> int | None:
        """None: on v1 the stage stays where the launcher is."""
        return None

    def run_group(self, name: str, limits: Limits) -> RunGroupV1:
        """Make a run's groups and write its limits (stage, as the owner)."""
        entered = {name: directory for name, directory in self._directories.items() if name != FREEZER}
        run = RunGroupV1(name, entered, {}, freezer=self._directories.get(FREEZER))
        made: dict[int, int] = {}
        try:
            for controller, parent in entered.items():
                made[parent] = run.directories[controller] = made[parent] if parent in made else _make(parent, name)
            run.write_limits(limits)
        except (OSError, SandboxUnavailableError) as error:
            run.remove()
            if isinstance(error, SandboxUnavailableError):
                raise
            raise SandboxUnavailableError(f"can't make the control group {self.name}/{name}: {error}") from error
        return run

    def thaw(self) -> None:
        """Let everything in it go on: what is frozen does not die (launcher)."""
        if FREEZER in self._directories:
            groupfs.thaw_below(self._directories[FREEZER])

    def remove(self, seconds: float = CLOSING_SECONDS) -> None:
        """Kill what is left and remove every group (launcher). Verified, and harmless when repeated."""
        deadline = time.monotonic() + seconds
        self.thaw()
        directories = _distinct(self._directories)
        for directory in directories:
            _stop_forks(directory)
        if not kill_until_empty(lambda: _pids_below(directories), deadline=deadline):
            raise survivors(self.name, _pids_below(directories))
        for parent in self._parents.values():
            groupfs.remove_tree(parent, self.name, deadline=deadline)
        self.close()

    def close(self) -> None:
        """Close this process's descriptors; the groups stay."""
        _close_all(self._directories)
        _close_all(self._parents)


class RunGroupV1:
    """One run's groups, one for each hierarchy, as descriptors."""

    oom_mask = select.POLLIN

    def __init__(
        self, name: str, parents: Mapping[str, int], directories: dict[str, int], *, freezer: int | None = None
    ) -> None:
        self.name = name
        self.directories = directories
        self._parents = parents
        self._freezer = freezer
        """The jar's group in the hierarchy of the freezer, where there is one."""
        self._frozen = -1
        """The run's group there, once it has been made."""
        self._tasks: list[int] = []
        self._oom_event: int | None = None
        self._oom_control = -1
        """Open as long as the event is: what it says is asked at every end."""
        self._ran_out = False

    def write_limits(self, limits: Limits) -> None:
        """Write every limit that a hierarchy here can hold; a refused write is an error that names the file."""
        if limits.mem_bytes and "memory" in self.directories:
            _limit_memory(self.directories["memory"], limits.mem_bytes)
            self._watch_memory(self.directories["memory"])
        if limits.cpu_quota and "cpu" in self.directories:
            _limit_cpu(self.directories["cpu"], *limits.cpu_quota_and_period_us())
        if limits.pids and "pids" in self.directories:
            groupfs.write(self.directories["pids"], "pids.max", str(limits.group_pids()))

    def _watch_memory(self, memory: int) -> None:
        """Ask the kernel to signal a new eventfd when the group runs out of memory."""
        self._oom_event = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._oom_control = os.open("memory.oom_control", os.O_RDONLY | os.O_CLOEXEC, dir_fd=memory)
        groupfs.write(memory, "cgroup.event_control", f"{self._oom_event} {self._oom_control}")

    def end_as_one(self, *, whether: bool) -> None:
        """The kernel ends one of its processes, and the stage the others."""

    @property
    def counts_all(self) -> bool:
        """Whether there is a hierarchy for each of the three."""
        return {"cpuacct", "memory", "pids"} <= self.directories.keys()

    def fork(self) -> int:
        """Like `os.fork`; the child has entered every group before this returns in it, or has ended with 125."""
        descriptors = self.enter_fds()
        pid = os.fork()
        if pid == 0:
            enter(descriptors)
        return pid

    def enter_fds(self) -> list[int]:
        """Open `tasks` files; the single-threaded child writes `0` to each (see `enter`)."""
        if not self._tasks:
            flags = os.O_WRONLY | os.O_CLOEXEC
            self._tasks = [os.open("tasks", flags, dir_fd=directory) for directory in _distinct(self.directories)]
        return self._tasks

    def entered(self) -> None:
        """Whoever enters has its own descriptors: close ours."""
        for descriptor in self._tasks:
            os.close(descriptor)
        self._tasks = []

    def cgroup_fd(self) -> int | None:
        """None: only v2 has one directory for all controllers."""
        return None

    def usage(self) -> dict[str, float]:
        """What the run used so far; a key is absent where it is not counted."""
        memory, pids = self.directories.get("memory"), self.directories.get("pids")
        found: dict[str, float | None] = {}
        if "cpuacct" in self.directories:
            nanoseconds = groupfs.read_number(self.directories["cpuacct"], "cpuacct.usage")
            found["cpu_seconds"] = None if nanoseconds is None else nanoseconds / 1e9
        if memory is not None:
            found["memory_bytes"] = groupfs.read_number(memory, "memory.usage_in_bytes")
            found["memory_peak_bytes"] = groupfs.read_number(memory, "memory.max_usage_in_bytes")
            found["oom_kills"] = self.oom_kills()
        if pids is not None:
            found["pids"] = groupfs.read_number(pids, "pids.current")
            found["pids_peak"] = groupfs.read_number(pids, "pids.peak")
            found["pids_refused"] = groupfs.read_keyed(pids, "pids.events").get("max")
        return {key: value for key, value in found.items() if value is not None}

    def counters(self) -> tuple[list[Counter], list[int]]:
        """The numbers of `usage` that matter at a run's end, through files that are opened now."""
        return open_counters(
            (self.directories[controller], file, counter)
            for controller, file, counter in _COUNTERS
            if controller in self.directories
        )

    def oom_kills(self) -> int:
        """How many processes the kernel killed because the group was out of memory."""
        if self._oom_control >= 0:
            return int(read_counters((_OOM_KILLS,), (self._oom_control,)).get(_OOM_KILLS.name, 0))
        memory = self.directories.get("memory")
        return groupfs.read_keyed(memory, "memory.oom_control").get("oom_kill", 0) if memory is not None else 0

    def oom_fd(self) -> int | None:
        """An eventfd that the kernel signals when memory ran out, just before it picks *one* process to kill."""
        return self._oom_event

    def out_of_memory(self) -> bool:
        """Whether memory ran out: the event came or a process was killed for it."""
        self._hear_event()
        return self._ran_out or self.oom_kills() > 0

    def _hear_event(self) -> None:
        if self._oom_event is not None and self.directories:
            try:
                os.eventfd_read(self._oom_event)
                self._ran_out = True
            except BlockingIOError:
                pass

    def kill_once(self) -> None:
        """SIGKILL every process, without waiting. Nothing new is born from here on."""
        if "pids" in self.directories:
            _stop_forks(self.directories["pids"])
        if "cpu" in self.directories:
            _try_to_write(self.directories["cpu"], "cpu.cfs_quota_us", "-1")
        kill_once(self._members)

    def kill(self, seconds: float = CLOSING_SECONDS) -> None:
        """End every process of the run and verify it."""
        deadline = time.monotonic() + seconds
        if "pids" in self.directories:
            _stop_forks(self.directories["pids"])
        if not kill_until_empty(self._members, deadline=deadline):
            raise survivors(self.name, self._members())

    @property
    def freezer(self) -> str:
        """Its hierarchy, where there is one."""
        return "" if self._freezer is None else "the freezer of cgroup v1"

    def freeze(self) -> bool:
        """Have every process stand still: each is moved into a group that is frozen, where its children are born.

        A fork that had begun before is found when this is asked again.
        """
        if self._freezer is None:
            return False
        if self._frozen < 0:
            self._frozen = self._freezing_group(self._freezer)
        groupfs.write(self._frozen, groupfs.FREEZER_STATE, "FROZEN")
        outside = self._members() - groupfs.pids(self._frozen) - {0}
        for pid in outside:
            _move(pid, self._frozen)
        return not outside and groupfs.read(self._frozen, groupfs.FREEZER_STATE).strip() == "FROZEN"

    def _freezing_group(self, parent: int) -> int:
        """That of the run itself, where the freezer shares a hierarchy; else one of its own."""
        shared = [self.directories[name] for name, above in self._parents.items() if above == parent]
        return os.dup(shared[0]) if shared else _make(parent, self.name)

    def thaw(self) -> None:
        """Let them go on: what was killed meanwhile dies only now."""
        if self._frozen >= 0:
            groupfs.write(self._frozen, groupfs.FREEZER_STATE, "THAWED")

    def empty(self) -> bool:
        """Whether no process is left in any of the groups."""
        return not self._members()

    def remove(self, seconds: float = CLOSING_SECONDS) -> None:
        """Remove the groups of a run that is over and close the descriptors."""
        deadline = time.monotonic() + seconds
        if self._oom_event is not None:
            self._hear_event()  # the removal signals the event too: what it meant is remembered first
            os.close(self._oom_event)
            self._oom_event = None
        if self._oom_control >= 0:
            os.close(self._oom_control)
            self._oom_control = -1
        if self._frozen >= 0 and self._freezer is not None:
            os.close(self._frozen)
            self._frozen = -1
            groupfs.remove_directory(self._freezer, self.name, deadline=deadline)
        for parent in dict.fromkeys(self._parents[controller] for controller in self.directories):
            groupfs.remove_directory(parent, self.name, deadline=deadline)
        self.entered()
        _close_all(self.directories)

    def _members(self) -> set[int]:
        return set().union(*(groupfs.pids(directory) for directory in _distinct(self.directories)))


def enter(descriptors: list[int]) -> None:
    """In the forked child, single-threaded, before it execs: move into every group, or end: a run outside is no run."""
    try:
        for descriptor in descriptors:
            os.write(descriptor, b"0")
    except OSError as error:
        os.write(2, f"belljar: can't enter the run's control group: {error.strerror}\n".encode())
        os._exit(125)


def _distinct(directories: Mapping[str, int]) -> list[int]:
    """One descriptor for each hierarchy, whatever number of controllers it has."""
    return list(dict.fromkeys(directories.values()))


def _make(parent: int, name: str) -> int:
    """Make one group and open it; one that is there already is another run's, and an error."""
    os.mkdir(name, 0o755, dir_fd=parent)
    return groupfs.open_directory(name, dir_fd=parent)


def _give(directory: int, owner_uid: int) -> None:
    os.fchown(directory, owner_uid, -1)
    for name in _MOVING_FILES:
        os.chown(name, owner_uid, -1, dir_fd=directory, follow_symlinks=False)


def _limit_memory(memory: int, mem_bytes: int) -> None:
    """Memory and swap together, in the order that the kernel demands; and what sockets hold, which v1 counts apart."""
    groupfs.write(memory, "memory.limit_in_bytes", str(mem_bytes))
    groupfs.write_if_present(memory, "memory.memsw.limit_in_bytes", str(mem_bytes))
    groupfs.write_if_present(memory, "memory.swappiness", "0")
    groupfs.write_if_present(memory, "memory.kmem.tcp.limit_in_bytes", str(mem_bytes // 4))


def _limit_cpu(cpu: int, quota_us: int, period_us: int) -> None:
    """The share; when a group above has a smaller one, v1 says EINVAL to ours, and inheriting that one is tighter."""
    groupfs.write(cpu, "cpu.cfs_period_us", str(period_us))
    try:
        groupfs.write(cpu, "cpu.cfs_quota_us", str(quota_us))
    except SandboxUnavailableError as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.EINVAL:
            raise
        groupfs.write(cpu, "cpu.cfs_quota_us", "-1")


def _move(pid: int, directory: int) -> None:
    """Put a process into the group; one that has ended, or that this namespace can't name, is seen by the caller."""
    try:
        groupfs.write(directory, "cgroup.procs", str(pid))
    except SandboxUnavailableError as error:
        if not isinstance(error.__cause__, ProcessLookupError):
            raise


def _stop_forks(directory: int) -> None:
    """Let nothing new be born while the old is killed."""
    _try_to_write(directory, "pids.max", "0")


def _try_to_write(directory: int, name: str, value: str) -> None:
    """Write what makes a kill quicker: best effort, the kill is verified either way."""
    try:
        groupfs.write_if_present(directory, name, value)
    except SandboxUnavailableError:
        pass


def _pids_below(directories: list[int]) -> set[int]:
    return set().union(*(groupfs.pids_below(directory) for directory in directories))


def _close_all(descriptors: dict[str, int]) -> None:
    for descriptor in _distinct(descriptors):
        os.close(descriptor)
    descriptors.clear()
