"""The zygote of a pool: a Python that is up, with modules imported, from which every run's jar is cloned.

It runs inside an outer jar, has no secret and opens nothing of a run's. For each jar it clones a child into namespaces
of its own; that one is the jar's pid 1 (`_be_init`): it mounts what is the run's alone, gives up every capability, puts
on the filters, and forks the process that becomes the code (`pooled_code`), which waits for what to run.

    stage ── "clone", a socket for the run, the control groups' files ──▶ zygote
    pid 1 ── listener of its filter, directory of its files ──▶ stage
    code  ── "ready" ──▶ stage, which looks into the jar, and has it wait
    stage ── its end of the run's socket ──▶ host
    host  ── what to run, with its input and outputs ──▶ code, which closes the socket and is the code
    pid 1 ── how the code ended ──▶ host
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from belljar.guest import pooled_code
else:
    import pooled_code  # which lies beside this file

CONTROL_FD = 4
PLACE = "/run/jar"
"""Where this file lies, with its settings; and, in a run's jar, the code."""

_STAGING = "/tmp"
"""Where a jar's own tmpfs is put together, before its /tmp covers it."""

_NAMESPACES = 0x7C020000  # mount, uts, ipc, user, pid, net
_NEW_CGROUP_NAMESPACE = 0x02000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 8, 0x1000, 0x4000, 1 << 18
_ATTR_READ_ONLY = 1
_AT_FDCWD = -100
_NR_CLONE = {"x86_64": 56, "aarch64": 220}
_NR_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NR_MOUNT_SETATTR = 442
_PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_NAME = 4, 24, 15
_SET_MODE_FILTER, _NEW_LISTENER, _WAIT_KILLABLE = 1, 1 << 3, 1 << 5
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_CAPABILITIES_V3 = 0x20080522
_LAST_CAPABILITY = 63
"""Of this kernel: `main` looks."""
_SIGCHLD = int(signal.SIGCHLD)
_HEARD = (_SIGCHLD, pooled_code.LEAVING)
_ROOM = _socket.CMSG_SPACE(8)
_END = struct.Struct("=ciQQ")
"""What is told of the end: `E`, the wait status, microseconds of processor time, bytes of memory at the most."""

_libc = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock: a clone's child has it from its start
_libc.syscall.restype = ctypes.c_long
_before_fork, _after_fork_in_parent = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Parent
_machine = os.uname().machine
_ZYGOTE_PID = os.getpid()
_RESERVED_PIDS = 300
_IDS = os.getuid(), os.getgid()
"""The zygote's. A process in a new user namespace is nobody until it has a table."""


class _Program(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns"))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _syscall(number: int, *arguments: Any, what: str) -> int:
    return _check(_libc.syscall(ctypes.c_long(number), *arguments), what)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else os.fsencode(word) for word in (source, target, kind, options)]
    _check(_libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]), f"mount {target}")


def _bind(source: str, target: str, *, read_only: bool = False, recursive: bool = False) -> None:
    _mount(source, target, None, _MS_BIND | (_MS_REC if recursive else 0))
    if read_only:
        attributes = _MountAttributes(set=_ATTR_READ_ONLY)
        size = ctypes.c_size_t(ctypes.sizeof(attributes))
        path = os.fsencode(target)
        _syscall(_NR_MOUNT_SETATTR, _AT_FDCWD, path, ctypes.c_uint(0), ctypes.byref(attributes), size, what=target)


# --- the zygote ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Serve the stage until its socket closes."""
    global _LAST_CAPABILITY  # noqa: PLW0603 - read once, for every child
    with open("/proc/sys/kernel/cap_last_cap") as file:
        _LAST_CAPABILITY = int(file.read())
    control = socket.socket(fileno=CONTROL_FD)
    with open(f"{PLACE}/zygote.json", encoding="utf-8") as file:
        settings: dict[str, Any] = json.load(file)
    _libc.prctl(_PR_SET_NAME, b"belljar-zygote", 0, 0, 0)
    del sys.modules["pooled_code"]  # ours: a program may have one of this name
    if why := _preload(settings["preload"]):
        control.send(json.dumps({"error": why}).encode())
        os._exit(1)
    filters = []
    for name in ("notify.bpf", "jar.bpf"):
        with open(f"{PLACE}/{name}", "rb") as program:
            filters.append(program.read())
    threading.current_thread()  # made now, and not by each child
    sys.path_importer_cache.clear()
    os.environ.clear()  # of the runs, from now on
    os.environ.update(settings["env"])
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python has them
    gc.collect()
    gc.freeze()  # what is here now is shared with every child: a collection there need not touch it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    control.send(b"{}")
    _serve(control, settings, filters)


def _serve(control: socket.socket, settings: dict[str, Any], filters: list[bytes]) -> NoReturn:
    """Clone a jar for each word. What is touched here from one to the next, the jar made in between has to itself: so
    it is as little as can be.
    """
    receive, unpack, close = control.recvmsg, struct.Struct("i").iter_unpack, os.close
    room, flags = socket.CMSG_SPACE(16 * 4), int(socket.MSG_CMSG_CLOEXEC)
    before, after, clone = _before_fork, _after_fork_in_parent, _libc.syscall
    arguments = ctypes.c_long(_NR_CLONE[_machine]), ctypes.c_ulong(_NAMESPACES | signal.SIGCHLD), 0, 0, 0, 0
    while True:
        word, ancillary, _flags, _address = receive(64, room, flags)
        if not word:
            os._exit(0)
        descriptors = [number for (number,) in unpack(ancillary[0][2])]
        before()
        if clone(*arguments) == 0:  # as `os.fork`, into new namespaces: in them the child is pid 1
            ctypes.pythonapi.PyOS_AfterFork_Child()
            control.close()
            _begin(settings, filters, descriptors)
        after()
        for descriptor in descriptors:
            close(descriptor)


def _preload(names: list[str]) -> str:
    """Import what the pool was told to; why that can't be, in words, if it can't."""
    opened = len(os.listdir("/proc/self/fd"))
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:  # noqa: BLE001 - whatever a module does
            return f"{name} can't be preloaded: {type(error).__name__}: {error}"
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            return f"{name} can't be preloaded: it starts {threads - 1} threads, which a copy would not have"
        if len(os.listdir("/proc/self/fd")) != opened:
            return f"{name} can't be preloaded: it holds a file or a socket open, which all copies would share"
    return ""


# --- pid 1 of a jar --------------------------------------------------------------------------------------------------


def _begin(settings: dict[str, Any], filters: list[bytes], descriptors: list[int]) -> NoReturn:
    gate = _socket.socket(fileno=descriptors[0])
    try:
        _be_init(settings, filters, gate, descriptors[1:])
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a zygote
        with contextlib.suppress(OSError):
            gate.send(b"F" + f"{type(error).__name__}: {error}".encode()[:500])
    finally:
        os._exit(125)


def _be_init(settings: dict[str, Any], filters: list[bytes], gate: _socket.socket, groups: list[int]) -> NoReturn:
    for group in groups:
        os.write(group, b"0")
        os.close(group)
    _check(_libc.unshare(_NEW_CGROUP_NAMESPACE), "unshare")  # now: its root is the group that we are in
    _signal.signal(_SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # pid 1 is safe from a signal unless it has a handler
    _libc.prctl(_PR_SET_NAME, b"init", 0, 0, 0)
    _map_user()
    code, workspace = _furnished(settings)
    _drop_capabilities()
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    listener = _filter(filters[0], listening=True)
    gate.sendmsg([b"made"], [_rights(listener, workspace)])
    for descriptor in (listener, workspace):
        os.close(descriptor)
    for which, limit in settings["rlimits"]:  # after sending: the one for open files also counts those under way
        resource.setrlimit(which, (limit, limit))
    _filter(filters[1])
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _HEARD)
    _rehearse_end()
    pid = os.fork()
    if pid == 0:
        pooled_code.be_code(gate, code, settings["env"], counted=settings["counted"])
    os.close(code)
    _tell_end(pid, gate, believes=settings["counted"])
    os._exit(0)


def _rights(*descriptors: int) -> tuple[int, int, bytes]:
    return _socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"{len(descriptors)}i", *descriptors)


def _rehearse_end() -> None:
    """Go through the end once, with nobody listening: what is touched here for the first time is copied now."""
    here, there = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    os.kill(1, pooled_code.LEAVING)
    _tell_end(1, here, believes=True)
    here.close()
    there.close()


def _tell_end(pid: int, gate: _socket.socket, *, believes: bool) -> None:
    """Wait for the code, end what it left, and tell.

    Python that runs to its end says so in a signal, just before it exits: a process takes longer to die than to run. It
    is the code that could send it earlier, as it could exit earlier; either way it is ended now.
    """
    status, usage = _await_end(pid, believes=believes)
    _end_all()
    microseconds = most_bytes = 0
    if usage is not None:
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-1, 0)
        microseconds, most_bytes = int(1e6 * (usage.ru_utime + usage.ru_stime)), usage.ru_maxrss << 10
    try:
        gate.send(_END.pack(b"E", status, microseconds, most_bytes))
    except OSError:
        pass


def _end_all() -> None:
    """End every other process of the jar. Only its pid 1 can mean that by -1: anywhere else it would be the host's."""
    if os.getpid() != 1:
        raise RuntimeError("this is no jar's pid 1")
    try:
        os.kill(-1, _signal.SIGKILL)
    except ProcessLookupError:
        pass


def _await_end(pid: int, *, believes: bool) -> tuple[int, resource.struct_rusage | None]:
    """The code's wait status, and what it used; None for that if it has only said that it exits, and is believed."""
    while True:
        heard = _signal.sigwaitinfo(_HEARD)
        if heard.si_signo == pooled_code.LEAVING and heard.si_pid == pid and believes:
            return (heard.si_status & 0xFF) << 8, None
        with contextlib.suppress(ChildProcessError):
            while True:  # orphans come to us, too
                ended, status, usage = os.wait4(-1, os.WNOHANG)
                if ended == pid:
                    return status, usage
                if ended == 0:
                    break


def _map_user() -> None:
    uid, gid = _IDS
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        os.write(descriptor, text.encode())
        os.close(descriptor)


def _furnished(settings: dict[str, Any]) -> tuple[int, int]:
    """Have the jar furnished by a process that ends then: what that one touched is gone with it."""
    here, there = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        try:
            code, workspace = _furnish(settings)
            _bring_loopback_up()
            there.sendmsg([b"done"], [_rights(code, workspace)])
        except BaseException as error:  # noqa: BLE001 - told to pid 1, which tells it
            there.send(f"{type(error).__name__}: {error}".encode()[:400])
        finally:
            os._exit(0)
    there.close()
    word, ancillary, _flags, _address = here.recvmsg(500, _ROOM, _socket.MSG_CMSG_CLOEXEC)
    here.close()
    os.waitpid(pid, 0)
    if word != b"done":
        raise RuntimeError(word.decode() or "the jar could not be furnished")
    code, workspace = struct.unpack("2i", ancillary[0][2])
    os.fchdir(workspace)
    return code, workspace


def _furnish(settings: dict[str, Any]) -> tuple[int, int]:
    """Mount what is this jar's alone; the directories in which the stage puts the code, and its files."""
    late = [(path, os.open(path, os.O_PATH)) for path in settings["late"]]
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)
    options = f"mode=711,size={settings['size_bytes']},nr_inodes={settings['inodes'] + 16}"
    _mount("belljar", _STAGING, "tmpfs", _MS_NOSUID | _MS_NODEV, options)
    for name, mode in (("code", 0o755), ("empty", 0o555), ("shm", 0o700), ("tmp", 0o700)):
        os.mkdir(f"{_STAGING}/{name}", mode)
    os.mkdir(f"{_STAGING}/tmp/home", 0o700)
    code = os.open(f"{_STAGING}/code", os.O_RDONLY | os.O_DIRECTORY)
    empty = os.open(f"{_STAGING}/empty", os.O_PATH)
    for index, path in enumerate(settings["fresh"]):
        os.mkdir(f"{_STAGING}/{index}", 0o755)
        _bind(f"{_STAGING}/{index}", path)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _mount("devpts", "/dev/pts", "devpts", _MS_NOSUID | _MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,max=64")
    _leave_pids_out()
    _bind(f"{_STAGING}/shm", "/dev/shm")
    _bind(f"{_STAGING}/code", PLACE, read_only=True)
    _bind(f"{_STAGING}/tmp", _STAGING)
    for path, descriptor in late:
        os.makedirs(path)
        _bind(f"/proc/self/fd/{descriptor}", path, recursive=True)
        os.close(descriptor)
    for path, cover in settings["covered"]:  # the last of them is /proc/1, which is ourselves
        _bind(cover or f"/proc/self/fd/{empty}", path, read_only=True)
    os.close(empty)
    os.chdir(settings["workdir"])
    return code, os.open(".", os.O_RDONLY | os.O_DIRECTORY)


def _leave_pids_out() -> None:
    """No process of the jar is to have the zygote's number.

    OpenSSL takes a process with the same number for the same process, and would give both the same random numbers.
    Below 300 the kernel gives no number out twice.
    """
    with contextlib.suppress(OSError), open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(_RESERVED_PIDS))
        return
    while (pid := os.fork()) <= _ZYGOTE_PID:
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    os.waitpid(pid, 0)


def _bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        name = struct.pack("16s16x", b"lo")
        flags = struct.unpack_from("h", fcntl.ioctl(end, _SIOCGIFFLAGS, name), 16)[0]
        fcntl.ioctl(end, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def _drop_capabilities() -> None:
    for capability in range(_LAST_CAPABILITY + 1):
        _check(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl")
    header = ctypes.create_string_buffer(struct.pack("=Ii", _CAPABILITIES_V3, 0))
    nothing = ctypes.create_string_buffer(24)
    _check(_libc.capset(header, nothing), "capset")


def _filter(program: bytes, *, listening: bool = False) -> int:
    structure = _Program(len(program) // 8, program)
    flags = _NEW_LISTENER | _WAIT_KILLABLE if listening else 0
    number = ctypes.c_long(_NR_SECCOMP[_machine])
    mode, pointer = ctypes.c_ulong(_SET_MODE_FILTER), ctypes.byref(structure)
    result: int = _libc.syscall(number, mode, ctypes.c_ulong(flags), pointer)
    if result < 0 and listening:  # before Linux 5.19
        result = _libc.syscall(number, mode, ctypes.c_ulong(_NEW_LISTENER), pointer)
    return _check(result, "seccomp")


if __name__ == "__main__":
    main()
