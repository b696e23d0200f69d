"""The cleanup process: remembers what belljar made; when belljar is gone, for whatever reason, removes what is left.

A bare interpreter in a session of its own, with one socket. It takes lines of JSON:

    {"environment": {...}}                                       of the engine, for what follows
    {"add": NAME, "kind": "container", "command": ["docker"]}    exists from now on, or will in a moment
    {"add": PATH, "kind": "mount", "command": []}                is mounted, or will be in a moment
    {"done": NAME}                                               is removed
    {"sweep": ["docker"]}                                        remove what earlier belljars left, meanwhile
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from typing import Any

from belljar.backends.container.engine.leftovers import Caller, remove, sweep, unmount

GRACE_SECONDS = 2.0
_SECONDS = 600.0
"""How long it tries. Where many belljars are killed at once, podman takes their containers down one after the other."""
_MOST_BYTES = 65536


def main(descriptor: int, parent: int) -> None:
    """Serve until the socket's other end, or the process `parent`, is gone; then clean up."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(ignored, signal.SIG_IGN)  # its end is belljar's end, whoever wants to stop it
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(descriptor + 1, 1 << 20)
    os.chdir("/")
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as file:
        file.write("belljar-keeper")
    held: dict[str, tuple[str, Caller]] = {}
    with socket.socket(fileno=descriptor) as control:
        environment: dict[str, str] = {}
        for message in _messages(control, parent):
            if "environment" in message:
                environment = message["environment"]
            elif "add" in message:
                held[message["add"]] = message["kind"], Caller(tuple(message["command"]), environment)
            elif "done" in message:
                held.pop(message["done"], None)
            elif "sweep" in message:
                _sweep_apart(Caller(tuple(message["sweep"]), environment), descriptor)
    _clean_up(held)


def _messages(control: socket.socket, parent: int) -> Iterator[dict[str, Any]]:
    """What belljar says, until it is gone. A fork of it that holds the socket is not belljar."""
    waiting, descriptor, life = b"", control.fileno(), _life_of(parent)
    while True:
        ready, _, _ = select.select([descriptor, *life], [], [])
        received = control.recv(_MOST_BYTES) if descriptor in ready else b""
        if not received:
            return
        *lines, waiting = (waiting + received).split(b"\n")
        yield from map(json.loads, lines)
        _reap()


def _life_of(parent: int) -> list[int]:
    """A descriptor that becomes readable when belljar ends, where there is such a thing."""
    try:
        return [os.pidfd_open(parent)]
    except (AttributeError, OSError):
        return []


def _sweep_apart(caller: Caller, descriptor: int) -> None:
    """In a process of its own, so that the end of belljar is never waited for."""
    if os.fork() == 0:
        try:
            os.close(descriptor)
            sweep(caller)
        finally:
            os._exit(0)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        pass


def _clean_up(held: dict[str, tuple[str, Caller]]) -> None:
    for name in [name for name, (kind, _) in held.items() if kind == "mount"]:
        unmount(name)
        with contextlib.suppress(OSError):  # the directory of the Sandbox, when nothing else is in it
            os.rmdir(os.path.dirname(name))
    engines: dict[str, Caller] = {repr(caller): caller for kind, caller in held.values() if kind != "mount"}
    for shown, caller in engines.items():
        mine = [(name, kind) for name, (kind, its) in held.items() if repr(its) == shown]
        remove(
            caller,
            [name for name, kind in mine if kind == "container"],
            [name for name, kind in mine if kind == "volume"],
            grace_seconds=GRACE_SECONDS,
            seconds=_SECONDS,
        )
