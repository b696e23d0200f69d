"""The cleanup process: it outlives belljar and removes its containers and volumes. Any thread may call.

Containers belong to the engine's daemon, so they don't die with belljar as its children do. What even the cleanup
process missed (it was killed too, the machine was), the next belljar sweeps.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import belljar
from belljar.backends.container.engine import leftovers
from belljar.backends.container.engine.engine import Engine, engine_environment
from belljar.errors import SandboxUnavailableError

__all__ = ["CLEANUP_PROCESS", "CleanupProcess", "labels", "owner", "sweep"]

owner = leftovers.owner

Kind = Literal["container", "volume", "mount"]
_DESCRIPTOR = 3
_EXIT_SECONDS = 1.0
"""How long the end of this process waits for the cleanup process's: it goes on alone."""
_POLL_SECONDS = 0.002


def labels(jar: str) -> list[str]:
    """The options of `run`, `create` and `volume create` that mark what is made as this process's, and the jar's."""
    marks = (leftovers.LABEL, f"{leftovers.OWNER}={owner()}", f"belljar.jar={jar}")
    return [part for mark in marks for part in ("--label", mark)]


def sweep(engine: Engine) -> list[str]:
    """Remove what dead belljars of this user left in a local engine, nothing of the living; what was removed."""
    from belljar.backends.container.engine.facts import facts

    if not facts(engine).local:
        return []  # a process elsewhere can't be told dead from alive
    return leftovers.sweep(leftovers.Caller(tuple(engine.command()), engine.environment()))


class CleanupProcess:
    """The cleanup process of this process: started when first needed, ended when this process ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._pid = 0
        self._held: dict[str, dict[str, Any]] = {}
        self._environment: dict[str, str] = {}
        self._swept: set[tuple[str, ...]] = set()

    def add(self, command: Sequence[str], kind: Kind, name: str) -> None:
        """Something called `name` is about to be made by the engine whose commands start with `command`."""
        message = {"add": name, "kind": kind, "command": list(command)}
        with self._lock:
            self._tell(message)
            self._held[name] = message

    def done(self, name: str) -> None:
        """It is removed."""
        with self._lock:
            if self._held.pop(name, None) is not None:
                self._tell({"done": name})

    def sweep(self, engine: Engine) -> None:
        """Have what dead belljars left in a local engine removed, meanwhile; once for each engine."""
        from belljar.backends.container.engine.facts import facts

        command = tuple(engine.command())
        with self._lock:
            is_new = command not in self._swept
            self._swept.add(command)
        if is_new and facts(engine).local:
            with self._lock:
                self._tell({"sweep": list(command)})

    def stop(self) -> None:
        """Let go of it: it removes what is left. Waits a moment, not until that is done."""
        with self._lock:
            self._held.clear()
            self._bury(wait_seconds=_EXIT_SECONDS)

    def abandon_after_fork(self) -> None:
        """In a forked child of the user's program: the cleanup process, and what it keeps, are the parent's."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._lock, self._held, self._swept = None, threading.Lock(), {}, set()

    def _tell(self, message: dict[str, Any]) -> None:
        """Say it to the cleanup process. One that was killed is replaced, and told everything again."""
        for _ in range(2):
            try:
                if self._socket is None:
                    self._start()
                assert self._socket is not None
                self._socket.sendall(b"".join(self._lines(message)))
            except OSError:
                self._bury(wait_seconds=0)
            else:
                return
        raise SandboxUnavailableError("the process that removes containers can't be started")

    def _start(self) -> None:
        self._socket, self._pid = _spawn()
        self._environment = {}
        for held in self._held.values():
            self._socket.sendall(b"".join(self._lines(held)))

    def _lines(self, message: dict[str, Any]) -> Iterator[bytes]:
        """The message, after the environment if it has changed."""
        environment = engine_environment()
        if environment != self._environment:
            self._environment = environment
            yield json.dumps({"environment": environment}).encode() + b"\n"
        yield json.dumps(message).encode() + b"\n"

    def _bury(self, *, wait_seconds: float) -> None:
        if self._socket is None:
            return
        self._socket.close()
        self._socket = None
        deadline = time.monotonic() + wait_seconds
        with contextlib.suppress(ChildProcessError):  # somebody else waits for every child of this process
            while os.waitpid(self._pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)


def _spawn() -> tuple[socket.socket, int]:
    """A clean interpreter in a session of its own: no site packages, no environment, no descriptor but the socket."""
    ours, theirs = socket.socketpair()
    package = os.path.dirname(os.path.dirname(os.path.abspath(belljar.__file__)))
    program = (
        f"import sys;sys.path.append({package!r});"
        f"from belljar.backends.container.engine.cleanup_main import main;main({_DESCRIPTOR},{os.getpid()})"
    )
    null = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in (0, 1, 2)]
    with theirs:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-S", "-c", program],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _DESCRIPTOR), *null],
            setsid=True,
            setsigmask=(),
        )
    return ours, pid


CLEANUP_PROCESS = CleanupProcess()
atexit.register(CLEANUP_PROCESS.stop)
os.register_at_fork(after_in_child=CLEANUP_PROCESS.abandon_after_fork)
