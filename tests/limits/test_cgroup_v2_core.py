"""cgroup v2 without its controllers: birth in a group, delegation to a kernel uid, kill, removal, and what is written.

A hybrid host (v1 controllers, an empty v2 beside them) is enough for the first four; the limits themselves are tested
on a real v2 host by test_control_groups.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar.errors import SandboxUnavailableError
from belljar.limits import groupfs
from belljar.limits.cgroup_v2 import JarGroupV2, RunGroupV2
from belljar.limits.clone_into import _fork_and_move, fork_into
from belljar.limits.detect import CgroupSupport, Mechanism
from belljar.limits.naming import group_name
from belljar.limits.proc_files import hierarchies
from belljar.limits.systemd import prepare_delegated, scope_command
from belljar.limits.values import Limits

KERNEL_UID = 70_002


@pytest.fixture
def jar() -> Iterator[JarGroupV2]:
    """A jar's group in the v2 hierarchy, with no controller, given to a kernel uid of its own."""
    texts = [Path(f"/proc/self/{name}").read_text() for name in ("cgroup", "mountinfo")]
    found = next((one for one in hierarchies(*texts) if one.version == 2 and one.directory), None)
    if found is None or os.geteuid() != 0:
        pytest.skip("needs root and a mounted cgroup2")
    support = CgroupSupport(Mechanism.V2_DELEGATED, (), {"base": found.directory})
    made = JarGroupV2.create(support, group_name(os.getpid(), "core"), owner_uid=KERNEL_UID)
    yield made
    made.remove()


def child_says(pid: int, reader: int) -> str:
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return os.read(reader, 4096).decode()


def own_group() -> str:
    return Path("/proc/self/cgroup").read_text().splitlines()[-1].removeprefix("0::")


@pytest.mark.parametrize("how", [fork_into, _fork_and_move])
def test_a_child_is_born_in_the_group_and_python_works_there(jar: JarGroupV2, how: object) -> None:
    """Fork hooks run; files, limits, ctypes, descriptors, a fork and an exec work: by clone3 and by its replacement."""
    assert callable(how)
    hooks: list[str] = []
    os.register_at_fork(after_in_child=lambda: hooks.append("child"))
    reader, writer = os.pipe()
    pid = how(jar.stage_cgroup_fd())
    if pid == 0:
        try:
            import ctypes

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            os.environ["FOUND"] = json.dumps([own_group(), hooks, ctypes.CDLL(None).getpid() == os.getpid()])
            inner = os.fork()
            if inner == 0:
                os._exit(0)
            os.waitpid(inner, 0)
            os.dup2(writer, 1)
            os.execve("/bin/sh", ["sh", "-c", 'printf %s "$FOUND"'], dict(os.environ))
        finally:
            os._exit(9)
    place, seen, same_pid = json.loads(child_says(pid, reader))
    assert place.endswith(f"{jar.name}/stage")
    assert (seen, same_pid, hooks) == (["child"], True, [])


def test_a_stage_makes_kills_and_removes_a_run_as_its_own_uid(jar: JarGroupV2) -> None:
    """All that the delegation needs: the stage's uid makes the group, gives birth into it, kills it, removes it."""
    reader, writer = os.pipe()
    pid = fork_into(jar.stage_cgroup_fd())
    if pid == 0:
        try:
            os.setresuid(KERNEL_UID, KERNEL_UID, KERNEL_UID)
            run = jar.run_group("run-1", Limits(mem_bytes=1, cpu_quota=1, pids=1))  # no controller is on: no limit
            guest = run.fork()
            if guest == 0:
                os.fork()
                os.write(writer, own_group().encode()[-6:])
                select.poll().poll()
            alive = not run.empty()
            run.kill()
            status = os.waitpid(guest, 0)[1]
            found = [alive, run.empty(), os.WTERMSIG(status)]
            run.remove()
            os.write(writer, json.dumps(found).encode())
            os._exit(0)
        finally:
            os._exit(9)
    text = child_says(pid, reader)
    assert text.endswith(json.dumps([True, True, int(signal.SIGKILL)])), text


def test_a_stage_has_a_run_stand_still_and_kills_it_so(jar: JarGroupV2) -> None:
    """With no controller either: nothing moves, it goes on, and frozen it dies as anything else does."""
    reader, writer = os.pipe()
    pid = fork_into(jar.stage_cgroup_fd())
    if pid == 0:
        try:
            os.setresuid(KERNEL_UID, KERNEL_UID, KERNEL_UID)
            run = jar.run_group("run-1", Limits())
            by = run.freezer
            ticks, tick = os.pipe()
            os.set_blocking(ticks, False)
            guest = run.fork()
            if guest == 0:
                while True:
                    os.write(tick, b"x")
            select.select([ticks], [], [])
            until(run.freeze)
            drained(ticks)
            silent = not select.select([ticks], [], [], 0.3)[0]
            run.thaw()
            loud = bool(select.select([ticks], [], [], 20)[0])
            until(run.freeze)
            run.kill()
            status = os.waitpid(guest, 0)[1]
            run.remove()
            os.write(writer, json.dumps([by, silent, loud, os.WTERMSIG(status)]).encode())
            os._exit(0)
        finally:
            os._exit(9)
    assert json.loads(child_says(pid, reader)) == ["cgroup.freeze", True, True, int(signal.SIGKILL)]


def until(done: Callable[[], bool]) -> None:
    while not done():
        time.sleep(0.001)


def drained(descriptor: int) -> None:
    """Take all that is there."""
    try:
        while os.read(descriptor, 1 << 16):
            pass
    except BlockingIOError:
        pass


def test_a_stage_outside_of_the_jar_may_not_give_birth_into_it(jar: JarGroupV2) -> None:
    """Why the stage lives inside: the nearest group above both must be its own (else EACCES)."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(KERNEL_UID, KERNEL_UID, KERNEL_UID)
            run = jar.run_group("run-1", Limits())
            try:
                if run.fork() == 0:
                    os._exit(0)
            except PermissionError:
                os.write(writer, b"EACCES")
                os._exit(0)
        finally:
            os._exit(9)
    assert child_says(pid, reader) == "EACCES"


def files(directory: Path, *names: str) -> int:
    for name in names:
        (directory / name).write_text("")
    return groupfs.open_directory(str(directory))


def test_what_is_written_on_v2(tmp_path: Path) -> None:
    """Each limit goes to its file in the kernel's own words."""
    names = ("memory.max", "memory.swap.max", "memory.oom.group", "memory.events", "cpu.max", "pids.max")
    run = RunGroupV2("run-1", ("memory", "cpu", "pids"), -1, files(tmp_path, *names))
    run.write_limits(Limits(mem_bytes=1 << 26, cpu_quota=0.5, pids=8, helper_pids=3))
    written = {name: (tmp_path / name).read_text() for name in names}
    assert written == {
        "memory.max": "67108864",
        "memory.swap.max": "0",
        "memory.oom.group": "1",
        "memory.events": "",
        "cpu.max": "50000 100000",
        "pids.max": "11",
    }


def test_whether_it_ends_as_one_on_v2(tmp_path: Path) -> None:
    """As it does; but a pool's jar, in the making, has memory in common with what makes it."""
    run = RunGroupV2("run-1", ("memory",), -1, files(tmp_path, "memory.max", "memory.oom.group", "memory.events"))
    run.write_limits(Limits(mem_bytes=1 << 26))
    for whether in (False, True):
        run.end_as_one(whether=whether)
        assert (tmp_path / "memory.oom.group").read_text() == str(int(whether))
    (tmp_path / "other").mkdir()
    without = RunGroupV2("run-2", ("pids",), -1, files(tmp_path / "other"))
    without.end_as_one(whether=False)
    assert not list((tmp_path / "other").iterdir())


def test_a_missing_file_on_v2_is_an_error_that_names_it(tmp_path: Path) -> None:
    run = RunGroupV2("run-1", ("memory",), -1, files(tmp_path))
    with pytest.raises(SandboxUnavailableError, match=r"memory\.max: No such file"):
        run.write_limits(Limits(mem_bytes=1))


def test_what_is_read_on_v2(tmp_path: Path) -> None:
    """Usage comes from the kernel's files, and what an older kernel lacks is absent, not zero."""
    texts = {
        "cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
        "memory.current": "4096\n",
        "memory.events": "max 9\noom_kill 2\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    run = RunGroupV2("run-1", (), -1, groupfs.open_directory(str(tmp_path)))
    assert run.usage() == {"cpu_seconds": 1.5, "memory_bytes": 4096, "oom_kills": 2}
    assert run.oom_kills() == 2


def test_room_is_made_in_a_delegated_group(tmp_path: Path) -> None:
    """The launcher moves to the leaf first, then the controllers are handed out."""
    leaf = tmp_path / "belljar-launcher"
    leaf.mkdir()
    for path in (tmp_path / "cgroup.type", tmp_path / "cgroup.subtree_control", leaf / "cgroup.procs"):
        path.write_text("")
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n")
    support = CgroupSupport(
        Mechanism.V2_DELEGATED, ("memory", "pids"), {"base": str(tmp_path)}, occupants=(os.getpid(),)
    )
    assert prepare_delegated(support).occupants == ()
    assert (leaf / "cgroup.procs").read_text() == "0"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids"


def test_a_jar_needs_a_base_that_is_ready() -> None:
    with pytest.raises(SandboxUnavailableError, match="no delegated control group"):
        JarGroupV2.create(CgroupSupport(Mechanism.V2_SYSTEMD, manager="user"), "x")


def test_the_scope_command() -> None:
    """An ordinary user asks the user's manager; nothing of argv can be taken for an option."""
    command = scope_command([sys.executable, "--version"], manager="user")
    assert command[:3] == ["systemd-run", "--user", "--scope"]
    assert "--property=Delegate=yes" in command
    assert command[-3:] == ["--", sys.executable, "--version"]
    assert "--user" not in scope_command(["x"], manager="system")


def test_a_file_that_may_be_absent(tmp_path: Path) -> None:
    """Absent, it is left out and not made; there, a refused write is an error as any other."""
    (tmp_path / "limit").write_text("")
    (tmp_path / "refuses").mkdir()
    directory = groupfs.open_directory(str(tmp_path))
    try:
        assert groupfs.write_if_present(directory, "limit", "5")
        assert not groupfs.write_if_present(directory, "absent", "5")
        for write in (groupfs.write, groupfs.write_if_present):
            with pytest.raises(SandboxUnavailableError, match=r"can't write '5' to .*/refuses: Is a directory"):
                write(directory, "refuses", "5")
        with pytest.raises(SandboxUnavailableError, match="No such file"):
            groupfs.write(directory, "absent", "5")
    finally:
        os.close(directory)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["limit", "refuses"]
    assert (tmp_path / "limit").read_text() == "5"


@pytest.mark.parametrize(
    ("controllers", "all_of_them"), [(("memory", "pids"), True), (("cpu", "memory", "pids"), True), (("pids",), False)]
)
def test_what_a_group_counts(controllers: tuple[str, ...], all_of_them: bool) -> None:
    """Where it does not count all, the jar's /proc has to tell."""
    assert RunGroupV2("run-1", controllers, -1, -1).counts_all is all_of_them
