"""What a jar learns about the machine, made in the stage: the files of its /proc, its clocks, and its view of both.

The kernel can show processes only (`subset=pid`). It then refuses every other name that is looked up *after* this is
switched on. So belljar first mounts its files over their names and opens those that stay, and then switches it on: a
name that has a mount on it, or is held open, is still found. That takes one mount for each name that is shown, instead
of one for each of the forty that are not.

Runs in the stage, as the jar's user. A pool's jars do the same to themselves (`guest/pool/jar_steps.py`).
"""

from __future__ import annotations

import os
import time

from belljar.backends import kernel, machine
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.stage.jar_root import CLOSED, create

ONLY_PROCESSES = "subset=pid"
_MS_NOEXEC = 8
_REMOUNT = kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV | _MS_NOEXEC
_FIRST_BYTES = 16 << 10
NO_TIME_NAMESPACE = "the kernel has no time namespaces for this user: clocks and process times tell the host's uptime"


def make_files(host_info: str, mem_bytes: int, cpu_quota: float) -> None:
    """Write the files that cover names of the jars' /proc, read-only for good, unless they are there."""
    if os.path.exists(layout.MACHINE):
        return
    os.mkdir(layout.MACHINE, 0o755)
    texts = machine.files(
        machine.memory(mem_bytes, host_memory()),
        machine.processors(cpu_quota, os.sched_getaffinity(0)),
        cpuinfo=_first_part("/proc/cpuinfo") or "",
        booted=int(time.time()),
    )
    boot_id = (_first_part(f"/proc/sys/{machine.UUID}") or "").strip()
    settings = machine.settings(lambda path: _first_part(f"/proc/sys/{path}"), boot_id)
    wanted = {name: texts[name] for name in machine.SHOWN[host_info] if name in texts}
    wanted |= {f"sys/{path}": text for path, text in {**settings, machine.UUID: ""}.items()}
    made = {""}
    for path, text in wanted.items():
        _make_directory(os.path.dirname(path), made)
        create(f"{layout.MACHINE}/{path}", text.encode())
    kernel.mount(layout.MACHINE, layout.MACHINE, None, kernel.MS_BIND)
    kernel.mount(f"/proc/sys/{machine.UUID}", f"{layout.MACHINE}/sys/{machine.UUID}", None, kernel.MS_BIND)
    kernel.restrict(layout.MACHINE, CLOSED, recursive=True)


def _make_directory(path: str, made: set[str]) -> None:
    """Make a directory of `layout.MACHINE` and those above it, but for those that were made before."""
    if path not in made:
        _make_directory(os.path.dirname(path), made)
        os.mkdir(f"{layout.MACHINE}/{path}", 0o755)
        made.add(path)


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


def hide(pid: int, names: tuple[str, ...]) -> None:
    """Leave of the /proc of process `pid`, which waits in its jar, these files of belljar's and its processes.

    The stage owns the user namespace above the jar's. So it may enter the jar's mount namespace without becoming
    another user, and come back.

    Raises:
        OSError: the kernel refuses, or the process died.
    """
    own, jar = (os.open(f"/proc/{which}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC) for which in ("self", pid))
    trees = {name: kernel.open_tree(f"{layout.MACHINE}/{name}", recursive=name == "sys") for name in names}
    try:
        kernel.setns(jar, kernel.CLONE_NEWNS)
        try:
            for name, tree in trees.items():
                kernel.move_mount(tree, f"/proc/{name}")
            kernel.mount("proc", "/proc", "proc", _REMOUNT, ONLY_PROCESSES)
        finally:
            _come_back(own)
    except OSError as error:
        wish = "to run with the host's own: --set proc.host_info=host"
        raise OSError(error.errno, f"the host's /proc can't be hidden from the code: {error} ({wish})") from None
    finally:
        for descriptor in (own, jar, *trees.values()):
            os.close(descriptor)


def _come_back(own: int) -> None:
    """Enter the stage's mount namespace again. A stage that can't must not go on in the jar's."""
    try:
        kernel.setns(own, kernel.CLONE_NEWNS)
    except OSError:
        os._exit(126)


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
