"""How a jar of a pool is made, as system calls that the zygote prepares once and each jar's first process carries out.

A process that was cloned copies every page of memory that it touches, and while it waits it has them to itself. So
nothing is worked out there that is the same for all, and nothing is Python where `native/jar.c` can do it: a step is a
system call with its arguments, of which some are the answers of earlier ones, kept in slots.
"""

from __future__ import annotations

import _socket
import ctypes
import os
import struct
import sys

TYPE_CHECKING = False  # every module that the zygote has, each of its jars has too: memory to copy, and to let go of
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Step = tuple[str, str, tuple[Any, ...], int, int]
    """What it is, for an error; the system call; its arguments; the slot for its answer, or -1; an error that is none,
    or 0."""

PLACE = "/run/jar"
"""Where, in a run's jar, the code lies."""
STAGING = "/tmp"
"""Where a jar's own tmpfs is put together, before its /tmp covers it."""
SLOTS = 128
"""As many as `native/jar.c` has."""


class Slot(int):
    """As an argument: what is kept there."""


CONTROL, GATE, CODE = Slot(0), Slot(1), Slot(2)
"""The zygote's socket, the run's, and the directory in which the code is put."""
_OPENED, _WORKSPACE, _LISTENER, _EMPTY = Slot(3), Slot(4), Slot(5), Slot(6)
GROUPS = 8
"""The first of those for the control groups' files."""
MOST_GROUPS = 16
_LATE = GROUPS + MOST_GROUPS
"""The first of those for what is mounted late."""

_EMPTY_FD = 100
"""The descriptor of a directory with nothing in it, while covers are made of it."""
_SENT_FDS = 101, 102
"""Those of the listener and of the files, which the stage is sent."""
_LATE_FD = 110
_KEPT_FD = 120
"""The first of those of names in /proc, which pid 1 keeps: above any limit on open files, so that none is used up."""
_NUMBERS = {
    "x86_64": {
        "capset": 126,
        "chdir": 80,
        "close": 3,
        "dup3": 292,
        "ioctl": 16,
        "mkdirat": 258,
        "mount": 165,
        "mount_setattr": 442,
        "openat": 257,
        "prctl": 157,
        "rt_sigaction": 13,
        "rt_sigprocmask": 14,
        "seccomp": 317,
        "sendmsg": 46,
        "setrlimit": 160,
        "setsid": 112,
        "socket": 41,
        "unshare": 272,
        "write": 1,
    },
    "aarch64": {
        "capset": 91,
        "chdir": 49,
        "close": 57,
        "dup3": 24,
        "ioctl": 29,
        "mkdirat": 34,
        "mount": 40,
        "mount_setattr": 442,
        "openat": 56,
        "prctl": 167,
        "rt_sigaction": 134,
        "rt_sigprocmask": 135,
        "seccomp": 277,
        "sendmsg": 211,
        "setrlimit": 164,
        "setsid": 157,
        "socket": 198,
        "unshare": 97,
        "write": 64,
    },
}[os.uname().machine]

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 2, 4, 8, 0x20
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 1 << 18
_ATTR_READ_ONLY = 1
_AT_FDCWD = -100
_NEW_CGROUP_NAMESPACE = 0x02000000
_PR_SET_DUMPABLE, _PR_SET_NAME, _PR_CAPBSET_DROP = 4, 15, 24
_CAPABILITIES_V3 = 0x20080522
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_LOOPBACK_UP = struct.pack("16sh22x", b"lo", 1)
_SIOCSIFFLAGS = 0x8914
_SIGCHLD = 17
_SIG_SETMASK = 2
_EEXIST, _EFAULT = 17, 14
_LAST_PID = "/proc/sys/kernel/ns_last_pid"
_RESERVED_PIDS = 300

libc = ctypes.PyDLL(None)  # keeps the interpreter's lock: a clone's child has it from its start
errno = libc["__errno_location"]
errno.restype = ctypes.POINTER(ctypes.c_int)
_syscall = libc["syscall"]
_syscall.restype = ctypes.c_long


def of_jar(settings: dict[str, Any], ids: tuple[int, int], groups: int, heard: Iterable[int]) -> list[Step]:
    """All that is done before the code's process is forked; `groups` is how many control groups' files there are.

    Args:
        settings: the zygote's.
        ids: the zygote's user and group. A process in a new user namespace is nobody until it has a table.
        groups: how many files of control groups come with the word.
        heard: the signals that pid 1 waits for.
    """
    return [
        _step("close", CONTROL),
        *_entering(groups),
        _step("unshare", _NEW_CGROUP_NAMESPACE),  # now: its root is the group that we are in
        _step("rt_sigaction", _SIGCHLD, bytes(32), None, 8),  # the zygote lets go of its children unseen
        _step(
            "prctl", _PR_SET_NAME, os.path.basename(os.fsencode(sys.executable))[:15]
        ),  # the code's, not the zygote's
        *_users(*ids),
        *_furnishing(settings),
        *_loopback(),
        *_without_capabilities(),
        *_telling(),
        *_limits(settings),  # after sending: the one for open files also counts those under way
        _seccomp(f"{PLACE}/jar.bpf"),
        _step("rt_sigprocmask", 0, _signals(heard), None, 8),
    ]


def of_code(settings: dict[str, Any]) -> list[Step]:
    """What the code's process does before anything else: it is nobody's to look at, and has no input."""
    return [
        *(_step("close", _KEPT_FD + index) for index, _name in enumerate(settings["kept"])),
        _step("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0),
        _step("setsid"),
        _step("rt_sigprocmask", _SIG_SETMASK, _signals(()), None, 8),
        _open(os.devnull, os.O_RDONLY, _OPENED),  # its flags are the run's own
        _step("dup3", _OPENED, 0, 0),
        _step("close", _OPENED),
    ]


def leaves_pids_out() -> bool:
    """Whether these steps see to it that no process of a jar has the zygote's number.

    OpenSSL takes a process with the same number for the same process, and would give both the same random numbers.
    Below 300 the kernel gives no number out twice.
    """
    return os.path.exists(_LAST_PID)


# --- who carries them out --------------------------------------------------------------------------------------------


class _NativeStep(ctypes.Structure):
    """As `native/jar.c` has it."""

    _fields_ = (
        ("what", ctypes.c_char_p),
        ("number", ctypes.c_long),
        ("arguments", ctypes.c_long * 6),
        ("from_slots", ctypes.c_long),
        ("kept", ctypes.c_long),
        ("forgiven", ctypes.c_long),
    )


def in_memory(steps: list[Step]) -> Any:
    """The steps as an array in C, with what they point to."""
    array: Any = (_NativeStep * len(steps))()
    array.pointed_to = []
    if max(step[3] for step in steps) >= SLOTS:
        raise ValueError("more is mounted into a fresh mount than there is room for")
    for native, (what, name, arguments, kept, forgiven) in zip(array, steps, strict=True):
        native.what, native.number, native.kept, native.forgiven = what.encode(), _NUMBERS[name], kept, forgiven
        for index, argument in enumerate(arguments):
            native.from_slots |= isinstance(argument, Slot) << index
            native.arguments[index] = _as_number(argument, array.pointed_to)
    return array


def _as_number(argument: Any, pointed_to: list[Any]) -> int:
    if isinstance(argument, int):
        return int(argument)
    if argument is None:
        return 0
    if isinstance(argument, bytes):
        argument = ctypes.create_string_buffer(argument)
    pointed_to.append(argument)
    return ctypes.addressof(argument)


def carry_out(steps: Any, slots: list[int]) -> None:
    """Take one step of an array after the other. Raises OSError at the first that fails."""
    for step in steps:
        arguments = [
            slots[given] if step.from_slots >> index & 1 else given for index, given in enumerate(step.arguments)
        ]
        answer = _syscall(ctypes.c_long(step.number), *map(ctypes.c_long, arguments))
        if answer < 0 and (number := errno().contents.value) != step.forgiven:
            raise OSError(number, f"{step.what.decode()}: {os.strerror(number)}")
        if step.kept >= 0:
            slots[step.kept] = answer


def _step(name: str, *arguments: Any, kept: int = -1, forgiven: int = 0, what: str = "") -> Step:
    return what or name, name, arguments, kept, forgiven


# --- groups, users, signals ------------------------------------------------------------------------------------------


def _entering(groups: int) -> list[Step]:
    files = [Slot(GROUPS + index) for index in range(groups)]
    return [step for file in files for step in (_step("write", file, b"0", 1, what="group"), _step("close", file))]


def _users(uid: int, gid: int) -> list[Step]:
    tables = ("setgroups", b"deny"), ("uid_map", b"%d %d 1" % (uid, uid)), ("gid_map", b"%d %d 1" % (gid, gid))
    return [step for name, text in tables for step in _written(f"/proc/self/{name}", text)]


def _written(path: str, text: bytes) -> list[Step]:
    return [
        _open(path, os.O_WRONLY, _OPENED),
        _step("write", _OPENED, text, len(text), what=f"write {path}"),
        _step("close", _OPENED),
    ]


def _open(path: str, flags: int, slot: Slot) -> Step:
    return _step("openat", _AT_FDCWD, os.fsencode(path), flags | os.O_CLOEXEC, 0, kept=slot, what=f"open {path}")


def _signals(numbers: Iterable[int]) -> bytes:
    return struct.pack("Q", sum(1 << (number - 1) for number in numbers))


# --- files -----------------------------------------------------------------------------------------------------------


def _furnishing(settings: dict[str, Any]) -> list[Step]:
    """Mount what is this jar's alone, hide what is not for it, and be in its workspace."""
    late: list[str] = settings["late"]
    return [
        *(_open(path, os.O_PATH, Slot(_LATE + index)) for index, path in enumerate(late)),
        *_mounts(settings),
        _open(f"{STAGING}/code", os.O_RDONLY | os.O_DIRECTORY, CODE),
        _open(f"{STAGING}/empty", os.O_PATH, _EMPTY),
        *_renumbered(_EMPTY, _EMPTY_FD),
        *_bind(f"{STAGING}/tmp", STAGING),  # which hides the place in which the mounts were put together
        *(step for index, path in enumerate(late) for step in _mounted_late(path, index)),
        *_covers(settings),
        _step("close", _EMPTY_FD),
        _step("chdir", os.fsencode(settings["workdir"])),
        _open(".", os.O_RDONLY | os.O_DIRECTORY, _WORKSPACE),
    ]


def _mounts(settings: dict[str, Any]) -> list[Step]:
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
        steps += _bind(f"{STAGING}/{index}", path)
    options = "newinstance,ptmxmode=0666,mode=620,max=64"
    return [
        *steps,
        *_proc(settings),
        _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, options),
        *_bind(f"{STAGING}/shm", "/dev/shm"),
        *_bind(f"{STAGING}/code", PLACE, read_only=True),
    ]


def _proc(settings: dict[str, Any]) -> list[Step]:
    """Mount the jar's own /proc, and leave of it what the policy shows (as `bubblewrap/stage/own_proc.py` does).

    What stays is held open by pid 1, which alone keeps these descriptors: the code's process closes them.
    """
    attributes = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    steps = [
        _mount("proc", "/proc", "proc", attributes),
        *(_written(_LAST_PID, b"%d" % _RESERVED_PIDS) if leaves_pids_out() else ()),
    ]
    if settings["kept"]:
        for name, source in settings["shown"]:
            steps += _bind(source, f"/proc/{name}", recursive=name == "sys")
        for index, name in enumerate(settings["kept"]):
            arguments = _AT_FDCWD, os.fsencode(f"/proc/{name}"), os.O_PATH | os.O_NOFOLLOW, 0
            steps.append(_step("openat", *arguments, kept=_OPENED, what=f"open /proc/{name}"))
            steps += [_step("dup3", _OPENED, _KEPT_FD + index, 0), _step("close", _OPENED)]
        steps.append(_mount("proc", "/proc", "proc", _MS_REMOUNT | attributes, "subset=pid"))
    return steps


def _mounted_late(path: str, index: int) -> list[Step]:
    """What lies where a fresh mount is, put into that again."""
    parts = path.strip("/").split("/")
    above = ["/" + "/".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return [
        *(_directory(each, 0o777, forgiven=_EEXIST) for each in above),
        *_renumbered(Slot(_LATE + index), _LATE_FD),
        *_bind(f"/proc/self/fd/{_LATE_FD}", path, recursive=True),
        _step("close", _LATE_FD),
    ]


def _covers(settings: dict[str, Any]) -> list[Step]:
    """What the code must not have. The last of them is /proc/1, which is whoever carries this out."""
    steps: list[Step] = []
    for path, cover in settings["covered"]:
        steps += _bind(cover or f"/proc/self/fd/{_EMPTY_FD}", path, read_only=True)
    return steps


def _bind(source: str, target: str, *, read_only: bool = False, recursive: bool = False) -> list[Step]:
    """Have one place at another."""
    steps = [_mount(source, target, None, _MS_BIND | (_MS_REC if recursive else 0))]
    if read_only:
        attributes = struct.pack("4Q", _ATTR_READ_ONLY, 0, 0, 0)
        arguments = _AT_FDCWD, os.fsencode(target), 0, attributes, len(attributes)
        steps.append(_step("mount_setattr", *arguments, what=f"mount {target}"))
    return steps


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> Step:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    return _step("mount", words[0], words[1], words[2], flags, words[3], what=f"mount {target}")


def _directory(path: str, mode: int, *, forgiven: int = 0) -> Step:
    return _step("mkdirat", _AT_FDCWD, os.fsencode(path), mode, forgiven=forgiven, what=f"make {path}")


def _renumbered(slot: Slot, number: int) -> list[Step]:
    """Have a descriptor under a number that is known beforehand."""
    return [_step("dup3", slot, number, os.O_CLOEXEC), _step("close", slot)]


# --- network ---------------------------------------------------------------------------------------------------------


def _loopback() -> list[Step]:
    return [
        _step("socket", int(_socket.AF_INET), int(_socket.SOCK_DGRAM), 0, kept=_OPENED),
        _step("ioctl", _OPENED, _SIOCSIFFLAGS, _LOOPBACK_UP, what="loopback"),
        _step("close", _OPENED),
    ]


# --- privileges ------------------------------------------------------------------------------------------------------


def _without_capabilities() -> list[Step]:
    """Give up every capability for good."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        last = int(file.read())
    dropped = [_step("prctl", _PR_CAPBSET_DROP, each, 0, 0, 0) for each in range(last + 1)]
    return [*dropped, _step("capset", struct.pack("=Ii", _CAPABILITIES_V3, 0), bytes(24))]


def _limits(settings: dict[str, Any]) -> list[Step]:
    """The same for soft and hard."""
    return [_step("setrlimit", which, struct.pack("=2q", limit, limit)) for which, limit in settings["rlimits"]]


class _StepsProgram(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def _seccomp(file: str, flags: int = 0, kept: int = -1) -> Step:
    """Put on a filter."""
    with open(file, "rb") as opened:
        program = opened.read()
    return _step("seccomp", _SET_MODE_FILTER, flags, _StepsProgram(len(program) // 8, program), kept=kept)


def _listening_flags() -> int:
    """For a filter with a listener; before Linux 5.19 there was less to ask for."""
    wanted = _NEW_LISTENER | _WAIT_KILLABLE
    _syscall(ctypes.c_long(_NUMBERS["seccomp"]), ctypes.c_ulong(_SET_MODE_FILTER), ctypes.c_ulong(wanted), None)
    return wanted if errno().contents.value == _EFAULT else _NEW_LISTENER  # it looks at the flags first


def _telling() -> list[Step]:
    """Put on the filter that asks the stage, and send it the other end of that, and the directory of the files."""
    told, rights = ctypes.create_string_buffer(b"made", 4), struct.pack("2i", *_SENT_FDS)
    ancillary = struct.pack("@Nii", 16 + len(rights), _socket.SOL_SOCKET, _socket.SCM_RIGHTS) + rights
    part = ctypes.create_string_buffer(struct.pack("@PN", ctypes.addressof(told), 4), 16)
    control = ctypes.create_string_buffer(ancillary, len(ancillary))
    words = 0, 0, ctypes.addressof(part), 1, ctypes.addressof(control), len(ancillary), 0
    message = ctypes.create_string_buffer(struct.pack("@PI4xPNPNi4x", *words), 56)
    message.pointed_to = told, part, control  # type: ignore[attr-defined]
    return [
        _seccomp(f"{PLACE}/notify.bpf", _listening_flags(), kept=_LISTENER),
        *_renumbered(_LISTENER, _SENT_FDS[0]),
        *_renumbered(_WORKSPACE, _SENT_FDS[1]),
        _step("sendmsg", GATE, message, 0),
        *(_step("close", number) for number in _SENT_FDS),
    ]
