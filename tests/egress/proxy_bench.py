"""A proxy process, rules for it, and servers on loopback for the tests of this directory."""

from __future__ import annotations

import contextlib
import http.server
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from belljar.egress.client.client import ProxyClient, Served, ServedListener
from belljar.egress.decide.rules import Rule, Rules
from belljar.egress.events import Event


def rule(host: str, port: int, **more: Any) -> Rule:
    """An allow rule for a host that is this machine's loopback."""
    values: dict[str, Any] = {"ports": (port,), "addresses": (f"127.0.0.1:{port}",), **more}
    return Rule(0, "net.allowlist[0]", "policy.yaml:7", host, **values)


def rules(*allow: Rule, **more: Any) -> Rules:
    return Rules(allow=allow, **more)


class Bench:
    """A run that a real proxy process serves, with a listener for each role on loopback."""

    def __init__(self, proxy: ProxyClient, given: Rules, **more: Any) -> None:
        self.events: list[Event] = []
        self._heard = threading.Condition()
        self._record: Callable[[list[Event]], str | None] = more.get("record", lambda _events: None)
        self.ports: dict[str, int] = {}
        listeners = []
        for role in ("http-proxy", "socks", "dns-udp", "dns-tcp", "tcp"):
            kind = socket.SOCK_DGRAM if role == "dns-udp" else socket.SOCK_STREAM
            sock = socket.socket(socket.AF_INET, kind)
            sock.bind(("127.0.0.1", 0))
            if kind == socket.SOCK_STREAM:
                sock.listen(1024)
            self.ports[role] = sock.getsockname()[1]
            listeners.append(ServedListener(role, self.ports[role], sock.detach()))
        self.served: Served = proxy.serve(
            f"run-{os.urandom(4).hex()}",
            given,
            more.get("secrets", {}),
            more.get("canaries", ()),
            listeners,
            more.get("ca_file"),
            self._take,
        )

    def _take(self, events: list[Event]) -> str | None:
        with self._heard:
            self.events += events
            self._heard.notify_all()
        return self._record(events)

    def wait_for(self, wanted: Callable[[Event], bool], seconds: float = 5.0) -> Event:
        """The first event of this kind, once it has come."""
        deadline = time.monotonic() + seconds
        with self._heard:
            while True:
                for event in self.events:
                    if wanted(event):
                        return event
                assert self._heard.wait(max(0.0, deadline - time.monotonic())), self.events

    def denials(self) -> list[tuple[str, str, int, str]]:
        return [(event.kind, event.host, event.port, event.reason) for event in self.events if not event.allowed]

    def connect(self, role: str) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.ports[role]), timeout=10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def by_socks(self, host: str | bytes, port: int) -> socket.socket:
        """A connection to a name through SOCKS; raises ConnectionRefusedError with the reply's code."""
        name = host.encode() if isinstance(host, str) else host
        sock = self.connect("socks")
        try:
            sock.sendall(b"\x05\x01\x00")
            assert sock.recv(2) == b"\x05\x00"
            sock.sendall(b"\x05\x01\x00\x03" + bytes((len(name),)) + name + port.to_bytes(2, "big"))
            answer = sock.recv(10)
            if answer[1:2] != b"\x00":
                raise ConnectionRefusedError(answer.hex())
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        self.served.close()


class Server:
    """A server on loopback: each connection is given to `handle` in a thread of its own."""

    def __init__(self, handle: Callable[[socket.socket], None], *, family: int = socket.AF_INET) -> None:
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.bind(("::1" if family == socket.AF_INET6 else "127.0.0.1", 0))
        self._listener.listen(1024)
        self.port: int = self._listener.getsockname()[1]
        self.accepted = 0
        self._handle = handle
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                sock, _peer = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._open.add(sock)
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError, ValueError):
            self._handle(sock)
        self._open.discard(sock)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


def echo(sock: socket.socket) -> None:
    """Sends back what comes, and its own end after the other's."""
    while data := sock.recv(65536):
        sock.sendall(data)


@contextlib.contextmanager
def serving(handle: Callable[[socket.socket], None], **more: Any) -> Iterator[Server]:
    server = Server(handle, **more)
    try:
        yield server
    finally:
        server.close()


def read_all(sock: socket.socket) -> bytes:
    """Everything until the end, or a reset."""
    pieces = []
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(65536):
            pieces.append(data)
    return b"".join(pieces)


def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send this and no more; everything that comes back."""
    with contextlib.suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
    return read_all(sock)


Events = Sequence[Event]


class HttpServer:
    """An HTTP/1.1 server on loopback, plain or TLS, that remembers what it was asked."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        seen: list[tuple[str, str, dict[str, str], bytes]] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _answer(self) -> None:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = b""
                    while size := int(self.rfile.readline(), 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                else:
                    body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                if self.path.startswith("/close"):
                    self.send_response(200)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    self.wfile.write(b"until the end")
                    self.close_connection = True
                elif self.path.startswith("/chunks"):
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for word in (b"one ", b"two ", b"three"):
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(word), word))
                    self.wfile.write(b"0\r\n\r\n")
                elif self.path.startswith("/empty"):
                    self.send_response(304 if "304" in self.path else 204)
                    self.end_headers()
                else:
                    said = b"%s %s %s" % (self.command.encode(), self.path.encode(), body)
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(said)))
                    self.send_header("X-Seen", str(len(seen)))
                    self.end_headers()
                    if self.command != "HEAD":
                        self.wfile.write(said)

            do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = do_OPTIONS = _answer  # noqa: N815

            def log_message(self, *_arguments: Any) -> None:
                pass

        self.seen = seen
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_arguments: None  # type: ignore[method-assign]
        if context is not None:
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextlib.contextmanager
def http_serving(context: ssl.SSLContext | None = None) -> Iterator[HttpServer]:
    server = HttpServer(context)
    try:
        yield server
    finally:
        server.close()


def curl(*arguments: str) -> tuple[int, str]:
    """Run the real curl; its exit code and what it printed."""
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "15", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.environ["PATH"]},
    )
    return done.returncode, done.stdout + done.stderr
