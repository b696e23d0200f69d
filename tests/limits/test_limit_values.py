"""The pure parts: limits as data, rlimits as a table, and the monitor's arithmetic on real and hostile processes."""

from __future__ import annotations

import mmap
import os
import resource

import pytest

from belljar.errors import SandboxUnavailableError
from belljar.limits import monitor, rlimits
from belljar.limits.values import Limits

MIB = 1 << 20


def test_limits_survive_json() -> None:
    limits = Limits(mem_bytes=5, cpu_quota=0.5, pids=3, open_files=4, file_size_bytes=6, helper_pids=2)
    assert Limits.from_json(limits.to_json()) == limits
    assert Limits.from_json({}) == Limits()


@pytest.mark.parametrize(
    "wrong", [{"mem": 1}, {"pids": -1}, {"pids": True}, {"pids": "9"}, {"cpu_quota": float("nan")}]
)
def test_wrong_limits_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="limits: "):
        Limits.from_json(wrong)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        (1, (100_000, 100_000)),
        (0.5, (50_000, 100_000)),
        (2.5, (250_000, 100_000)),
        (0.01, (1_000, 100_000)),
        (0.005, (5_000, 1_000_000)),
        (0.0001, (1_000, 1_000_000)),
    ],
)
def test_shares_stay_within_the_kernels_bounds(quota: float, expected: tuple[int, int]) -> None:
    assert Limits(cpu_quota=quota).cpu_quota_and_period_us() == expected


LIMITS = Limits(mem_bytes=256 * MIB, open_files=256, file_size_bytes=10 * MIB)


def table(*, has_memory_group: bool, hard: int = resource.RLIM_INFINITY) -> dict[int, int]:
    found = rlimits.rlimits_for(LIMITS, has_memory_group=has_memory_group, hard=lambda _: hard)
    assert all(soft == top for _, soft, top in found)
    return {which: soft for which, soft, _ in found}


def test_rlimits_with_and_without_a_group() -> None:
    """Data is limited only where no group holds memory; stack, address space and processes never are."""
    with_group, without = table(has_memory_group=True), table(has_memory_group=False)
    data = without.pop(resource.RLIMIT_DATA)
    assert without == with_group
    assert data == 4 * 256 * MIB + 256 * MIB  # behind the monitor, which ends a run at 256
    assert with_group[resource.RLIMIT_NOFILE] == 256
    assert with_group[resource.RLIMIT_MSGQUEUE] == 0
    assert with_group[resource.RLIMIT_CORE] == 1  # 0 would not stop a core_pattern that is a program
    assert not {resource.RLIMIT_STACK, resource.RLIMIT_AS, resource.RLIMIT_NPROC} & set(without)


def test_a_tighter_hard_limit_stays() -> None:
    """There is no raising: what the host allows less of, stays less."""
    assert max(table(has_memory_group=False, hard=100).values()) == 100


def in_child(work: object) -> int:
    assert callable(work)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_rlimits_hold_in_the_child() -> None:
    """Applied in a forked child with no privilege, they are there; raising one again is refused by name."""

    def work() -> int:
        wanted = rlimits.rlimits_for(LIMITS, has_memory_group=False)
        rlimits.volunteer_for_oom()
        if os.geteuid() == 0:
            os.setresuid(65_534, 65_534, 65_534)
        rlimits.apply(wanted)
        same = all(resource.getrlimit(which) == (soft, hard) for which, soft, hard in wanted)
        try:
            rlimits.apply([(resource.RLIMIT_NOFILE, 9999, 9999)])
        except SandboxUnavailableError as error:
            return 0 if same and "RLIMIT_NOFILE" in str(error) else 1
        return 2

    assert in_child(work) == 0


@pytest.fixture
def proc() -> int:
    return os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)


class OneProcess:
    """A directory like /proc with one process of this machine in it, and one that is gone."""

    def __init__(self, path: str, pid: int) -> None:
        os.symlink(f"/proc/{pid}", f"{path}/7")
        os.mkdir(f"{path}/8")
        os.mkdir(f"{path}/self")
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def test_the_monitor_sees_memory_and_time(tmp_path: object) -> None:
    """Private memory is seen cheaply, shared memory when it nears the limit; a vanished pid is no error."""
    shared = mmap.mmap(-1, 64 * MIB)
    shared.write(b"x" * (64 * MIB))
    view = OneProcess(str(tmp_path), os.getpid())
    cheap = monitor.sample(view.descriptor)
    near = monitor.sample(view.descriptor, limit_bytes=64 * MIB, budget_seconds=5)
    os.close(view.descriptor)
    shared.close()
    assert (cheap.processes, cheap.exact, cheap.complete) == (1, False, True)
    assert cheap.cpu_seconds > 0
    assert near.exact
    assert near.anon_bytes > cheap.anon_bytes + 60 * MIB


def test_the_monitor_survives_a_whole_machine_in_motion(proc: int) -> None:
    """Processes come and go while it reads; it ends in time and says when it did not see all."""
    seen = monitor.sample(proc, limit_bytes=1, budget_seconds=5)
    hurried = monitor.sample(proc, budget_seconds=0)
    os.close(proc)
    assert seen.processes >= 1
    assert not hurried.complete


def test_rollup_of_old_and_new_kernels() -> None:
    new = (
        b"55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss: 800 kB\n"
        b"Pss_Anon: 100 kB\nPss_File: 690 kB\nPss_Shmem: 10 kB\n"
    )
    old = b"55d0-7ffe ---p 00000000 00:00 0 [rollup]\nRss: 900 kB\nPss: 800 kB\n"
    assert (monitor.rollup_bytes(new), monitor.rollup_bytes(old), monitor.rollup_bytes(b"")) == (112_640, 819_200, 0)
