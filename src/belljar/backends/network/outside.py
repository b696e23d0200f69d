"""Gateways for jars that an engine makes: a small process of one thread lays the cable, because belljar may have many.

It gets the pid of the jar's first process, makes what is asked for, hands the sockets back, and ends; with a port
forward it stays in the jar's network until its socket closes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import NoReturn

import belljar
from belljar.backends.contract import Listener
from belljar.backends.network import gateway, port_forward
from belljar.errors import SandboxUnavailableError

_SECONDS = 20.0


class OutsideGateway:
    """The sockets of a jar's gateway, and its port forward if it has one."""

    def __init__(self, pid: int, ports: Sequence[int] | None, *, publishes: bool) -> None:
        """Lay the cable; `ports` None for a jar that reaches nothing and only has a port forward.

        Raises:
            SandboxUnavailableError: with what could not be done.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._process = _spawn(theirs)
        ours.settimeout(_SECONDS)
        try:
            ours.send(json.dumps({"pid": pid, "ports": ports, "publishes": publishes}).encode())
            self.listeners = gateway.receive(ours) if ports is not None else ()
            if ports is None:
                ours.recv(1)
        except OSError as error:
            ours.close()
            self._process.wait()
            raise SandboxUnavailableError(f"the container's gateway could not be made: {error.strerror}") from error
        ours.settimeout(None)
        if publishes:
            self.listeners += (Listener("door", 0, ours.detach()),)
        else:
            ours.close()
            self._process.wait()

    def take(self) -> tuple[Listener, ...]:
        """The sockets, which are the caller's from now on."""
        taken, self.listeners = self.listeners, ()
        return taken

    def close(self) -> None:
        """The run is over, or never came: so is its gateway."""
        for listener in self.take():
            os.close(listener.descriptor)
        self._process.kill()
        self._process.wait()


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    package = os.path.dirname(os.path.dirname(os.path.abspath(belljar.__file__)))
    program = f"import sys;sys.path.append({package!r});from belljar.backends.network.outside import main;main()"
    with theirs:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", program],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={},
            start_new_session=True,
        )


def main() -> NoReturn:
    """Be that process, with the socket as standard input."""
    control = socket.socket(fileno=os.dup(0))
    try:
        asked = json.loads(control.recv(1 << 16))
        if asked["ports"] is not None:
            gateway.build_for(control, asked["pid"], asked["ports"])
        else:
            control.send(b"\0")
        if asked["publishes"]:
            port_forward.stay(control, asked["pid"])
    finally:
        os._exit(0)


__all__ = ["OutsideGateway", "main"]
