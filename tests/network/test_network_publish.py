"""`net.publish`: this host reaches a server of the code's, and nothing else of it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from network_routes import OpenJar

from belljar import Sandbox
from belljar.errors import SandboxUnavailableError
from belljar.sandbox.record.result import Outcome

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"from the jar " + self.path.encode())
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 8000), Handler)
print("up", flush=True)
server.serve_forever()
"""


def free_port() -> int:
    """One that nobody had a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def serving(jar: Sandbox, address: str = "127.0.0.1") -> Iterator[Any]:
    """The server in the jar is up."""
    stream = jar.stream(SERVER, args=[address])
    next(stream)
    drained = threading.Thread(target=lambda: list(stream))
    drained.start()
    try:
        yield stream
    finally:
        stream.kill()
        drained.join()


def get(port: int, path: str = "/") -> str:
    """What the published port answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0"])
def test_the_host_reaches_it(open_jar: OpenJar, address: str) -> None:
    """Many times, much at once, and run after run; the network stays closed to the code."""
    port = free_port()
    jar = open_jar({"net": {"publish": [f"{port}:8000"]}})
    for _ in range(2):
        with serving(jar, address):
            assert [get(port, f"/{number}") for number in range(5)] == [f"from the jar /{n}" for n in range(5)]
            body = b"x" * (5 << 20)
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=body, timeout=20) as answer:
                assert answer.read() == body
    assert jar.run("import socket; socket.create_connection(('192.0.2.1', 80))").outcome is Outcome.FAILED


def test_nothing_is_published_without(open_jar: OpenJar) -> None:
    """The same server, the same port, no `publish`."""
    with serving(open_jar()), pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", 8000), timeout=2)


def test_the_port_is_free_again(open_jar: OpenJar) -> None:
    """When the run has ended, nobody listens any more, and open connections have ended."""
    port = free_port()
    jar = open_jar({"net": {"publish": [f"{port}:8000"]}})
    with serving(jar):
        held = socket.create_connection(("127.0.0.1", port))
        held.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert held.recv(100).startswith(b"HTTP/1.0 200")
        idle = socket.create_connection(("127.0.0.1", port))
    idle.settimeout(10)
    assert idle.recv(1) == b""
    with socket.create_server(("127.0.0.1", port)):
        pass
    held.close()
    idle.close()


def test_nobody_listens_in_there(open_jar: OpenJar) -> None:
    """A connection to a published port ends at once."""
    port = free_port()
    stream = open_jar({"net": {"publish": [f"{port}:8000"]}}).stream("print('up', flush=True); input()", stdin=b"")
    with stream:
        next(stream)
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
            assert connection.recv(1) == b""


def test_a_port_that_is_taken(open_jar: OpenJar) -> None:
    """Is an error that says what to type, and nothing was started."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        jar = open_jar({"net": {"publish": [f"{port}:8000"]}})
        before = time.monotonic()
        with pytest.raises(SandboxUnavailableError, match=f"port {port} of 127.0.0.1") as caught:
            jar.run("pass")
        assert f"--publish {port + 1}:8000" in caught.value.hint
        assert time.monotonic() - before < 30


DEAF = """
import socket, sys
deaf = socket.create_server(("127.0.0.1", 8001), backlog=0)
full = [socket.socket() for _ in range(4)]
for end in full:
    end.setblocking(False)
    end.connect_ex(("127.0.0.1", 8001))
"""


def test_a_server_that_does_not_accept_holds_nobody_up(open_jar: OpenJar) -> None:
    """Whoever connects to it waits; the others, at its port's side, are served meanwhile."""
    deaf, port = free_port(), free_port()
    jar = open_jar({"net": {"publish": [f"{deaf}:8001", f"{port}:8000"]}})
    stream = jar.stream(DEAF + SERVER, args=["127.0.0.1"])
    with stream, contextlib.ExitStack() as stack:
        next(stream)
        drained = threading.Thread(target=lambda: list(stream))
        drained.start()
        waiting = [stack.enter_context(socket.create_connection(("127.0.0.1", deaf))) for _ in range(3)]
        before = time.monotonic()
        assert get(port) == "from the jar /"
        assert time.monotonic() - before < 4
        for end in waiting:  # nothing came of it: not even an end, yet
            end.settimeout(0.1)
            with pytest.raises(TimeoutError):
                end.recv(1)
        stream.kill()
        drained.join()
