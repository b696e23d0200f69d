"""How the zygote clones a jar: by a program that is no Python, or by Python itself where there is no such program.

Both carry out the same steps (`jar_steps`), and tell of the end in the same words.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import _socket
import ctypes
import os
import struct

TYPE_CHECKING = False  # see jar_steps
if TYPE_CHECKING:
    from collections.abc import Callable
    from resource import struct_rusage
    from typing import Any

    from belljar.guest.pool import jar_steps
    from belljar.guest.pool.pooled_code import HURRY, LEAVING

    Cloned = tuple[int, int, bool]
    """The run's socket, the directory in which its code is put, and whether somebody waits for it."""
else:
    import jar_steps  # which lies beside this file
    from pooled_code import HURRY, LEAVING

CONTROL_FD = 4

_NATIVE = f"{jar_steps.PLACE}/jar.so"
"""`native/jar.c`, compiled, where the package has that for this machine."""
_NO_PID_ONE = 125
"""What it exits with where it is not a jar's pid 1."""
_SIGCHLD = int(_signal.SIGCHLD)
_NAMESPACES = 0x7C020000  # mount, uts, ipc, user, pid, net
_NR_CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
_CLONE = ctypes.c_long(_NR_CLONE), ctypes.c_ulong(_NAMESPACES | _SIGCHLD), 0, 0, 0, 0
_PR_SET_DUMPABLE, _PR_SET_NAME = 4, 15
_HEARD = (_SIGCHLD, LEAVING)
_END = struct.Struct("=ciQQ")
"""What is told of the end: `E`, the wait status, microseconds of processor time, bytes of memory at the most."""
_ZYGOTE_PID = os.getpid()
_IDS = os.getuid(), os.getgid()

_libc = jar_steps.libc


def maker(settings: dict[str, Any]) -> Native | Python:
    """The quicker one that there is."""
    return Native(settings) if _can_be_native() else Python(settings)


def _can_be_native() -> bool:
    """Whether the program is there, and nothing on this host forbids to load and to execute it."""
    if not os.path.exists(_NATIVE) or not jar_steps.leaves_pids_out():
        return False
    try:
        ctypes.PyDLL(_NATIVE)
        pid = os.posix_spawn(_NATIVE, [_NATIVE], {})
    except OSError:
        return False
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == _NO_PID_ONE


class _Maker:
    """What both have in common: the steps, which depend on how many control groups there are."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._of_jar: dict[int, Any] = {}
        self._of_code = jar_steps.in_memory(jar_steps.of_code(settings))

    def _steps(self, groups: int) -> Any:
        if groups not in self._of_jar:
            self._of_jar[groups] = jar_steps.in_memory(jar_steps.of_jar(self._settings, _IDS, groups, _HEARD))
        return self._of_jar[groups]


# --- without Python --------------------------------------------------------------------------------------------------


class _NativeSteps(ctypes.Structure):
    _fields_ = (("first", ctypes.c_void_p), ("count", ctypes.c_long))


class _NativeJar(ctypes.Structure):
    """As `native/jar.c` has it."""

    _fields_ = (
        ("of_jar", _NativeSteps),
        ("of_code", _NativeSteps),
        ("fork", ctypes.c_void_p),
        ("error", ctypes.c_void_p),
        ("forking", ctypes.c_long),
        ("program", ctypes.c_long),
        ("believes", ctypes.c_long),
        ("leaving", ctypes.c_long),
        ("rseq", ctypes.c_void_p),
        ("groups", ctypes.c_long),
        ("pending", ctypes.c_long),
        ("hurried", ctypes.c_long),
        ("received", ctypes.c_long),
        ("slots", ctypes.c_long * jar_steps.SLOTS),
    )


class Native(_Maker):
    """A jar's first process works in the zygote's memory, which sleeps meanwhile, and then has next to none."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self._serve = ctypes.PyDLL(_NATIVE)["belljar_serve"]
        self._serve.restype = ctypes.c_long
        jar = self._jar = _NativeJar()
        jar.of_code = _native(self._of_code)
        jar.fork = ctypes.cast(_libc.fork, ctypes.c_void_p)
        jar.error = ctypes.cast(jar_steps.errno(), ctypes.c_void_p)
        jar.program = os.open(_NATIVE, os.O_PATH | os.O_CLOEXEC)
        jar.believes = settings["counted"]
        jar.leaving = LEAVING
        jar.rseq = _registered_rseq()
        jar.groups = -1
        jar.slots[jar_steps.CONTROL] = CONTROL_FD
        self._after_fork = _libc.PyOS_AfterFork_Child

    def serve(self, up: Callable[[], object]) -> Cloned:
        """Clone a jar for each word. Returns only in a code's process.

        To Python this is one fork that never ends, with many children.
        """
        jar = self._jar
        _libc.PyOS_BeforeFork()
        up()
        while self._serve(ctypes.byref(jar)):
            jar.groups = jar.received
            jar.of_jar = _native(self._steps(jar.groups))
        self._after_fork()
        return jar.slots[jar_steps.GATE], jar.slots[jar_steps.CODE], bool(jar.hurried)


def _native(steps: Any) -> _NativeSteps:
    return _NativeSteps(ctypes.addressof(steps), len(steps))


def _registered_rseq() -> int | None:
    """Where the C library has the kernel write on which processor it is."""
    try:
        offset, size = ctypes.c_long.in_dll(_libc, "__rseq_offset"), ctypes.c_uint.in_dll(_libc, "__rseq_size")
    except ValueError:  # it does not
        return None
    _libc.pthread_self.restype = ctypes.c_void_p
    return int(_libc.pthread_self()) + offset.value if size.value else None


# --- with Python -----------------------------------------------------------------------------------------------------


class Python(_Maker):
    """A jar's first process is a copy of the zygote, and stays one."""

    def serve(self, up: Callable[[], object]) -> Cloned:
        """Clone a jar for each word. Returns only in a code's process.

        Python is not told of the first copy: there are no other threads, and what it does about a fork (and modules
        have it do) it does when that one forks the code's process, in the only process where it matters.
        """
        control, unpack = _socket.socket(fileno=CONTROL_FD), struct.Struct("i").iter_unpack
        room = _socket.CMSG_SPACE((1 + jar_steps.MOST_GROUPS) * 4)
        up()
        while True:
            word, ancillary, _flags, _address = control.recvmsg(64, room, _socket.MSG_CMSG_CLOEXEC)
            if not word:
                os._exit(0)
            descriptors = [number for (number,) in unpack(ancillary[0][2])]
            steps = self._steps(len(descriptors) - 1)
            if _libc.syscall(*_CLONE) == 0:
                control.detach()  # one of the steps closes it
                return descriptors[0], self._be_first(descriptors, steps), word == HURRY
            for descriptor in descriptors:
                os.close(descriptor)

    def _be_first(self, descriptors: list[int], steps: Any) -> int:
        """In the code's process: the directory in which the code is put."""
        slots = [0] * jar_steps.SLOTS
        slots[jar_steps.CONTROL], slots[jar_steps.GATE] = CONTROL_FD, descriptors[0]
        slots[jar_steps.GROUPS : jar_steps.GROUPS + len(descriptors) - 1] = descriptors[1:]
        gate = _socket.socket(fileno=descriptors[0])
        try:
            jar_steps.carry_out(steps, slots)
            if not jar_steps.leaves_pids_out():
                _leave_pids_out()
            _signal.signal(_signal.SIGINT, _signal.SIG_IGN)  # pid 1 is safe from a signal unless it has a handler
            _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
            pid = os.fork()
            if pid == 0:
                gate.detach()
                _signal.signal(_signal.SIGINT, _signal.default_int_handler)
                jar_steps.carry_out(self._of_code, slots)
                return slots[jar_steps.CODE]
            _libc.prctl(_PR_SET_NAME, b"init", 0, 0, 0)
            os.close(slots[jar_steps.CODE])
            _tell_end(pid, gate, believes=self._settings["counted"])
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
        if heard.si_signo == LEAVING and heard.si_pid == pid and believes:
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
