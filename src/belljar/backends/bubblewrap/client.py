"""belljar's side of the launcher: starting it, asking it for stages, and hearing from runs. Any thread may call."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
from typing import Any

from belljar.backends.bubblewrap import wire
from belljar.errors import BelljarError, InternalError, PolicyError, PrerequisiteError, SandboxUnavailableError

_START_SECONDS = 60.0
_END_SECONDS = 10.0
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
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0

    def start(self, *, wrap: list[str] | None = None) -> None:
        """Start it if it is not running. `wrap` is a command to start it under (a systemd scope)."""
        with self._lock:
            if self._socket is None:
                self._socket, self._pid = _spawn(wrap or [])

    def start_by_fork(self) -> None:
        """Start it as a fork of this process: quicker, and only right while this process has one thread (the CLI)."""
        with self._lock:
            if self._socket is not None:
                return
            ours, theirs = wire.pair()
            pid = os.fork()
            if pid == 0:
                try:
                    from belljar.backends.bubblewrap import launcher

                    launcher.main(theirs.detach())
                finally:
                    os._exit(1)
            theirs.close()
            self._socket, self._pid = ours, pid

    def stage(self, plan: dict[str, Any], cgroup: dict[str, Any]) -> tuple[socket.socket, wire.Message]:
        """A stage made for `plan`: its socket and what it said. Raises what went wrong, by fault."""
        control, theirs = wire.pair()
        with theirs, self._lock:
            if self._socket is None:
                raise InternalError("the launcher is not running")
            try:
                wire.send(self._socket, {"plan": plan, "cgroup": cgroup}, (theirs.fileno(),))
            except OSError as error:
                self._socket.close()
                self._socket = None
                control.close()
                raise SandboxUnavailableError("belljar's launcher process has died", hint="try again") from error
        control.settimeout(_START_SECONDS)
        try:
            answer = expect_answer(control)
        except BaseException:
            control.close()
            raise
        control.settimeout(None)
        return control, answer

    def stop(self) -> None:
        """End it and wait until everything of its jars is gone."""
        with self._lock:
            if self._socket is None:
                return
            self._socket.close()
            self._socket = None
            _await_exit(self._pid)

    def abandon_after_fork(self) -> None:
        """In a forked child of the user's program: the launcher is the parent's."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._lock = None, threading.Lock()


def _await_exit(pid: int) -> None:
    import select

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with contextlib.closing(os.fdopen(descriptor)):
        select.select([descriptor], [], [], _END_SECONDS)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def _spawn(wrap: list[str]) -> tuple[socket.socket, int]:
    """A clean interpreter: no site packages, no environment, no descriptor but the socket."""
    ours, theirs = wire.pair()
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    program = (
        f"import sys;sys.path.append({package!r});"
        f"from belljar.backends.bubblewrap.launcher import main;main({_LAUNCHER_FD})"
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
    """The next message of a stage, or the exception that it stands for."""
    message, descriptors = expect_answer_with_descriptors(control)
    for descriptor in descriptors:
        os.close(descriptor)
    return message


def expect_answer_with_descriptors(control: socket.socket) -> tuple[wire.Message, list[int]]:
    """The same, with what came along."""
    try:
        received = wire.receive(control)
    except TimeoutError as error:
        raise SandboxUnavailableError(f"the jar was not ready after {_START_SECONDS:.0f} s") from error
    if received is None:
        raise SandboxUnavailableError(
            "the jar's stage process has died", hint="try again; `belljar doctor` may say why"
        )
    message, descriptors = received
    if "error" in message:
        raise fault(message)
    if "errno" in message:
        raise OSError(message["errno"], message["message"])
    return message, descriptors


def fault(message: wire.Message) -> BelljarError:
    """The exception that a message stands for."""
    return _FAULTS[message["error"]](message["message"], hint=message["hint"])


LAUNCHER = LauncherClient()
atexit.register(LAUNCHER.stop)
os.register_at_fork(after_in_child=LAUNCHER.abandon_after_fork)
