"""What every version of control groups must do, on whichever one this host has: each test runs in a real stage."""

from __future__ import annotations

import glob
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from belljar.errors import SandboxUnavailableError
from belljar.limits.detect import CgroupSupport
from belljar.limits.groups import JarGroup, RunGroup, create_jar_group
from belljar.limits.sweep import sweep_stale
from belljar.limits.values import Limits

pytestmark = pytest.mark.host
MIB = 1 << 20
InStage = Callable[[Callable[[], Any]], Any]


def start(run: RunGroup, work: Callable[[], object]) -> int:
    """Run `work` in a child inside the group."""
    pid = run.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return pid


def eat(mebibytes: int) -> None:
    """Use memory for real: written, not only asked for."""
    eaten = [b"x" * MIB for _ in range(mebibytes)]
    os._exit(len(eaten) & 0)


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


BOMB = """
import os, time
while True:
    try:
        if os.fork() == 0:
            os.setsid()
    except OSError:
        time.sleep(0.001)
"""


def fork_for_ever() -> None:
    """A fork bomb: each process makes more, in sessions of their own, until it is killed.

    It is another program where there is one: copies of pytest are large, and take long to die on a busy machine.
    """
    with suppress(OSError):
        os.execv("/usr/bin/python3", ["python3", "-I", "-S", "-c", BOMB])
    exec(BOMB, {})


def test_a_memory_hog_is_killed_and_counted(jar: JarGroup, in_stage: InStage) -> None:
    """200 MiB in 64 MiB ends by SIGKILL, wakes the descriptor, and is told by the counter."""

    def stage() -> list[Any]:
        run = jar.run_group("run-1", Limits(mem_bytes=64 * MIB, pids=10))
        poller = select.poll()
        descriptor = run.oom_fd()
        assert descriptor is not None
        poller.register(descriptor, run.oom_mask)
        before = run.out_of_memory()
        pid = start(run, lambda: eat(200))
        woken = bool(poller.poll(20_000))
        status = os.waitpid(pid, 0)[1]
        result = [before, woken, run.out_of_memory(), os.waitstatus_to_exitcode(status), run.oom_kills(), run.usage()]
        run.remove()
        return result

    before, woken, ran_out, exit_code, kills, usage = in_stage(stage)
    assert (before, woken, ran_out, exit_code, kills) == (False, True, True, -9, 1)
    assert 32 * MIB < usage["memory_peak_bytes"] <= 64 * MIB


def test_what_fits_is_left_alone(jar: JarGroup, in_stage: InStage) -> None:
    """The control: the same hog lives when the limit is large enough."""

    def stage() -> list[Any]:
        run = jar.run_group("run-1", Limits(mem_bytes=512 * MIB, pids=10))
        status = os.waitpid(start(run, lambda: eat(200)), 0)[1]
        result = [os.waitstatus_to_exitcode(status), run.out_of_memory(), run.oom_kills(), run.usage()]
        run.remove()
        return result

    exit_code, ran_out, kills, usage = in_stage(stage)
    assert (exit_code, ran_out, kills) == (0, False, 0)
    assert usage["memory_peak_bytes"] > 200 * MIB


def test_a_fork_bomb_stands_still(jar: JarGroup, in_stage: InStage) -> None:
    """Whatever is being born meanwhile: it uses no processor any more; and what is killed then dies when it may."""

    def stage() -> list[Any]:
        run = jar.run_group("run-1", Limits(pids=20))
        if not run.freezer:
            return ["none"]
        first = start(run, fork_for_ever)
        while run.usage()["pids"] < 20:
            time.sleep(0.001)
        while not run.freeze():
            time.sleep(0.001)
        used = [run.usage()["cpu_seconds"]]
        end = time.process_time() + 0.1
        while time.process_time() < end:  # a processor was there to be had: this process had as much of it
            pass
        used.append(run.usage()["cpu_seconds"])
        os.kill(first, signal.SIGKILL)
        run.thaw()
        os.waitpid(first, 0)
        run.kill()
        run.remove()
        return used

    used = in_stage(stage)
    if used == ["none"]:
        pytest.skip("this host's groups have no freezer")
    assert used[0] == used[1] > 0


def test_processes_are_limited(jar: JarGroup, in_stage: InStage) -> None:
    """Ten processes: the first plus nine children, and the refusal is counted."""

    def stage() -> list[Any]:
        reader, writer = os.pipe()

        def multiply() -> None:
            children = refused = 0
            while refused < 20:  # one refusal may be of the moment: the kernel counts what is on its way, too
                try:
                    if os.fork() == 0:
                        select.poll().poll()
                    children += 1
                except BlockingIOError:
                    refused += 1
                    time.sleep(0.01)
            os.write(writer, str(children).encode())
            select.poll().poll()

        run = jar.run_group("run-1", Limits(pids=8, helper_pids=2))
        pid = start(run, multiply)
        children = int(os.read(reader, 16))
        usage, alive = run.usage(), not run.empty()
        run.kill()
        os.waitpid(pid, 0)
        result = [children, usage, alive, run.empty()]
        run.remove()
        return result

    children, usage, alive, empty = in_stage(stage)
    assert (children, usage["pids"], alive, empty) == (9, 10, True, True)
    assert usage["pids_refused"] >= 1


def test_the_cpu_share_holds(jar: JarGroup, in_stage: InStage) -> None:
    """A loop with a share of 0.2 gets at most about that of the wall time; one without gets more."""

    def stage() -> list[float]:
        shares = []
        for number, quota in enumerate((0.2, 0.0, 0.0, 0.0, 0.0)):  # on a busy machine even who may gets little
            if number > 1 and shares[-1] > 0.3:
                break
            run = jar.run_group(f"run-{number}", Limits(cpu_quota=quota))
            begin = time.monotonic()
            os.waitpid(start(run, lambda: spin(1.0)), 0)
            shares.append(run.usage()["cpu_seconds"] / (time.monotonic() - begin))
            run.remove()
        return shares

    limited, *free = in_stage(stage)
    assert 0.02 < limited < 0.3
    assert max(free) > limited


def test_a_fork_bomb_is_killed_whole(jar: JarGroup, in_stage: InStage) -> None:
    """Processes that fork while they are killed, in other sessions, are all gone when kill returns."""

    def stage() -> list[Any]:
        run = jar.run_group("run-1", Limits(pids=60, mem_bytes=512 * MIB))
        pid = start(run, fork_for_ever)
        deadline = time.monotonic() + 20
        while run.usage()["pids"] < 60 and time.monotonic() < deadline:
            time.sleep(0.001)
        grown = run.usage()["pids"]
        run.kill()
        empty = run.empty()
        os.waitpid(pid, 0)
        run.remove()
        return [grown, empty]

    assert in_stage(stage) == [60, True]


def test_a_removed_run_leaves_nothing(jar: JarGroup, in_stage: InStage) -> None:
    """No directory is left, removing again is harmless, and the name can be used again."""

    def stage() -> None:
        for _ in range(2):
            run = jar.run_group("run-1", Limits(mem_bytes=64 * MIB, cpu_quota=1, pids=5))
            run.remove()
            run.remove()

    in_stage(stage)
    assert _directories(f"*/{jar.name}/run-1") == []


def test_a_name_in_use_is_refused(jar: JarGroup, in_stage: InStage) -> None:
    """Two runs never share a group."""

    def stage() -> str:
        run = jar.run_group("run-1", Limits(pids=5))
        try:
            jar.run_group("run-1", Limits(pids=500))
        except SandboxUnavailableError as error:
            return str(error)
        finally:
            run.remove()
        return "made twice"

    assert "File exists" in in_stage(stage)


def test_a_refused_write_names_the_file(jar: JarGroup, in_stage: InStage) -> None:
    """A limit that the kernel does not accept is an error, never silence; and no group is left behind."""

    def stage() -> str:
        try:
            jar.run_group("run-1", Limits(pids=1 << 40))
        except SandboxUnavailableError as error:
            return str(error)
        return "accepted"

    assert f"{jar.name}/run-1/pids.max: " in in_stage(stage)
    assert _directories(f"*/{jar.name}/run-1") == []


def test_the_launcher_removes_what_a_stage_left(jar: JarGroup, in_stage: InStage) -> None:
    """A stage that ended with a living run: the jar's removal kills the run and leaves no directory."""

    def stage() -> int:
        return start(jar.run_group("run-1", Limits(pids=5)), select.poll().poll)

    orphan = in_stage(stage)
    pinned = os.pidfd_open(orphan)
    assert _directories(f"*/{jar.name}/run-1")
    jar.remove()
    # a process leaves its group a moment before its death is announced, so the announcement is waited for
    assert select.select([pinned], [], [], 10)[0], "the run's process is still alive"
    os.close(pinned)
    assert _directories(f"*/{jar.name}") == []
    jar.remove()


def test_the_stage_can_not_raise_the_jars_own_limits(jar: JarGroup, in_stage: InStage, owner_uid: int | None) -> None:
    """The owner gets the directory and the files that move processes, and none of the jar's limits."""
    if owner_uid is None:
        pytest.skip("the starter owns all of it anyway")
    found = _directories(f"*/{jar.name}/pids.max")
    assert found
    assert in_stage(lambda: [os.access(path, os.W_OK) for path in found]) == [False] * len(found)


def test_a_dead_launchers_groups_are_swept(support: CgroupSupport) -> None:
    """Empty groups of a launcher that was killed go; those of the living, and whatever else is there, stay."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        dead = create_jar_group(support, "dead")
        assert dead is not None
        dead.run_group("run-1", Limits(pids=5))
        os.write(writer, dead.name.encode())
        os._exit(0)
    name = os.read(reader, 200).decode()
    os.close(reader)
    os.close(writer)
    living = create_jar_group(support, "living")
    assert living is not None
    assert sweep_stale(support).removed == ()  # a dead process that nobody has waited for still has its pid
    os.waitpid(pid, 0)
    swept = sweep_stale(support)
    still_there = _directories(f"*/{living.name}")
    living.remove()
    assert {os.path.basename(path) for path in swept.removed} == {name}
    assert swept.busy == ()
    assert still_there
    assert _directories(f"*/{name}") == []


@pytest.mark.parametrize("frozen", [False, True], ids=["runs", "stands still"])
def test_what_a_dead_launcher_left_running_is_ended(support: CgroupSupport, frozen: bool) -> None:
    """A process that lost launcher and stage in one instant is found by its group, ended, and the group goes."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        dead = create_jar_group(support, "dead")
        assert dead is not None
        group = dead.run_group("run-1", Limits(pids=5))
        orphan = group.fork()
        if orphan == 0:
            os.close(writer)
            signal.pause()
        while group.empty():  # on v1 it enters by itself
            time.sleep(0.001)
        while frozen and group.freezer and not group.freeze():
            time.sleep(0.001)
        os.write(writer, f"{dead.name} {orphan}".encode())
        os._exit(0)
    os.close(writer)
    name, orphan = os.read(reader, 200).decode().split()
    os.close(reader)
    os.waitpid(pid, 0)
    process = os.pidfd_open(int(orphan))
    swept = sweep_stale(support, seconds=0.1)
    ended = bool(select.select([process], [], [], 5)[0])
    os.close(process)
    assert ended
    assert swept.busy == ()
    assert _directories(f"*/{name}") == []


def _directories(pattern: str) -> list[str]:
    return glob.glob(f"/sys/fs/cgroup/**/{pattern.removeprefix('*/')}", recursive=True)
