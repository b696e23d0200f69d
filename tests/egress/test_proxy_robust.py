"""What must not bring the proxy down, hold up other runs, or fill its memory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from proxy_bench import Bench, echo, exchange, http_serving, read_all, rule, rules, serving

from belljar.egress.client.client import ProxyClient
from belljar.errors import SandboxUnavailableError

Make = Callable[..., Bench]
MEGABYTE = 1 << 20


def resident(pid: int) -> int:
    """Bytes of memory that the process holds."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def still_serves(bench: Make) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(b"GET /still HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n")
            assert read_all(sock).endswith(b"GET /still ")


def flood(sock: socket.socket) -> None:
    """An endless response."""
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    while True:
        sock.sendall(chunk)


@pytest.mark.parametrize("how", ["http", "tunnel"])
def test_500_connections_whose_clients_do_not_read(bench: Make, proxy: ProxyClient, how: str) -> None:
    """Each has an endless answer waiting; memory stays within 50 MB of what it was, and another run is served."""
    first = b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n" if how == "http" else b"\x00"
    with serving(flood) as server, contextlib.ExitStack() as stack:
        still_serves(bench)
        idle = resident(proxy.pid)
        run = bench(rules(rule("web.test", server.port)))
        for _ in range(500):
            stack.enter_context(run.by_socks("web.test", server.port)).sendall(first)
        deadline = time.monotonic() + 60
        while server.accepted < 500 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert server.accepted == 500
        _until_steady(proxy.pid)
        grown = resident(proxy.pid) - idle
        assert grown < 50 * MEGABYTE
        still_serves(bench)


def _until_steady(pid: int) -> None:
    looks: list[int] = []
    for _ in range(400):
        looks = [*looks[-4:], resident(pid)]
        if len(looks) == 5 and max(looks) - min(looks) < MEGABYTE // 4:
            return
        time.sleep(0.05)


def test_a_long_download_holds_nothing(bench: Make, proxy: ProxyClient) -> None:
    """200 MB through the relay, read as fast as it comes."""
    total = 200 * MEGABYTE

    def much(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        piece = b"x" * MEGABYTE
        for _ in range(200):
            sock.sendall(piece)

    with serving(much) as server:
        still_serves(bench)
        idle = resident(proxy.pid)
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n")
            got = 0
            while got < total:
                got += len(sock.recv(MEGABYTE))
            assert resident(proxy.pid) - idle < 20 * MEGABYTE


def test_a_server_that_resets(bench: Make) -> None:
    def broken(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    with serving(broken) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(b"\x00")
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        with run.by_socks("web.test", server.port) as sock:
            assert exchange(sock, b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").startswith(b"HTTP/1.1 502 ")
    still_serves(bench)


def test_clients_that_reset_in_the_middle(bench: Make) -> None:
    with serving(flood) as server:
        run = bench(rules(rule("web.test", server.port)))
        for first in (b"", b"GET", b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n", b"\x16\x03\x01\x02", b"\x00"):
            for _ in range(5):
                with run.by_socks("web.test", server.port) as sock:
                    sock.sendall(first)
                    time.sleep(0.01)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    still_serves(bench)


def _until_full(sock: socket.socket) -> None:
    """Until no more arrives: all buffers on the way are full."""
    waiting = [0]
    while not waiting[-1] or waiting[-5:] != waiting[-1:] * 5:
        waiting.append(struct.unpack("i", fcntl.ioctl(sock, termios.FIONREAD, b"\0\0\0\0"))[0])
        time.sleep(0.05)


def test_a_slow_reader_gets_everything(bench: Make) -> None:
    body = os.urandom(MEGABYTE // 2)

    def answer(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body)

    with serving(answer) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            sock.sendall(b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n")
            got = bytearray()
            _until_full(sock)
            while data := sock.recv(8192):
                got += data
                if len(got) < 100_000:
                    time.sleep(0.01)
            assert got.endswith(body)


def test_more_connections_than_a_run_may_have_wait(bench: Make) -> None:
    """They are served when others have ended."""
    with serving(echo) as server:
        run = bench(rules(rule("web.test", server.port)))
        held = [run.connect("socks") for _ in range(1024)]
        late = run.connect("socks")
        late.settimeout(0.5)
        late.sendall(b"\x05\x01\x00")
        with pytest.raises(TimeoutError):
            late.recv(2)
        for sock in held:
            sock.close()
        late.settimeout(10)
        assert late.recv(2) == b"\x05\x00"
        late.close()


def test_a_proxy_that_dies_is_reported_and_nothing_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path))
    client = ProxyClient()
    with serving(echo) as server:
        run = Bench(client, rules(rule("web.test", server.port)))
        sock = run.by_socks("web.test", server.port)
        sock.sendall(b"\x00")
        assert sock.recv(1) == b"\x00"
        os.kill(client.pid, signal.SIGKILL)
        assert read_all(sock) == b""
        sock.close()
        event = run.wait_for(lambda event: event.kind == "proxy")
        assert "died" in event.detail
        assert not run.served.alive
        with pytest.raises(OSError):
            run.connect("socks")
        run.close()
        again = Bench(client, rules(rule("web.test", server.port)))
        with again.by_socks("web.test", server.port) as sock:
            sock.sendall(b"\x00")
            assert sock.recv(1) == b"\x00"
        again.close()
        client.stop()
        assert client.pid == 0


def test_a_proxy_that_dies_while_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_STATE_DIR", str(tmp_path))
    client = ProxyClient()
    client.start()
    os.kill(client.pid, signal.SIGSTOP)
    killer = threading.Timer(0.3, os.kill, (client.pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(SandboxUnavailableError):
        Bench(client, rules())
    killer.join()


def test_it_runs_as_nobody(proxy: ProxyClient) -> None:
    """Nothing that only root may is needed to handle what hostile code sends."""
    status = Path(f"/proc/{proxy.pid}/status").read_text()
    uids = next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1:]
    wanted = "65534" if os.geteuid() == 0 else str(os.geteuid())
    assert set(uids) == {wanted}


def test_runs_come_and_go(bench: Make, proxy: ProxyClient) -> None:
    """A hundred runs leave no descriptor behind."""
    with serving(echo) as server:
        for _ in range(3):
            run = bench(rules(rule("web.test", server.port)))
            run.close()
        before = len(os.listdir(f"/proc/{proxy.pid}/fd"))
        for _ in range(100):
            run = bench(rules(rule("web.test", server.port)))
            sock = run.by_socks("web.test", server.port)
            sock.sendall(b"\x00")
            run.close()
            sock.close()
        assert len(os.listdir(f"/proc/{proxy.pid}/fd")) <= before
