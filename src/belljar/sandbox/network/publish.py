"""Ports of this host's loopback that lead to servers in a jar (`net.publish`, `--publish`)."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
from collections.abc import Sequence
from typing import Self

from belljar.backends.network.port_forward import ask
from belljar.errors import SandboxUnavailableError

_MOST_CONNECTIONS = 128
_CHUNK = 1 << 16


class Published:
    """The listeners of one run. They are there before the code starts, and gone when it has ended."""

    def __init__(self, ports: Sequence[str]) -> None:
        self._forward: socket.socket | None = None
        self._turn = threading.Lock()
        self._open: set[socket.socket] = set()
        self._closed = False
        self._listeners: list[tuple[socket.socket, int]] = []
        for words in ports:
            outside, _, inside = words.partition(":")
            try:
                listener = socket.create_server(("127.0.0.1", int(outside)))
            except OSError as error:
                self.close()
                raise SandboxUnavailableError(
                    f"port {outside} of 127.0.0.1 can't be published: {error.strerror}",
                    hint=f"choose another: --publish {int(outside) + 1}:{inside or outside}",
                ) from error
            self._listeners.append((listener, int(inside or outside)))

    def start(self, forward: int) -> None:
        """Let connections in through the jar's port forward, a descriptor that is taken over."""
        self._forward = socket.socket(fileno=forward)
        for listener, port in self._listeners:
            threading.Thread(
                target=self._accept, args=(listener, port), daemon=True, name=f"belljar-publish-{port}"
            ).start()

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            try:
                outside, _address = listener.accept()
            except OSError:  # closed, at the run's end
                return
            with self._turn:
                full = self._closed or len(self._open) >= _MOST_CONNECTIONS
                if not full:
                    self._open.add(outside)
            if full:
                outside.close()
                continue
            threading.Thread(target=self._serve, args=(outside, port), daemon=True, name="belljar-relay").start()

    def _serve(self, outside: socket.socket, port: int) -> None:
        with outside:
            try:
                with self._connect(port) as inside:
                    self._relay(outside, inside)
            except OSError:  # nobody listens in there, yet or any more
                pass
            finally:
                with self._turn:
                    self._open.discard(outside)

    def _connect(self, port: int) -> socket.socket:
        with self._turn:
            if self._forward is None:
                raise OSError(errno.EPIPE, "the run has ended")
            forward = self._forward.dup()
        with forward:
            connection = ask(forward, port)
        connection.setblocking(True)  # noqa: FBT003
        return connection

    def _relay(self, outside: socket.socket, inside: socket.socket) -> None:
        other = threading.Thread(target=_pump, args=(inside, outside), daemon=True, name="belljar-relay-back")
        other.start()
        _pump(outside, inside)
        other.join()

    def close(self) -> None:
        """Nothing is published any more, and every connection ends."""
        with self._turn:
            self._closed = True
            connections = list(self._open)
            forward, self._forward = self._forward, None
        for listener, _port in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
            listener.close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        if forward is not None:
            forward.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()


def _pump(source: socket.socket, target: socket.socket) -> None:
    """Everything from one to the other, then its end."""
    with contextlib.suppress(OSError):
        while chunk := source.recv(_CHUNK):
            target.sendall(chunk)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
