"""The client of benchmarks/egress.py: asks as fast as it is answered, and counts. Runs in a jar as well as outside.

    python egress_load.py '{"kind": "requests", "place": ["127.0.0.1", 3128], "way": "absolute", …}'

Prints what it found as JSON. Only the standard library, one loop over epoll, and no more of HTTP than the size of an
answer: it costs a fraction of what any of the proxies does.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import sys
import time
from typing import Any

Settings = dict[str, Any]
"""kind: requests or bytes; place: what is dialled; way: direct, absolute or connect; host, port: who is asked;
tls, body (its size), connections, seconds, size, processor."""


class Connection:
    """One that is kept alive, with at most one request on its way."""

    __slots__ = ("_asked", "_request", "_size", "buffer", "sock")

    def __init__(self, settings: Settings) -> None:
        authority = f"{settings['host']}:{settings['port']}"
        target = f"http://{authority}/small" if settings["way"] == "absolute" else "/small"
        lines = (f"GET {target} HTTP/1.1", f"Host: {authority}", "User-Agent: bench", "Accept: */*", "", "")
        self._request = "\r\n".join(lines).encode()
        self._size = settings["body"]
        self._asked = 0.0
        self.buffer = b""
        self.sock = opened(settings)
        self.ask()
        while self.take() is None:  # the first answer is not counted
            pass
        self.sock.setblocking(False)  # noqa: FBT003

    def ask(self) -> None:
        self._asked = time.perf_counter()
        self.sock.send(self._request)

    def take(self) -> float | None:
        """Seconds that the answer took, once all of it is there."""
        while True:
            try:
                data = self.sock.recv(65536)
            except (ssl.SSLWantReadError, BlockingIOError):
                return None
            if not data:
                raise SystemExit(f"the connection ended after {self.buffer!r}")
            self.buffer += data
            end = self.buffer.find(b"\r\n\r\n")
            if end >= 0 and len(self.buffer) >= end + 4 + self._size:
                break
        taken = time.perf_counter() - self._asked
        if self.buffer[:12] != b"HTTP/1.1 200":
            raise SystemExit(f"the answer was {self.buffer[:2000]!r}")
        self.buffer = b""
        return taken


def opened(settings: Settings) -> socket.socket:
    """A connection to the server, whichever way it goes."""
    sock = socket.create_connection(tuple(settings["place"]), timeout=30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if settings["way"] == "connect":
        authority = f"{settings['host']}:{settings['port']}"
        sock.sendall(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n\r\n".encode())
        said = b""
        while not said.endswith(b"\r\n\r\n"):
            said += sock.recv(1) or b"\r\n\r\n"
        if said[9:12] != b"200":
            raise SystemExit(f"CONNECT was answered with {said!r}")
    if settings.get("tls"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sock = context.wrap_socket(sock, server_hostname=settings["host"])
    return sock


def requests(settings: Settings) -> dict[str, float]:
    """How many in a second, and how long each took."""
    connections = [Connection(settings) for _connection in range(settings["connections"])]
    poll, by_number = select.epoll(), {each.sock.fileno(): each for each in connections}
    for number in by_number:
        poll.register(number, select.EPOLLIN)
    times: list[float] = []
    started = now = time.perf_counter()
    until = started + settings["seconds"]
    for each in connections:
        each.ask()
    while now < until:
        for number, _what in poll.poll():
            each = by_number[number]
            taken = each.take()
            if taken is not None:
                times.append(taken)
                each.ask()
        now = time.perf_counter()
    times.sort()
    count = len(times)
    middle, slow = times[count // 2], times[count * 99 // 100]
    return {"count": count + len(connections), "rate": count / (now - started), "p50": middle, "p99": slow}


def stream(settings: Settings) -> dict[str, float]:
    """How many bytes in a second."""
    room = memoryview(bytearray(1 << 20))
    with opened(settings) as sock:
        started = time.perf_counter()
        left = size = settings["size"]
        sock.sendall(b"\0" + size.to_bytes(8, "big"))
        while left:
            count = sock.recv_into(room)
            if not count:
                raise SystemExit(f"the stream ended {left} bytes too early")
            left -= count
        return {"rate": size / (time.perf_counter() - started)}


def main() -> None:
    settings = json.loads(sys.argv[1])
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, settings["processors"])
    print(json.dumps(requests(settings) if settings["kind"] == "requests" else stream(settings)))


if __name__ == "__main__":
    main()
