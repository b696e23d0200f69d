"""How a jar of a pool is made, as system calls that the zygote prepares once and each jar's pid 1 carries out.

A process that was cloned copies every page of memory that it touches, and while it waits it has them to itself. So
nothing is worked out there that is the same for all: a step is a function of the C library with its arguments.
"""

from __future__ import annotations

import ctypes
import os
import struct

TYPE_CHECKING = False  # every module that the zygote has, each of its jars has too: memory to copy, and to let go of
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    Step = tuple[str, Callable[..., int], tuple[Any, ...]]
    """What it is, for an error; the function, which answers with less than 0 if it fails; its arguments."""

PLACE = "/run/jar"
"""Where, in a run's jar, the code lies."""
STAGING = "/tmp"
"""Where a jar's own tmpfs is put together, before its /tmp covers it."""
EMPTY_FD = 100
"""The descriptor of a directory with nothing in it, while covers are made of it."""
LOOPBACK_UP = struct.pack("16sh22x", b"lo", 1)
SIOCSIFFLAGS = 0x8914

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 1 << 18
_ATTR_READ_ONLY = 1
_AT_FDCWD = -100
_NR_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NR_MOUNT_SETATTR = 442
_PR_CAPBSET_DROP = 24
_CAPABILITIES_V3 = 0x20080522
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5

libc = ctypes.PyDLL(None)  # keeps the interpreter's lock: a clone's child has it from its start
_errno = libc["__errno_location"]
_errno.restype = ctypes.POINTER(ctypes.c_int)


def fail(what: str) -> OSError:
    """The error for a call of `libc` that has just failed."""
    number = _errno().contents.value
    return OSError(number, f"{what}: {os.strerror(number)}")


def carry_out(steps: Iterable[Step]) -> None:
    """Take one step after the other. Raises OSError at the first that fails."""
    for what, call, arguments in steps:
        if call(*arguments) < 0:
            raise fail(what)


# --- files -----------------------------------------------------------------------------------------------------------


def mounts(settings: dict[str, Any]) -> list[Step]:
    """All but what covers the place in which they are put together."""
    options = f"mode=711,size={settings['size_bytes']},nr_inodes={settings['inodes'] + 16}"
    steps = [
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE),
        _mount("belljar", STAGING, "tmpfs", _MS_NOSUID | _MS_NODEV, options),
    ]
    directories = [("code", 0o755), ("empty", 0o555), ("shm", 0o700), ("tmp", 0o700), ("tmp/home", 0o700)]
    directories += [(str(index), 0o755) for index, _path in enumerate(settings["fresh"])]
    steps += [_directory(f"{STAGING}/{name}", mode) for name, mode in directories]
    for index, path in enumerate(settings["fresh"]):
        steps += bind(f"{STAGING}/{index}", path)
    options = "newinstance,ptmxmode=0666,mode=620,max=64"
    return [
        *steps,
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC),
        _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, options),
        *bind(f"{STAGING}/shm", "/dev/shm"),
        *bind(f"{STAGING}/code", PLACE, read_only=True),
    ]


def covers(settings: dict[str, Any]) -> list[Step]:
    """What the code must not have. The last of them is /proc/1, which is whoever carries this out."""
    steps: list[Step] = []
    for path, cover in settings["covered"]:
        steps += bind(cover or f"/proc/self/fd/{EMPTY_FD}", path, read_only=True)
    return steps


def bind(source: str, target: str, *, read_only: bool = False, recursive: bool = False) -> list[Step]:
    """Have one place at another."""
    steps = [_mount(source, target, None, _MS_BIND | (_MS_REC if recursive else 0))]
    if read_only:
        attributes = ctypes.create_string_buffer(struct.pack("4Q", _ATTR_READ_ONLY, 0, 0, 0), 32)
        words = (_AT_FDCWD, os.fsencode(target), ctypes.c_uint(0), attributes, ctypes.c_size_t(32))
        steps.append((f"mount {target}", libc.syscall, (ctypes.c_long(_NR_MOUNT_SETATTR), *words)))
    return steps


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> Step:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    return f"mount {target}", libc.mount, (words[0], words[1], words[2], ctypes.c_ulong(flags), words[3])


def _directory(path: str, mode: int) -> Step:
    return f"make {path}", libc.mkdir, (os.fsencode(path), mode)


# --- privileges ------------------------------------------------------------------------------------------------------


def without_capabilities(last: int) -> list[Step]:
    """Give up every capability for good; `last` is the kernel's last."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_V3, 0), 8)
    nothing = ctypes.create_string_buffer(24)
    steps: list[Step] = [("prctl", libc.prctl, (_PR_CAPBSET_DROP, each, 0, 0, 0)) for each in range(last + 1)]
    return [*steps, ("capset", libc.capset, (header, nothing))]


def limits(settings: dict[str, Any]) -> list[Step]:
    """The same for soft and hard."""
    return [
        ("setrlimit", libc.setrlimit, (which, ctypes.create_string_buffer(struct.pack("=2q", limit, limit), 16)))
        for which, limit in settings["rlimits"]
    ]


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def seccomp(program: bytes, flags: int = 0) -> Step:
    """Put on a filter."""
    structure = _Program(len(program) // 8, program)
    words = (ctypes.c_ulong(_SET_MODE_FILTER), ctypes.c_ulong(flags), ctypes.byref(structure))
    return "seccomp", libc.syscall, (ctypes.c_long(_NR_SECCOMP[os.uname().machine]), *words)


def listening_seccomp(program: bytes) -> list[Step]:
    """Put on a filter with a listener, whose descriptor is the answer: the first way, or that of before Linux 5.19."""
    return [seccomp(program, _NEW_LISTENER | _WAIT_KILLABLE), seccomp(program, _NEW_LISTENER)]
