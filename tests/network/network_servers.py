"""Servers on the loopback of the tests, each with a memory of what reached it: threads that a test starts and stops."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Self

_BACKLOG = 64
_SLOWEST_SECONDS = 60.0


class Server:
    """Accepts TCP connections on a port of its own, and gives each to `serve` in a thread.

    `heard` has one text for each connection, before anything was read, and what `serve` adds to it.
    """

    def __init__(
        self,
        serve: Callable[[socket.socket, Server], None] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
    ) -> None:
        self._serve = serve
        self._tls = tls
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self.heard: list[str] = []
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=_BACKLOG)
        self._host = f"[{host}]" if ":" in host else host
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    @property
    def address(self) -> str:
        """As a rule pins it."""
        return f"{self._host}:{self.port}"

    def note(self, text: str) -> None:
        """Remember something."""
        with self._lock:
            self.heard.append(text)

    def forget(self) -> None:
        """Begin a new memory."""
        with self._lock:
            self.heard = []

    def serve(self, connection: socket.socket) -> None:
        """One connection, until its end."""
        if self._serve is not None:
            self._serve(connection, self)

    def ended(self, seconds: float) -> bool:
        """Whether every connection that there was has ended, within this time."""
        for thread in self._threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self._threads)

    def close(self) -> None:
        """End every connection and every thread."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._accepting.join(10)
        self._listener.close()
        with self._lock:
            still = list(self._open)
        for connection in still:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
                self.heard.append("connection")
            thread = threading.Thread(target=self._run, args=(connection,), daemon=True)
            self._threads = [each for each in self._threads if each.is_alive()]
            self._threads.append(thread)
            thread.start()

    def _run(self, plain: socket.socket) -> None:
        connection = plain
        try:
            plain.settimeout(_SLOWEST_SECONDS)
            if self._tls is not None:
                plain.getpeername()  # of one that was reset already, wrap_socket would lose the descriptor
                connection = self._tls.wrap_socket(plain, server_side=True)
                with self._lock:
                    self._open = (self._open - {plain}) | {connection}
            self.serve(connection)
        except (OSError, ValueError):  # whoever called hangs up as he likes; wrap_socket has ValueError for that, too
            pass
        finally:
            with self._lock:
                self._open -= {plain, connection}
            connection.close()
            plain.close()


def echo(connection: socket.socket, server: Server) -> None:
    """Send back what comes, until the other side says that it is done."""
    while data := connection.recv(1 << 16):
        server.note(data.decode(errors="replace"))
        connection.sendall(data)
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)


class Datagrams:
    """A UDP port that answers with what it hears."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.settimeout(0.2)
        self.port = int(self._socket.getsockname()[1])
        self.heard: list[bytes] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                data, sender = self._socket.recvfrom(4096)
                self.heard.append(data)
                self._socket.sendto(data, sender)

    def close(self) -> None:
        """Listen no longer."""
        self._over.set()
        self._thread.join(10)
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()
