"""What a jar learns about the machine, made in the stage: the files of its /proc, its clocks, and its view of both.

The kernel can show processes only (`subset=pid`). It then refuses every other name that is looked up *after* this is
switched on. So belljar first mounts its files over their names and opens those that stay, and then switches it on: a
name that has a mount on it, or is held open, is still found. That takes one mount for each name that is shown, instead
of one for each of the forty that are not.

Runs in the stage, as the jar's user. A pool's jars do the same to themselves (`guest/jar_steps.py`).
"""

from __future__ import annotations

import contextlib
import os
import time

from belljar.backends import kernel, machine
from belljar.backends.bubblewrap import layout
from belljar.backends.bubblewrap.jar_root import CLOSED, create
from belljar.errors import SandboxUnavailableError

TYPE_CHECKING = False  # see policy/records.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, NoReturn

ONLY_PROCESSES = "subset=pid"
_MS_NOEXEC = 8
_REMOUNT = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV | _MS_NOEXEC
_FIRST_BYTES = 16 << 10
NO_TIME_NAMESPACE = "the kernel has no time namespaces for this user: clocks and process times tell the host's uptime"


def make_files(grant: Mapping[str, Any]) -> None:
    """Write the files that cover names of the jars' /proc, read-only for good."""
    os.mkdir(layout.MACHINE, 0o755)
    texts = machine.files(
        machine.memory(grant["mem_bytes"], host_memory()),
        machine.processors(grant["cpu_quota"], os.sched_getaffinity(0)),
        cpuinfo=_first_part("/proc/cpuinfo") or "",
        booted=int(time.time()),
    )
    for name in machine.SHOWN[grant["host_info"]]:
        if name in texts:
            create(f"{layout.MACHINE}/{name}", texts[name].encode())
    boot_id = (_first_part(f"/proc/sys/{machine.UUID}") or "").strip()
    settings = machine.settings(lambda path: _first_part(f"/proc/sys/{path}"), boot_id)
    for path, text in settings.items():
        os.makedirs(os.path.dirname(f"{layout.MACHINE}/sys/{path}"), exist_ok=True)
        create(f"{layout.MACHINE}/sys/{path}", text.encode())
    uuid = f"{layout.MACHINE}/sys/{machine.UUID}"
    create(uuid)
    kernel.mount(layout.MACHINE, layout.MACHINE, None, kernel.MS_BIND)
    kernel.mount(f"/proc/sys/{machine.UUID}", uuid, None, kernel.MS_BIND)
    kernel.restrict(layout.MACHINE, CLOSED, recursive=True)


def start_clocks() -> bool:
    """Let the clocks of all later children of this process start at zero; False if the kernel can't.

    They count from here in /proc/uptime, /proc/PID/stat and sysinfo(2), too. This process keeps the host's clocks.
    """
    try:
        kernel.unshare(kernel.CLONE_NEWTIME)
        clocks = (("monotonic", time.CLOCK_MONOTONIC), ("boottime", time.CLOCK_BOOTTIME))
        offsets = "".join(f"{name} {-int(time.clock_gettime(clock))} 0\n" for name, clock in clocks)
        descriptor = os.open("/proc/self/timens_offsets", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(descriptor, offsets.encode())  # at once: the kernel takes all of them, or none
        finally:
            os.close(descriptor)
    except OSError:
        return False
    return True


def hold_kept(root: int) -> list[int]:
    """Look up the names that stay, in a jar's root. The caller keeps them open as long as the jar lives."""
    flags = os.O_PATH | os.O_NOFOLLOW
    return [kernel.openat2(root, f"proc/{name}", flags, resolve=kernel.RESOLVE_IN_ROOT) for name in machine.KEPT]


def cover(pid: int, names: tuple[str, ...]) -> None:
    """Finish the /proc of the jar of process `pid`, which waits: mount the files, and hide every other name.

    A child does it, since a process can't come back from a user namespace.

    Raises:
        SandboxUnavailableError: the kernel refuses.
    """
    namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    faults, faults_inside = os.pipe2(os.O_CLOEXEC)
    child = os.fork()
    if child == 0:
        _be_cover(namespace, names, faults_inside)
    for descriptor in (namespace, faults_inside):
        os.close(descriptor)
    problem = os.read(faults, 500).decode(errors="replace")
    os.close(faults)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    if problem != "done":
        raise SandboxUnavailableError(
            f"the host's /proc can't be hidden from the code: {problem or 'the process that does it died'}",
            hint="to run with the host's own: --set proc.host_info=host",
        )


def _be_cover(namespace: int, names: tuple[str, ...], faults: int) -> NoReturn:
    """In the child: nothing here may return."""
    try:
        trees = [kernel.open_tree(f"{layout.MACHINE}/{name}", recursive=name == "sys") for name in names]
        kernel.enter_owner(namespace)
        kernel.setns(namespace, kernel.CLONE_NEWNS)
        for name, tree in zip(names, trees, strict=True):
            kernel.move_mount(tree, f"/proc/{name}")
        kernel.mount("proc", "/proc", "proc", _REMOUNT, ONLY_PROCESSES)
        os.write(faults, b"done")
    except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not live on as a second stage
        os.write(faults, f"{type(error).__name__}: {error}".encode()[:500])
    finally:
        os._exit(0)


def host_memory() -> int:
    """Return the bytes of memory that this host has."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _first_part(path: str) -> str | None:
    """The start of a file of /proc: the first processor's block is there, however many there are."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, _FIRST_BYTES).decode(errors="replace")
    except OSError:
        return None
    finally:
        os.close(descriptor)
