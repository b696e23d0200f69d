"""A fork whose child starts life inside a cgroup v2 group: clone3(CLONE_INTO_CGROUP).

Moving a process that already runs costs a grace period of the kernel (about 19 ms); being born there costs 0.04 ms.
Runs in the launcher (to make a stage) and in the stage (to make a run): single-threaded both, with no privilege needed
but write access to `cgroup.procs` of the group and of the nearest group above both it and the caller's own.
"""

from __future__ import annotations

import errno
import os

from belljar._startup import foreign_functions as ctypes

_CLONE3 = 435  # the same number on every architecture that has the call
_CLONE_INTO_CGROUP = 0x2_0000_0000
_SIGCHLD = 17

_BLOCKED = frozenset({errno.ENOSYS, errno.EPERM})
"""A kernel before 5.7 or a seccomp filter (container engines); a group that we may not enter is EACCES instead."""


_CLONE_FIELDS = (
    *("flags", "pidfd", "child_tid", "parent_tid", "exit_signal", "stack", "stack_size", "tls"),
    *("set_tid", "set_tid_size", "cgroup"),
)


class _CloneArguments(ctypes.Structure):
    """`struct clone_args` of <linux/sched.h>, version 2: the one that ends with `cgroup`."""

    _fields_ = tuple((name, ctypes.c_uint64) for name in _CLONE_FIELDS)


def fork_into(cgroup_fd: int | None) -> int:
    """Like `os.fork`, with the child in the group whose directory is `cgroup_fd`; with None it is `os.fork`.

    Python's own fork hooks run in both processes, so all of Python works in the child. The caller must have one thread
    only. Where clone3 is not to be had, the child moves itself before this returns in it (slower, same effect).

    Raises:
        OSError: the group can't be entered (EACCES, EBUSY, ENODEV) or the process limit is reached (EAGAIN).
    """
    if cgroup_fd is None:
        return os.fork()
    pid, error = _clone3(cgroup_fd)
    if error in _BLOCKED:
        return _fork_and_move(cgroup_fd)
    if error:
        raise OSError(error, f"clone3 into a control group: {os.strerror(error)}")
    return pid


def _clone3(cgroup_fd: int) -> tuple[int, int]:
    """The raw call between Python's hooks: (pid, errno). PyDLL keeps the GIL, so the child has it from its start."""
    libc = ctypes.PyDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    arguments = _CloneArguments(flags=_CLONE_INTO_CGROUP, exit_signal=_SIGCHLD, cgroup=cgroup_fd)
    number, size = ctypes.c_long(_CLONE3), ctypes.c_size_t(ctypes.sizeof(arguments))
    ctypes.pythonapi.PyOS_BeforeFork()
    pid: int = libc.syscall(number, ctypes.byref(arguments), size)
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0, 0
    error = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    return (pid, 0) if pid > 0 else (0, error)


def _fork_and_move(cgroup_fd: int) -> int:
    """A plain fork whose child moves itself; the parent learns through a pipe whether that worked."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _move_self_or_exit(cgroup_fd, writer)
        os.close(writer)
        return 0
    os.close(writer)
    report = os.read(reader, 16)
    os.close(reader)
    if report == b"0":
        return pid
    os.waitpid(pid, 0)
    code = int(report or errno.ECHILD)
    raise OSError(code, f"moving into a control group: {os.strerror(code)}")


def _move_self_or_exit(cgroup_fd: int, writer: int) -> None:
    """In the forked child: enter the group, tell the parent, and end here if it did not work."""
    try:
        procs = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=cgroup_fd)
        os.write(procs, b"0")
        os.close(procs)
        os.write(writer, b"0")
    except OSError as error:
        os.write(writer, str(error.errno).encode())
        os._exit(125)
