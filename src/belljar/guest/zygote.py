"""The zygote of a pool: a Python that is up, with modules imported, from which every run's jar is cloned.

It runs inside an outer jar, has no secret and opens nothing of a run's. For each jar it clones a child into namespaces
of its own; that one is the jar's pid 1 (`_be_init`): it mounts what is the run's alone, gives up every capability, puts
on the filters, and forks the process that becomes the code (`pooled_code`), which waits for what to run.

    stage ── "clone" or "hurry", a socket for the run, the control groups' files ──▶ zygote
    pid 1 ── listener of its filter, directory of its files ──▶ stage
    code  ── "ready" ──▶ stage, which looks into the jar, and has it wait
    stage ── its end of the run's socket ──▶ host
    host  ── what to run, with its input and outputs ──▶ code, which closes the socket and is the code
    pid 1 ── how the code ended ──▶ host
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import ctypes
import gc
import os
import struct
import sys

TYPE_CHECKING = False  # see jar_steps
if TYPE_CHECKING:
    from resource import struct_rusage
    from typing import Any, NoReturn

    from belljar.guest import jar_steps, pooled_code
    from belljar.guest.jar_steps import Step
else:
    import jar_steps  # which lies beside this file
    import pooled_code

CONTROL_FD = 4
PLACE = jar_steps.PLACE
"""Where this file lies, with its settings; and, in a run's jar, the code."""

_NAMESPACES = 0x7C020000  # mount, uts, ipc, user, pid, net
_NEW_CGROUP_NAMESPACE = 0x02000000
_NR_CLONE = {"x86_64": 56, "aarch64": 220}
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
_OURS = ("jar_steps", "pooled_code")
_SIGCHLD = int(_signal.SIGCHLD)
_HEARD = (_SIGCHLD, pooled_code.LEAVING)
_END = struct.Struct("=ciQQ")
"""What is told of the end: `E`, the wait status, microseconds of processor time, bytes of memory at the most."""
_WARM_UP = 64
_MOST_WHY = 2000

_libc = jar_steps.libc
_machine = os.uname().machine
_ZYGOTE_PID = os.getpid()
_RESERVED_PIDS = 300
_IDS = os.getuid(), os.getgid()
"""The zygote's. A process in a new user namespace is nobody until it has a table."""


class _Jar:
    """What is the same in all jars, worked out once from the zygote's settings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        with open("/proc/sys/kernel/cap_last_cap") as file:
            last = int(file.read())
        uid, gid = _IDS
        dumpable: Step = ("prctl", _libc.prctl, (_PR_SET_DUMPABLE, 0, 0, 0, 0))
        self.users = ("setgroups", b"deny"), ("uid_map", b"%d %d 1" % (uid, uid)), ("gid_map", b"%d %d 1" % (gid, gid))
        self.late: tuple[str, ...] = tuple(settings["late"])
        self.mounts = jar_steps.mounts(settings)
        self.over = jar_steps.bind(f"{jar_steps.STAGING}/tmp", jar_steps.STAGING)
        """What hides the place in which the mounts were put together."""
        self.covers = jar_steps.covers(settings)
        self.powerless = [*jar_steps.without_capabilities(last), dumpable]
        self.listening = jar_steps.listening_seccomp(_filter("notify.bpf"))
        self.limits = [*jar_steps.limits(settings), jar_steps.seccomp(_filter("jar.bpf"))]
        """The last of them is the filter."""
        self.workdir: str = settings["workdir"]
        self.env: dict[str, str] = settings["env"]
        self.counted: bool = settings["counted"]


def _filter(name: str) -> bytes:
    with open(f"{PLACE}/{name}", "rb") as program:
        return program.read()


# --- the zygote ------------------------------------------------------------------------------------------------------


def main() -> None:
    """Serve the stage until its socket closes."""
    control = _socket.socket(fileno=CONTROL_FD)
    with open(f"{PLACE}/settings", encoding="utf-8") as file:
        settings: dict[str, Any] = eval(file.read(), {})  # noqa: S307 - the stage's own words, and no need of `json`
    _libc.prctl(_PR_SET_NAME, b"belljar-zygote", 0, 0, 0)
    for name in _OURS:
        del sys.modules[name]  # a program may have one of this name
    if why := _preload(settings["preload"], _beside(settings), control):
        control.send(b"error " + why.encode(errors="replace"))
        os._exit(1)
    jar = _Jar(settings)
    jar_steps.carry_out([("getpid", _libc.getpid, ())] * _WARM_UP)
    sys.path_importer_cache.clear()
    os.environ.clear()  # of the runs, from now on
    os.environ.update(settings["env"])
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_IGN)  # as Python has them
    gc.collect()
    gc.freeze()  # what is here now is shared with every child: a collection there need not touch it
    _libc.malloc_trim(0)
    _signal.signal(_SIGCHLD, _signal.SIG_IGN)
    control.send(b"up")
    _serve(control, jar)


def _serve(control: _socket.socket, jar: _Jar) -> NoReturn:
    """Clone a jar for each word. What is touched here from one to the next, the jar made in between has to itself: so
    it is as little as can be.

    Python is not told that it was cloned: there are no other threads, and what it does about a fork (and modules have
    it do) it does when pid 1 forks the code's process, in the only process where it matters.
    """
    receive, unpack, close = control.recvmsg, struct.Struct("i").iter_unpack, os.close
    room, flags = _socket.CMSG_SPACE(16 * 4), _socket.MSG_CMSG_CLOEXEC
    clone = _libc.syscall
    arguments = ctypes.c_long(_NR_CLONE[_machine]), ctypes.c_ulong(_NAMESPACES | _SIGCHLD), 0, 0, 0, 0
    while True:
        word, ancillary, _flags, _address = receive(64, room, flags)
        if not word:
            os._exit(0)
        descriptors = [number for (number,) in unpack(ancillary[0][2])]
        if clone(*arguments) == 0:  # as `os.fork`, into new namespaces: in them the child is pid 1
            control.close()
            _begin(jar, descriptors, hurried=word == pooled_code.HURRY)
        for descriptor in descriptors:
            close(descriptor)


def _preload(names: list[str], beside: list[str], control: _socket.socket) -> str:
    """Import what the pool was told to; why that can't be, in words, if it can't.

    The stage is told of each beforehand: if that is the last that it hears, it knows which one it was.
    """
    sys.path[1:1] = beside
    before = _Shared()
    for name in names:
        control.send(b"importing " + name.encode(errors="replace"))
        why = ""
        try:
            __import__(name)
        except BaseException as error:  # noqa: BLE001 - whatever a module does
            why = f"{type(error).__name__}: {error}"
        if os.getpid() != _ZYGOTE_PID:  # it has forked, and this is the copy: two would answer on one socket
            os._exit(0)
        if why := why or before.against(_Shared()):
            return f"{name} can't be preloaded: {why[:_MOST_WHY]}"
    for entry in beside:
        if entry in sys.path:
            sys.path.remove(entry)  # each run has its own
    return ""


def _beside(settings: dict[str, Any]) -> list[str]:
    """Where the policy has Python look for modules, but for what is a run's: nothing of a workspace is opened here."""
    of_runs = [f"{path.rstrip('/')}/" for path in (settings["workdir"], *settings["fresh"])]
    entries = settings["env"].get("PYTHONPATH", "").split(":")
    return [entry for entry in entries if entry[:1] == "/" and not f"{entry}/".startswith(tuple(of_runs))]


class _Shared:
    """What a copy of this process would lack, or have in common with all others, as it is now."""

    def __init__(self) -> None:
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            self.memory = {line.split(" ", 1)[0] for line in file if _is_shared(line)}
        self.processes = {name for name in os.listdir("/proc") if name.isdecimal()}
        self.threads = len(os.listdir("/proc/self/task"))
        self.files = len(os.listdir("/proc/self/fd"))

    def against(self, later: _Shared) -> str:
        """What is wrong with what has been added since."""
        if later.processes - self.processes:
            return "it leaves a process behind, which would belong to no run"
        if later.threads > self.threads:
            return f"it starts {later.threads - self.threads} threads, which a copy would not have"
        if later.memory - self.memory:
            return "it holds memory that all copies would share, a lock between processes for example"
        if later.files != self.files:
            return "it holds a file or a socket open, which all copies would share"
        return ""


def _is_shared(line: str) -> bool:
    """Whether a line of /proc/self/maps is of memory that copies write to in common, or could.

    What is only read may become writable again if its file was opened so; that of a file which nobody can write to is
    as harmless as the file.
    """
    _place, access, _offset, _device, _inode, *path = line.split(maxsplit=5)
    if access[3] != "s":
        return False
    name = path[0].rstrip("\n") if path else ""
    return access[1] == "w" or name.endswith(" (deleted)") or os.access(name, os.W_OK)


# --- pid 1 of a jar --------------------------------------------------------------------------------------------------


def _begin(jar: _Jar, descriptors: list[int], *, hurried: bool) -> NoReturn:
    gate = _socket.socket(fileno=descriptors[0])
    try:
        _be_init(jar, gate, descriptors[1:], hurried=hurried)
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a zygote
        try:
            gate.send(b"F" + f"{type(error).__name__}: {error}".encode()[:500])
        except OSError:
            pass
    finally:
        os._exit(125)


def _be_init(jar: _Jar, gate: _socket.socket, groups: list[int], *, hurried: bool) -> NoReturn:
    for group in groups:
        os.write(group, b"0")
        os.close(group)
    if _libc.unshare(_NEW_CGROUP_NAMESPACE) < 0:  # now: its root is the group that we are in
        raise jar_steps.fail("unshare")
    _signal.signal(_SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # pid 1 is safe from a signal unless it has a handler
    _libc.prctl(_PR_SET_NAME, b"init", 0, 0, 0)
    for name, text in jar.users:
        _put(f"/proc/self/{name}", text)
    code, workspace = _furnish(jar)
    _bring_loopback_up()
    jar_steps.carry_out(jar.powerless)
    listener = _listen(jar)
    gate.sendmsg([b"made"], [_rights(listener, workspace)])
    for descriptor in (listener, workspace):
        os.close(descriptor)
    jar_steps.carry_out(jar.limits)  # after sending: the one for open files also counts those under way
    _signal.pthread_sigmask(_signal.SIG_BLOCK, _HEARD)
    if not hurried:
        _rehearse_end()
    pid = os.fork()
    if pid == 0:
        pooled_code.be_code(gate, code, jar.env, counted=jar.counted, hurried=hurried)
    os.close(code)
    _tell_end(pid, gate, believes=jar.counted)
    os._exit(0)


def _listen(jar: _Jar) -> int:
    for _what, call, arguments in jar.listening:
        listener = call(*arguments)
        if listener >= 0:
            return listener
    raise jar_steps.fail("seccomp")


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
        try:
            while True:
                os.waitpid(-1, 0)
        except ChildProcessError:
            pass
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


def _await_end(pid: int, *, believes: bool) -> tuple[int, struct_rusage | None]:
    """The code's wait status, and what it used; None for that if it has only said that it exits, and is believed."""
    while True:
        heard = _signal.sigwaitinfo(_HEARD)
        if heard.si_signo == pooled_code.LEAVING and heard.si_pid == pid and believes:
            return (heard.si_status & 0xFF) << 8, None
        try:
            while True:  # orphans come to us, too
                ended, status, usage = os.wait4(-1, os.WNOHANG)
                if ended == pid:
                    return status, usage
                if ended == 0:
                    break
        except ChildProcessError:
            pass


def _put(path: str, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text)
    finally:
        os.close(descriptor)


def _furnish(jar: _Jar) -> tuple[int, int]:
    """Mount what is this jar's alone; the directories in which the code is put, and its files."""
    late = [(path, os.open(path, os.O_PATH)) for path in jar.late]
    jar_steps.carry_out(jar.mounts)
    _leave_pids_out()
    code = os.open(f"{jar_steps.STAGING}/code", os.O_RDONLY | os.O_DIRECTORY)
    empty = os.open(f"{jar_steps.STAGING}/empty", os.O_PATH)
    os.dup2(empty, jar_steps.EMPTY_FD)
    jar_steps.carry_out(jar.over)
    for path, descriptor in late:
        os.makedirs(path)
        jar_steps.carry_out(jar_steps.bind(f"/proc/self/fd/{descriptor}", path, recursive=True))
        os.close(descriptor)
    jar_steps.carry_out(jar.covers)
    for descriptor in (empty, jar_steps.EMPTY_FD):
        os.close(descriptor)
    os.chdir(jar.workdir)
    return code, os.open(".", os.O_RDONLY | os.O_DIRECTORY)


def _leave_pids_out() -> None:
    """No process of the jar is to have the zygote's number.

    OpenSSL takes a process with the same number for the same process, and would give both the same random numbers.
    Below 300 the kernel gives no number out twice.
    """
    try:
        _put("/proc/sys/kernel/ns_last_pid", b"%d" % _RESERVED_PIDS)
    except OSError:
        while (pid := os.fork()) <= _ZYGOTE_PID:
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
        os.waitpid(pid, 0)


def _bring_loopback_up() -> None:
    end = _libc.socket(int(_socket.AF_INET), int(_socket.SOCK_DGRAM), 0)
    if end < 0 or _libc.ioctl(end, jar_steps.SIOCSIFFLAGS, jar_steps.LOOPBACK_UP) < 0:
        raise jar_steps.fail("loopback")
    os.close(end)


if __name__ == "__main__":
    main()
