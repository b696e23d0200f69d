"""What the proxy decides is recorded before it is done, and what can't be recorded is not done."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from proxy_bench import Bench, Server, rule, rules, serving

from belljar.egress.events import UNRECORDED, Event

Make = Callable[..., Bench]
SECONDS = 10
SENT: list[bytes] = []
"""What the server was asked for."""


class Log:
    """Takes events, and answers when it is told to; before that to those without an event of the kind `held`."""

    def __init__(self, held: str = "") -> None:
        self.held = held
        self.open = threading.Event()
        self.written: list[str] = []
        self.answer: str | None = None

    def __call__(self, events: list[Event]) -> str | None:
        if not self.held or any(event.kind == self.held for event in events):
            assert self.open.wait(SECONDS)
        self.written += [event.kind for event in events]
        return self.answer


def answer(sock: socket.socket) -> None:
    """Say to each request what it asked for."""
    heard = b""
    while data := sock.recv(4096):
        heard += data
        while b"\r\n\r\n" in heard:
            head, _, heard = heard.partition(b"\r\n\r\n")
            path = head.split(b" ")[1]
            SENT.append(path)
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(path), path))


@pytest.fixture
def server() -> Iterator[Server]:
    """A web server on loopback."""
    SENT.clear()
    with serving(answer) as one:
        yield one


def until(sock: socket.socket, wanted: bytes) -> bytes:
    """What comes, up to this."""
    heard = b""
    while not heard.endswith(wanted):
        data = sock.recv(4096)
        assert data, heard
        heard += data
    return heard


def ask(run: Bench, port: int, path: str = "/x") -> socket.socket:
    """Send a request through SOCKS, and read nothing yet."""
    sock = run.by_socks("web.test", port)
    sock.settimeout(SECONDS)
    sock.sendall(f"GET {path} HTTP/1.1\r\nHost: web.test:{port}\r\n\r\n".encode())
    return sock


@pytest.mark.parametrize("methods", [(), ("GET",)], ids=["passed through", "looked into"])
def test_nothing_is_dialled_before_it_is_written(bench: Make, server: Server, methods: tuple[str, ...]) -> None:
    """A log that takes its time holds the connection up; then it goes on as if nothing had been."""
    held = "request" if methods else "connect"
    log = Log(held)
    run = bench(rules(rule("web.test", server.port, methods=methods)), record=log)
    with ask(run, server.port) as sock:
        run.wait_for(lambda event: event.kind == held)
        assert server.accepted == 0
        assert held not in log.written
        log.open.set()
        assert sock.recv(12) == b"HTTP/1.1 200"
    assert server.accepted == 1
    assert log.written[:2] == ["name", "connect"]


def test_no_request_is_sent_on_before_it_is_written(bench: Make, server: Server) -> None:
    """The connection to the server is there already, and hears nothing."""
    log = Log()
    log.open.set()
    run = bench(rules(rule("web.test", server.port, methods=("GET",))), record=log)
    with ask(run, server.port, "/first") as sock:
        assert until(sock, b"/first")
        log.open.clear()
        sock.sendall(f"GET /second HTTP/1.1\r\nHost: web.test:{server.port}\r\n\r\n".encode())
        run.wait_for(lambda event: event.path == "/second")
        assert SENT == [b"/first"]
        log.open.set()
        assert until(sock, b"/second")
    assert SENT == [b"/first", b"/second"]


def test_what_cannot_be_written_is_refused(bench: Make, server: Server) -> None:
    """With a reason that can be read; and nothing passes later, either."""
    log = Log()
    log.open.set()
    log.answer = UNRECORDED
    run = bench(rules(rule("web.test", server.port, methods=("GET",))), record=log)
    for _attempt in range(2):
        with ask(run, server.port) as sock:
            answer = sock.recv(4096)
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"X-Belljar-Reason: unrecorded\r\n" in answer
        log.answer = None
    assert server.accepted == 0


def test_a_fault_of_whoever_records_refuses(bench: Make, server: Server) -> None:
    """It is taken for a record that could not be written, not for one that was."""

    def broken(_events: list[Event]) -> str | None:
        raise ValueError("broken")

    run = bench(rules(rule("web.test", server.port)), record=broken)
    with ask(run, server.port) as sock:
        assert b"X-Belljar-Reason: unrecorded\r\n" in sock.recv(4096)
    assert server.accepted == 0


def test_one_run_does_not_wait_for_the_decisions_of_others(bench: Make, server: Server) -> None:
    """Many connections at once: each goes on when its own decision is written, so none waits for ever."""
    run = bench(rules(rule("web.test", server.port, methods=("GET",))))
    socks = [ask(run, server.port, f"/{number}") for number in range(40)]
    for sock in socks:
        assert sock.recv(12) == b"HTTP/1.1 200"
        sock.close()
