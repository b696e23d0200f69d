"""Crowds and floods: the proxy's memory never goes 60 MB above idle, another run is served meanwhile, and it lives on.

The proxy is one of its own, so that the most it ever held (`VmHWM`, which the kernel keeps) is of these tests alone.
"""

from __future__ import annotations

import contextlib
import queue
import resource
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from http2_server import Http2Server
from proxy_bench import Bench, Server, echo, read_all, rule, rules, serving

from belljar.egress import ca
from belljar.egress.client.client import ProxyClient

pytestmark = pytest.mark.slow

Make = Callable[..., Bench]
MEGABYTE = 1 << 20
MOST = 60 * MEGABYTE
CROWD = 500
PATIENCE = 60.0
"""Seconds after which something that never comes has failed: for a machine that is busy with other things."""
RESET = struct.pack("ii", 1, 0)
ASK = b"GET /ok HTTP/1.1\r\nHost: web.test\r\n\r\n"
CHUNK = b"100000\r\n" + bytes(MEGABYTE) + b"\r\n"


def memory(pid: int, what: str) -> int:
    """Bytes: `VmRSS` is what the process holds, `VmHWM` the most that it ever held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(what)


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyClient]:
    """A proxy that has served a request of each kind, and is idle."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a crowd has both its ends in this process
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BELLJAR_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        client = ProxyClient()
        client.start()
        yield client
        client.stop()


class Other:
    """Another run of the same proxy, with a server that answers at once."""

    def __init__(self, bench: Make, server: Server) -> None:
        self._run = bench(rules(rule("web.test", server.port)))
        self._port = server.port

    def is_served(self) -> None:
        with patient(self._run.by_socks("web.test", self._port)) as sock:
            sock.sendall(ASK)
            assert sock.recv(65536).endswith(b"\r\n\r\nok")


@pytest.fixture
def other(bench: Make, proxy: ProxyClient, idle: int) -> Iterator[Other]:
    """It is served before and after the test, whose own memory was within bounds; the proxy is still the same."""
    pid = proxy.pid
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # from here on the most is that of this test
    with serving(answer) as server:
        one = Other(bench, server)
        one.is_served()
        yield one
        one.is_served()
    assert proxy.pid == pid
    assert memory(pid, "VmHWM") - idle <= MOST


@pytest.fixture(scope="module")
def idle(proxy: ProxyClient) -> int:
    """What it holds once it has served something."""
    with serving(answer) as server:
        run = Bench(proxy, rules(rule("web.test", server.port)))
        Other(lambda _rules: run, server).is_served()
        run.close()
    return memory(proxy.pid, "VmRSS")


def until_at_rest(pid: int) -> None:
    """Wait until the process has nothing to do."""
    used: list[int] = []
    for _look in range(int(PATIENCE) * 10):
        used = [*used[-7:], sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))]
        if used == used[-1:] * 8:
            return
        time.sleep(0.1)


def patient(sock: socket.socket) -> socket.socket:
    sock.settimeout(PATIENCE)
    return sock


def answer(sock: socket.socket) -> None:
    """Answers small requests, one after the other."""
    while sock.recv(65536):
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


def endless(sock: socket.socket) -> None:
    sock.recv(65536)
    sock.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        sock.sendall(CHUNK)


def read_exactly(sock: socket.socket, count: int) -> bytes:
    read = bytearray()
    while len(read) < count:
        data = sock.recv(count - len(read))
        assert data, bytes(read)
        read += data
    return bytes(read)


def read_head(sock: socket.socket) -> bytes:
    read = b""
    while not read.endswith(b"\r\n\r\n"):
        read += read_exactly(sock, 1)
    return read


# --- crowds ----------------------------------------------------------------------------------------------------------


def test_500_tunnels_and_500_requests_at_once(bench: Make, other: Other) -> None:
    """All are open at the same time, and each gets its own answer."""
    with serving(echo) as tunnels, serving(answer) as web, contextlib.ExitStack() as stack:
        run = bench(rules(rule("echo.test", tunnels.port), rule("web.test", web.port)))
        carried = [stack.enter_context(patient(run.by_socks("echo.test", tunnels.port))) for _ in range(CROWD)]
        for number, sock in enumerate(carried):
            sock.sendall(b"\0%05d" % number)
        asking = [stack.enter_context(patient(run.connect("http-proxy"))) for _ in range(CROWD)]
        for sock in asking:
            sock.sendall(b"GET http://web.test:%d/ok HTTP/1.1\r\nHost: web.test:%d\r\n\r\n" % (web.port, web.port))
        other.is_served()
        for sock in asking:
            assert read_head(sock).startswith(b"HTTP/1.1 200 ")
            assert read_exactly(sock, 2) == b"ok"
        for number, sock in enumerate(carried):
            assert read_exactly(sock, 6) == b"\0%05d" % number


@pytest.mark.parametrize("endlessly", [False, True], ids=["answered", "never read an endless answer"])
def test_500_opened_connections_at_once(
    bench: Make, other: Other, proxy: ProxyClient, tmp_path: Path, endlessly: bool
) -> None:
    """TLS with both sides of each, which alone takes 50 KB."""
    authority = ca.new_authority()
    roots = tmp_path / "roots.pem"
    roots.write_text(authority.certificate)
    server_side = ca.Issuer(authority).context("web.test")
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.load_verify_locations(cadata=proxy.authority().certificate)

    def answer_inside(sock: socket.socket) -> None:
        with server_side.wrap_socket(sock, server_side=True) as inside:
            (endless if endlessly else answer)(inside)

    with serving(answer_inside) as server, contextlib.ExitStack() as stack:
        run = bench(rules(rule("web.test", server.port, methods=("GET",))), ca_file=str(roots))
        opened = []
        for _ in range(CROWD):
            sock = patient(run.by_socks("web.test", server.port))
            opened.append(stack.enter_context(client_side.wrap_socket(sock, server_hostname="web.test")))
        for inside in opened:
            inside.sendall(ASK)
        other.is_served()
        if endlessly:
            until_at_rest(proxy.pid)
            return
        for inside in opened:
            assert read_head(inside).startswith(b"HTTP/1.1 200 ")
            assert read_exactly(inside, 2) == b"ok"


def test_clients_that_never_finish_their_heads(bench: Make, other: Other) -> None:
    """A byte now and then, at every way in."""
    pieces = (
        b"GET / HTTP/1.1\r\nA: ",
        b"CONNECT web.test:",
        b"\x05\xff\x00",
        b"\x16\x03\x01\x02\x00\x01",
        b"P",
        b"\0\0",
    )
    with serving(answer) as server, contextlib.ExitStack() as stack:
        run = bench(rules(rule("web.test", server.port, methods=("GET",))))
        slow = []
        for number in range(CROWD):
            sock = run.connect(("http-proxy", "socks", "tcp", "dns-tcp")[number % 4])
            slow.append(stack.enter_context(sock))
        for turn in range(5):
            for number, sock in enumerate(slow):
                piece = pieces[number % len(pieces)]
                with contextlib.suppress(OSError):
                    sock.sendall(piece if not turn else b"x")
            other.is_served()


def test_half_closed_both_ways(bench: Make, other: Other) -> None:
    """What one side still has to say arrives after the other has said its end."""
    size = 64 << 10

    def waits_for_the_end(sock: socket.socket) -> None:
        sock.sendall(b"%08d" % len(read_all(sock)) + bytes(size))

    def ends_first(sock: socket.socket) -> None:
        sock.sendall(bytes(size))
        sock.shutdown(socket.SHUT_WR)
        heard.put(len(read_all(sock)))

    heard: queue.Queue[int] = queue.Queue()
    with serving(waits_for_the_end) as late, serving(ends_first) as early, contextlib.ExitStack() as stack:
        run = bench(rules(rule("late.test", late.port), rule("early.test", early.port)))
        asked = [stack.enter_context(patient(run.by_socks("late.test", late.port))) for _ in range(100)]
        told = [stack.enter_context(patient(run.by_socks("early.test", early.port))) for _ in range(100)]
        for sock in asked:
            sock.sendall(b"\0" * 5000)
            sock.shutdown(socket.SHUT_WR)
        for sock in told:
            assert len(read_all(sock)) == size
        other.is_served()
        for sock in asked:
            assert read_exactly(sock, 8) == b"00005000"
            assert len(read_all(sock)) == size
        for sock in told:
            sock.sendall(b"\0" * 7000)
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b""
        assert [heard.get(timeout=PATIENCE) for _ in told] == [7000] * 100


@pytest.mark.parametrize("after", [0, 1, 10 * MEGABYTE], ids=["at once", "in the head", "in the body"])
def test_servers_that_reset(bench: Make, other: Other, after: int) -> None:
    """A client never takes what was cut off for a whole answer."""

    def breaks_off(sock: socket.socket) -> None:
        sock.recv(65536)
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (20 * MEGABYTE)
        sock.sendall(head[:after] if after < len(head) else head + bytes(after))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    with serving(breaks_off) as server, contextlib.ExitStack() as stack:
        run = bench(rules(rule("web.test", server.port)))
        asking = [stack.enter_context(patient(run.by_socks("web.test", server.port))) for _ in range(20)]
        for sock in asking:
            sock.sendall(ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        other.is_served()
        for sock in asking:
            said = read_all(sock)
            assert len(said) < 20 * MEGABYTE
            assert not said or said.startswith(b"HTTP/1.1 200 " if after > 1 else b"HTTP/1.1 502 ")


# --- floods ----------------------------------------------------------------------------------------------------------


def test_2_gigabytes(bench: Make, other: Other) -> None:
    """Generated, relayed as a response, and all of it arrives."""
    total = 2 << 30

    def much(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % total)
        piece = bytes(MEGABYTE)
        for _piece in range(total // MEGABYTE):
            sock.sendall(piece)

    room = memoryview(bytearray(MEGABYTE))
    with serving(much) as server:
        run = bench(rules(rule("web.test", server.port)))
        with patient(run.by_socks("web.test", server.port)) as sock:
            sock.sendall(ASK)
            assert b"Content-Length: %d\r\n" % total in read_head(sock)
            left = total
            while left:
                count = sock.recv_into(room)
                assert count, left
                if left // (512 * MEGABYTE) != (left - count) // (512 * MEGABYTE):
                    other.is_served()
                left -= count


def test_an_endless_response_ends_with_its_client(bench: Make, other: Other) -> None:
    """The server hears of it when the client has gone."""
    ended = threading.Semaphore(0)

    def until_cut_off(sock: socket.socket) -> None:
        try:
            endless(sock)
        finally:
            ended.release()

    with serving(until_cut_off) as server:
        run = bench(rules(rule("web.test", server.port)))
        for _ in range(3):
            with patient(run.by_socks("web.test", server.port)) as sock:
                sock.sendall(ASK)
                read_exactly(sock, 30 * MEGABYTE)
                other.is_served()
        for _ in range(3):
            assert ended.acquire(timeout=PATIENCE)


@pytest.mark.parametrize("body", [b"Content-Length: 9999999999", b"Transfer-Encoding: chunked"])
def test_servers_that_never_read(bench: Make, other: Other, body: bytes) -> None:
    """Endless uploads: each client is made to wait."""
    done = threading.Event()

    def deaf(_sock: socket.socket) -> None:
        done.wait(PATIENCE)

    with serving(deaf) as server, contextlib.ExitStack() as stack:
        run = bench(rules(rule("web.test", server.port, methods=("POST",))))
        head = b"POST /ok HTTP/1.1\r\nHost: web.test\r\n%s\r\n\r\n" % body
        flood(crowd(stack, run, server.port, 100), head + CHUNK * 16)
        other.is_served()
        done.set()


def test_requests_without_end_from_clients_that_never_read(bench: Make, other: Other) -> None:
    """Pipelined, refused as well as allowed."""
    with serving(answer) as server, contextlib.ExitStack() as stack:
        run = bench(rules(rule("web.test", server.port, paths=("/ok",))))
        flood(crowd(stack, run, server.port, 20), ASK * 20_000)
        flood(crowd(stack, run, server.port, 20), ASK.replace(b"/ok", b"/no") * 20_000)
        other.is_served()


def flood(socks: list[socket.socket], data: bytes) -> None:
    """Send this from each, until nobody takes more of it for so long that nobody is about to."""
    left = dict.fromkeys(socks, memoryview(data))
    for sock in socks:
        sock.setblocking(False)
    while left:
        _readable, writable, _broken = select.select([], list(left), [], 2.0)
        if not writable:
            return
        for sock in writable:
            try:
                left[sock] = left[sock][sock.send(left[sock][:MEGABYTE]) :]
            except BlockingIOError:
                continue
            except OSError:  # the proxy has had enough of it
                left[sock] = left[sock][:0]
            if not left[sock]:
                del left[sock]


def crowd(stack: contextlib.ExitStack, run: Bench, port: int, count: int) -> list[socket.socket]:
    """Connections to the server, of clients that have little room."""
    socks = [stack.enter_context(run.by_socks("web.test", port)) for _ in range(count)]
    for sock in socks:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return socks


def _pings(connection: H2Connection) -> None:
    connection.ping(b"belljar!")


def _settings(connection: H2Connection) -> None:
    connection.update_settings({})


def _refused(connection: H2Connection) -> None:
    number = connection.get_next_available_stream_id()
    connection.send_headers(number, _head("/no"), end_stream=True)
    connection.reset_stream(number)


def _dropped(connection: H2Connection) -> None:
    number = connection.get_next_available_stream_id()
    connection.send_headers(number, _head("/ok"), end_stream=True)
    connection.reset_stream(number)


def _head(path: str) -> list[tuple[str, str]]:
    return [(":method", "GET"), (":scheme", "http"), (":authority", "web.test"), (":path", path)]


@pytest.mark.parametrize("frame", [_pings, _settings, _refused, _dropped])
def test_frames_without_end_from_clients_that_never_read(
    bench: Make, other: Other, frame: Callable[[H2Connection], None]
) -> None:
    """HTTP/2: what calls for an answer each time, without flow control."""
    with serving(Http2Server().handle) as server, contextlib.ExitStack() as stack:
        run = bench(rules(rule("web.test", server.port, paths=("/ok",))))
        connection = H2Connection(H2Configuration(header_encoding="utf-8"))
        connection.initiate_connection()
        opening = connection.data_to_send()
        for _ in range(3000):
            frame(connection)
        frames = connection.data_to_send()
        repeat = 100 if frame in (_pings, _settings) else 1  # numbers of streams can't be used twice
        flood(crowd(stack, run, server.port, 10), opening + frames * repeat)
        other.is_served()


def test_streams_of_http2_that_nobody_reads(bench: Make, other: Other) -> None:
    """A window as large as can be, a hundred endless answers in each connection, and a client that never reads."""

    def pours(sock: socket.socket) -> None:
        connection = H2Connection(H2Configuration(client_side=False))
        connection.initiate_connection()
        sock.sendall(connection.data_to_send())
        streams: set[int] = set()
        while True:
            sock.settimeout(0.05 if streams else PATIENCE)
            with contextlib.suppress(TimeoutError):
                if not (data := sock.recv(65536)):
                    return  # else this thread would spin for the rest of the session
                for event in connection.receive_data(data):
                    if type(event).__name__ == "RequestReceived":
                        streams.add(event.stream_id)  # type: ignore[attr-defined]
                        connection.send_headers(event.stream_id, [(":status", "200")])  # type: ignore[attr-defined]
            sock.settimeout(PATIENCE)
            for number in streams:
                while room := min(connection.local_flow_control_window(number), 16384):
                    connection.send_data(number, bytes(room))
                    sock.sendall(connection.data_to_send())

    with serving(pours) as server, contextlib.ExitStack() as stack:
        run = bench(rules(rule("web.test", server.port, paths=("/ok",))))
        connection = H2Connection(H2Configuration(header_encoding="utf-8"))
        connection.initiate_connection()
        connection.update_settings({4: 2**31 - 1})
        connection.increment_flow_control_window(2**31 - 1 - 65535)
        for _ in range(100):
            connection.send_headers(connection.get_next_available_stream_id(), _head("/ok"), end_stream=True)
        frames = connection.data_to_send()
        flood(crowd(stack, run, server.port, 20), frames)
        other.is_served()
