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
_NR_CLONE = {"x86_64": 56, "aarch64": 220}
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
_OURS = ("jar_steps", "pooled_code")
_SIGCHLD = int(_signal.SIGCHLD)
_HEARD = (_SIGCHLD, pooled_code.LEAVING)
_END = struct.Struct("=ciQQ")
"""What is told of the end: `E`, the wait status, microseconds of processor time, bytes of memory at the most."""
_WARM_UP = 64
_MOST_WHY = 2000
_NATIVE = f"{PLACE}/jar.so"
"""`native/jar.c`, compiled, where the package has that for this machine."""

_libc = jar_steps.libc
_machine = os.uname().machine
_ZYGOTE_PID = os.getpid()
_IDS = os.getuid(), os.getgid()


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
    maker = _Native(settings) if os.path.exists(_NATIVE) and jar_steps.leaves_pids_out() else _Python(settings)
    sys.path_importer_cache.clear()
    os.environ.clear()  # of the runs, from now on
    os.environ.update(settings["env"])
    for number in (_signal.SIGPIPE, _signal.SIGXFSZ):
        _signal.signal(number, _signal.SIG_IGN)  # as Python has them
    gc.collect()
    gc.freeze()  # what is here now is shared with every child: a collection there need not touch it
    _libc.malloc_trim(0)
    _libc.signal(_SIGCHLD, 1)  # ignored; a program finds what Python has from the start
    control.send(b"up")
    _serve(control, maker, settings)


def _serve(control: _socket.socket, maker: _Native | _Python, settings: dict[str, Any]) -> NoReturn:
    """Clone a jar for each word. What is touched here from one to the next, the jar made in between has to itself: so
    it is as little as can be.
    """
    receive, unpack, close, clone = control.recvmsg, struct.Struct("i").iter_unpack, os.close, maker.clone
    room, flags = _socket.CMSG_SPACE(jar_steps.MOST_GROUPS * 4), _socket.MSG_CMSG_CLOEXEC
    while True:
        word, ancillary, _flags, _address = receive(64, room, flags)
        if not word:
            os._exit(0)
        descriptors = [number for (number,) in unpack(ancillary[0][2])]
        if (place := clone(descriptors)) is not None:
            control.detach()  # it is closed
            gate = _socket.socket(fileno=descriptors[0])
            hurried = word == pooled_code.HURRY
            pooled_code.be_code(gate, place, settings["env"], counted=settings["counted"], hurried=hurried)
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


# --- how a jar is cloned ---------------------------------------------------------------------------------------------


class _NativeJar(ctypes.Structure):
    """As `native/jar.c` has it."""

    _fields_ = (
        ("steps", ctypes.c_void_p),
        ("count", ctypes.c_long),
        ("fork", ctypes.c_void_p),
        ("program", ctypes.c_long),
        ("believes", ctypes.c_long),
        ("leaving", ctypes.c_long),
        ("rseq", ctypes.c_void_p),
        ("gate", ctypes.c_long),
        ("slots", ctypes.c_long * jar_steps.SLOTS),
    )


class _Native:
    """By a program that is no Python: its first process uses the zygote's memory, and then has next to none."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._clone = ctypes.PyDLL(_NATIVE)["belljar_clone"]
        self._clone.restype = ctypes.c_long
        self._steps: dict[int, Any] = {}
        self._jar = _NativeJar()
        self._jar.fork = ctypes.cast(_libc.fork, ctypes.c_void_p)
        self._jar.program = os.open(_NATIVE, os.O_PATH | os.O_CLOEXEC)
        self._jar.believes = settings["counted"]
        self._jar.leaving = pooled_code.LEAVING
        self._jar.rseq = _registered_rseq()
        self._jar.slots[jar_steps.CONTROL] = CONTROL_FD
        _libc.PyOS_BeforeFork()  # once for all of them: here it is about to fork for ever

    def clone(self, descriptors: list[int]) -> int | None:
        """In the code's process: the directory in which the code is put. In the zygote: None."""
        jar, groups = self._jar, len(descriptors) - 1
        if groups not in self._steps:
            self._steps[groups] = jar_steps.in_memory(jar_steps.all_of(self._settings, _IDS, groups, _HEARD))
        steps = self._steps[groups]
        jar.steps, jar.count = ctypes.addressof(steps), len(steps)
        jar.gate = jar.slots[jar_steps.GATE] = descriptors[0]
        jar.slots[jar_steps.GROUPS : jar_steps.GROUPS + groups] = descriptors[1:]
        if self._clone(ctypes.byref(jar)) != 0:
            return None
        _libc.PyOS_AfterFork_Child()
        return int(jar.slots[jar_steps.CODE])


def _registered_rseq() -> int | None:
    """Where the C library has the kernel write on which processor it is."""
    try:
        offset, size = (ctypes.c_long.in_dll(_libc, "__rseq_offset"), ctypes.c_uint.in_dll(_libc, "__rseq_size"))
    except ValueError:  # it does not
        return None
    _libc.pthread_self.restype = ctypes.c_void_p
    return _libc.pthread_self() + offset.value if size.value else None


class _Python:
    """By Python itself, where there is no such program: its first process is a copy of the zygote."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._counted: bool = settings["counted"]
        self._clone = ctypes.c_long(_NR_CLONE[_machine]), ctypes.c_ulong(_NAMESPACES | _SIGCHLD), 0, 0, 0, 0
        self._steps: dict[int, Any] = {}

    def clone(self, descriptors: list[int]) -> int | None:
        """In the code's process: the directory in which the code is put. In the zygote: None.

        Python is not told of the first copy: there are no other threads, and what it does about a fork (and modules
        have it do) it does when that one forks the code's process, in the only process where it matters.
        """
        groups = len(descriptors) - 1
        if groups not in self._steps:
            self._steps[groups] = jar_steps.in_memory(jar_steps.all_of(self._settings, _IDS, groups, _HEARD))
        return self._first(descriptors, groups) if _libc.syscall(*self._clone) == 0 else None

    def _first(self, descriptors: list[int], groups: int) -> int:
        slots = [0] * jar_steps.SLOTS
        slots[jar_steps.CONTROL], slots[jar_steps.GATE] = CONTROL_FD, descriptors[0]
        slots[jar_steps.GROUPS : jar_steps.GROUPS + groups] = descriptors[1:]
        gate = _socket.socket(fileno=descriptors[0])
        try:
            jar_steps.carry_out(self._steps[groups], slots)
            _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
            _libc.prctl(_PR_SET_NAME, b"init", 0, 0, 0)
            if not jar_steps.leaves_pids_out():
                _leave_pids_out()
            pid = os.fork()
            if pid == 0:
                gate.detach()
                return slots[jar_steps.CODE]
            os.close(slots[jar_steps.CODE])
            _tell_end(pid, gate, believes=self._counted)
        except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a zygote
            try:
                gate.send(b"F" + f"{type(error).__name__}: {error}".encode()[:500])
            except OSError:
                pass
            os._exit(125)
        os._exit(0)


def _leave_pids_out() -> None:
    """No process of the jar is to have the zygote's number, or a lower one (`jar_steps.leaves_pids_out`)."""
    while (pid := os.fork()) <= _ZYGOTE_PID:
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    os.waitpid(pid, 0)


# --- pid 1 of a jar, in Python ---------------------------------------------------------------------------------------


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


if __name__ == "__main__":
    main()
