"""Tunnels, names and TLS that is passed through, by a real proxy process."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable

import pytest
from proxy_bench import Bench, echo, exchange, read_all, rule, rules, serving

from belljar.egress import ca

Make = Callable[..., Bench]


def test_bytes_pass_both_ways_and_half_close_does(bench: Make) -> None:
    """The server's end comes after the client's: nothing of the answer is lost."""
    with serving(echo) as server:
        run = bench(rules(rule("echo.test", server.port)))
        with run.by_socks("echo.test", server.port) as sock:
            sock.sendall(b"\x00hello")
            assert sock.recv(100) == b"\x00hello"
            sock.sendall(b"bye")
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b"bye"
        closed = run.wait_for(lambda event: event.kind == "closed")
        assert (closed.host, closed.bytes_out, closed.bytes_in) == ("echo.test", 9, 9)


def test_a_server_that_speaks_first_is_heard(bench: Make) -> None:
    def greet(sock: socket.socket) -> None:
        sock.sendall(b"SSH-2.0-test\r\n")
        echo(sock)

    with serving(greet) as server:
        run = bench(rules(rule("ssh.test", server.port)))
        with run.by_socks("ssh.test", server.port) as sock:
            assert sock.recv(100) == b"SSH-2.0-test\r\n"
            sock.sendall(b"ok")
            assert sock.recv(2) == b"ok"


def test_many_megabytes_pass_unchanged(bench: Make) -> None:
    sent = bytes(range(256)) * 4096 * 8
    with serving(echo) as server:
        run = bench(rules(rule("echo.test", server.port)))
        with run.by_socks("echo.test", server.port) as sock:
            writer = threading.Thread(target=lambda: (sock.sendall(sent), sock.shutdown(socket.SHUT_WR)))
            writer.start()
            assert read_all(sock) == sent
            writer.join()


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        (b"other.test", "name-not-listed"),
        (b"echo.test\x00.evil", "name-form"),
        (b"echo.test%00", "name-form"),
        (b"0x7f.1", "address-form"),
        (b"127.0.0.1", "address-not-listed"),
        (b"\xff\xfe", "name-form"),
    ],
)
def test_socks_refuses_what_is_not_listed(bench: Make, host: bytes, reason: str) -> None:
    with serving(echo) as server:
        run = bench(rules(rule("echo.test", server.port)))
        with pytest.raises(ConnectionRefusedError):
            run.by_socks(host, server.port)
        run.wait_for(lambda event: event.reason == reason)
        assert server.accepted == 0


def test_another_port_is_refused_and_told(bench: Make) -> None:
    with serving(echo) as server:
        run = bench(rules(rule("echo.test", server.port)))
        with pytest.raises(ConnectionRefusedError):
            run.by_socks("echo.test", server.port - 1)
        event = run.wait_for(lambda event: event.reason == "port-not-listed")
        assert (event.rule, event.where) == ("net.allowlist[0]", "policy.yaml:7")


def test_an_address_dialled_directly_is_refused_in_http(bench: Make) -> None:
    run = bench(rules())
    with run.connect("tcp") as sock:
        answer = exchange(sock, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"address-not-listed" in answer
    assert b"allow:" in answer


def test_a_name_that_resolves_to_loopback_is_not_dialled(bench: Make) -> None:
    """`localhost` is listed, but where it leads is not public, and no rule names the address."""
    with serving(echo) as server:
        run = bench(rules(rule("localhost", server.port, addresses=())))
        with run.by_socks("localhost", server.port) as sock:
            assert exchange(sock, b"\x00") == b""
        run.wait_for(lambda event: event.reason == "private-address")
        assert server.accepted == 0


def _tls_server(issuer: ca.Issuer, name: str) -> Callable[[socket.socket], None]:
    context = issuer.context(name)

    def handle(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as inside:
            while data := inside.recv(65536):
                inside.sendall(data)

    return handle


@pytest.mark.parametrize(("said", "passes"), [("tls.test", True), ("evil.test", False), (None, False)])
def test_tls_passes_through_when_its_server_name_is_the_host(bench: Make, said: str | None, passes: bool) -> None:
    authority = ca.new_authority()
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.load_verify_locations(cadata=authority.certificate)
    trusting.check_hostname = False
    with serving(_tls_server(ca.Issuer(authority), "tls.test")) as server:
        run = bench(rules(rule("tls.test", server.port)))
        with run.by_socks("tls.test", server.port) as sock:
            if passes:
                with trusting.wrap_socket(sock, server_hostname=said) as inside:
                    inside.sendall(b"secret")
                    assert inside.recv(100) == b"secret"
            else:
                with pytest.raises(OSError):
                    trusting.wrap_socket(sock, server_hostname=said).recv(1)
                reason = "server-name-mismatch" if said else "server-name-missing"
                run.wait_for(lambda event: event.reason == reason)


def test_closing_a_run_ends_its_connections_and_listeners(bench: Make) -> None:
    with serving(echo) as server:
        run = bench(rules(rule("echo.test", server.port)))
        with run.by_socks("echo.test", server.port) as sock:
            sock.sendall(b"\x00")
            assert sock.recv(1) == b"\x00"
            run.close()
            assert read_all(sock) == b""
        with pytest.raises(OSError):
            run.connect("socks")
        assert [event.kind for event in run.events] == ["name", "connect", "closed"]


@pytest.mark.parametrize(
    "pieces",
    [
        (b"G", b"ET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
        (b"\r\n", b"\r\n", b"GET /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
        (b"ODD /x", b" HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
        (b"O", b"DD /x HT", b"TP/1.1\r\nHost: evil.test\r\n\r\n"),
        (b"\x16", b"\x03\x01\x02\x00\x01\x00"),
    ],
)
def test_a_slow_beginning_is_judged_all_the_same(bench: Make, pieces: tuple[bytes, ...]) -> None:
    """It is carried when it must be, but it never becomes a request, or TLS, that nobody judged."""
    arrived: list[bytes] = []

    def swallow(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            arrived.append(data)

    with serving(swallow) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            for number, piece in enumerate(pieces[:-1], start=1):
                sock.sendall(piece)
                _until_carried(arrived, b"".join(pieces[:number]))
            exchange(sock, pieces[-1])
        assert run.wait_for(lambda event: not event.allowed).reason in ("bad-request", "authority-mismatch")
        assert b"evil.test" not in b"".join(arrived)
        assert b"\x03\x01" not in b"".join(arrived)


def _until_carried(arrived: list[bytes], expected: bytes) -> None:
    """Until the server has it; or, for what is never carried, for longer than the proxy is unsure about it."""
    deadline = time.monotonic() + 0.5
    while b"".join(arrived) != expected and time.monotonic() < deadline:
        time.sleep(0.01)


def test_a_slow_beginning_that_is_neither_is_carried(bench: Make) -> None:
    with serving(echo) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            for piece in (b"PI", b"NG\r\n", b"GET / HTTP/1.1\r\n"):
                sock.sendall(piece)
                got = b""
                while len(got) < len(piece):
                    got += sock.recv(100)
                assert got == piece


def test_a_server_that_speaks_first_does_not_hide_a_request(bench: Make) -> None:
    arrived: list[bytes] = []

    def greet(sock: socket.socket) -> None:
        sock.sendall(b"hello\r\n")
        while data := sock.recv(65536):
            arrived.append(data)

    with serving(greet) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            assert sock.recv(100) == b"hello\r\n"
            exchange(sock, b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
        run.wait_for(lambda event: event.reason == "bad-request")
        assert arrived == []
