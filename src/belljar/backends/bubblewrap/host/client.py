"""belljar's side of the launcher: starting it, asking it for stages, and hearing from runs. Any thread may call."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from _thread import allocate_lock, get_ident  # `threading` takes a millisecond to import

import belljar
from belljar._startup import sockets as socket
from belljar.backends.bubblewrap.shared import wire
from belljar.errors import BelljarError, InternalError, PolicyError, PrerequisiteError, SandboxUnavailableError

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

_START_SECONDS = 60.0
_END_SECONDS = 10.0
_SWEEP_SECONDS = 6.0
"""Longer than a stage takes to end when its launcher is gone."""
_FAULTS: dict[str, type[BelljarError]] = {
    "policy": PolicyError,
    "prerequisite": PrerequisiteError,
    "unavailable": SandboxUnavailableError,
    "internal": InternalError,
}
_LAUNCHER_FD = 3


class LauncherClient:
    """The launcher process of this process: started when first needed, ended when this process ends."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._forked = False
        self._cgroup: dict[str, Any] | None = None
        """Where it makes control groups, once it has been asked to."""
        self._over_in: int | None = None
        """The thread in which this process ends, once it does."""

    def start(self, *, wrap: list[str] | None = None) -> None:
        """Start it if it is not running (any more). `wrap` is a command to start it under (a systemd scope)."""
        self.leave_if_over()
        with self._lock:
            self._bury_if_dead()
            if wrap and self._forked and self._socket is not None:
                self._bury()  # it was started before anyone knew
            if self._socket is None:
                self._socket, self._pid = _spawn(wrap or [])
                self._forked = False

    def start_by_fork(self) -> None:
        """Start it as a fork of this process: quicker, and only right while this process has one thread (the CLI)."""
        with self._lock:
            if self._socket is not None:
                return
            ours, theirs = wire.pair()
            pid = os.fork()
            if pid == 0:
                try:
                    from belljar.backends.bubblewrap.launcher import launcher

                    launcher.main(theirs.detach())
                finally:
                    os._exit(1)
            theirs.close()
            self._socket, self._pid, self._forked = ours, pid, True

    def stage(self, plan: dict[str, Any], cgroup: dict[str, Any]) -> tuple[socket.socket, wire.Message]:
        """A stage made for `plan`: its socket and what it said. Raises what went wrong, by fault."""
        control, theirs = wire.pair()
        try:
            with theirs, self._lock:
                self._ask(plan, cgroup, theirs)
            control.settimeout(_START_SECONDS)
            answer = expect_answer(control)
        except BaseException as error:
            control.close()
            if self.bury_if_dead() and isinstance(error, SandboxUnavailableError):
                raise launcher_died() from error
            raise
        control.settimeout(None)
        return control, answer

    def _ask(self, plan: dict[str, Any], cgroup: dict[str, Any], end: socket.socket) -> None:
        if self._socket is None:
            raise InternalError("the launcher is not running")
        self._cgroup = cgroup
        try:
            wire.send(self._socket, {"plan": plan, "cgroup": cgroup}, (end.fileno(),))
        except OSError as error:
            raise launcher_died() from error

    def bury_if_dead(self) -> bool:
        """Whether it was killed: then what it left is removed, and the next Sandbox starts another."""
        with self._lock:
            return self._bury_if_dead()

    def _bury_if_dead(self) -> bool:
        if self._socket is None or not _is_closed(self._socket):
            return False
        self._bury()
        return True

    def _bury(self) -> None:
        """Wait for its end. If it did not clean up itself, sweep: its stages have heard of it too, and are ending."""
        assert self._socket is not None
        self._socket.close()
        self._socket = None
        if not _await_exit(self._pid) and self._cgroup is not None:
            from belljar.limits.detect import CgroupSupport
            from belljar.limits.sweep import sweep_after

            with contextlib.suppress(BelljarError, OSError):  # what is left then, the next launcher sweeps
                sweep_after(self._pid, CgroupSupport.from_json(self._cgroup), seconds=_SWEEP_SECONDS)
        self._cgroup = None

    def stop(self) -> None:
        """End it and wait until everything of its jars is gone."""
        with self._lock:
            if self._socket is not None:
                self._bury()

    def stop_for_good(self) -> None:
        """For a process that ends, and with it its other threads, for which nobody waits."""
        self._over_in = get_ident()
        self.stop()

    def leave_if_over(self) -> None:
        """End such a thread, which would only tell that its jar is gone. Python takes SystemExit without a word."""
        if self._over_in in (None, get_ident()):
            return
        threading = sys.modules.get("threading")
        if threading is None or threading.current_thread().daemon:
            raise SystemExit

    def abandon_after_fork(self) -> None:
        """In a forked child of the user's program: the launcher is the parent's."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._lock, self._over_in = None, allocate_lock(), None


def _is_closed(end: socket.socket) -> bool:
    """Whether the launcher is gone. It never says anything on this socket, so whatever is there to read is its end."""
    import select

    poller = select.poll()
    poller.register(end, select.POLLIN)
    return bool(poller.poll(0))


def _await_exit(pid: int) -> bool:
    """Wait until the launcher has ended; False if it was killed, or nobody knows."""
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    with contextlib.closing(os.fdopen(descriptor)):
        poller = select.poll()  # `select` knows only the first 1024 descriptors
        poller.register(descriptor, select.POLLIN)
        poller.poll(1000 * _END_SECONDS)
    try:
        waited, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # somebody else waits for every child of this process
        return False
    return waited == pid and status == 0


def _spawn(wrap: list[str]) -> tuple[socket.socket, int]:
    """A clean interpreter: no site packages, no environment, no descriptor but the socket."""
    ours, theirs = wire.pair()
    package = os.path.dirname(os.path.dirname(os.path.abspath(belljar.__file__)))
    program = (
        f"import sys;sys.path.append({package!r});"
        f"from belljar.backends.bubblewrap.launcher.launcher import main;main({_LAUNCHER_FD})"
    )
    command = [*wrap, sys.executable, "-I", "-S", "-c", program]
    passed = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if name in os.environ}
    with theirs:
        pid = os.posix_spawn(
            command[0],
            command,
            passed if wrap else {},
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _LAUNCHER_FD)],
            setsigmask=(),
        )
    return ours, pid


def expect_answer(control: socket.socket) -> wire.Message:
    """The first message of a stage, or the exception that it stands for."""
    try:
        received = wire.receive(control)
    except TimeoutError as error:
        raise SandboxUnavailableError(f"the jar was not ready after {_START_SECONDS:.0f} s") from error
    if received is None:
        raise SandboxUnavailableError(
            "the jar's stage process has died", hint="try again; `belljar doctor` may say why"
        )
    message, _descriptors = received
    if "error" in message:
        raise fault(message)
    return message


def launcher_died() -> SandboxUnavailableError:
    """The error for a launcher that was killed."""
    return SandboxUnavailableError(wire.LAUNCHER_DIED["message"], hint=wire.LAUNCHER_DIED["hint"])


def fault(message: wire.Message) -> BelljarError:
    """The exception that a message stands for."""
    error = _FAULTS[message["error"]](message["message"], hint=message["hint"])
    error.fault = message.get("fault", error.fault)
    return error


LAUNCHER = LauncherClient()
atexit.register(LAUNCHER.stop_for_good)
os.register_at_fork(after_in_child=LAUNCHER.abandon_after_fork)
