"""A run that gives the proxy as much to do as it can: a program of its own, so that who measures is not slowed by it.

It serves the host that its run may reach and prints that port. It is then told its run's ports, a line of `socks dns`,
prints `begun` when it has begun, and goes on until its input ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
from collections.abc import Callable

from h2.config import H2Configuration
from h2.connection import H2Connection
from hpack import Encoder
from hyperframe.frame import ContinuationFrame, HeadersFrame

HEAD = [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"web.test"), (b":path", b"/ok")]
SOCKETS = 100


class Attacker:
    def __init__(self, kind: str) -> None:
        self._attack: Callable[[], None] = getattr(self, kind)
        self._server = socket.create_server(("127.0.0.1", 0), backlog=1024)
        threading.Thread(target=self._serve, daemon=True).start()
        print(self._server.getsockname()[1], flush=True)
        self._socks, self._dns = map(int, input().split())
        self._begun = threading.Event()
        for _thread in range(8):
            threading.Thread(target=self._go_on, daemon=True).start()
        self._begun.wait()
        print("begun", flush=True)
        sys.stdin.read()
        os._exit(0)

    def _go_on(self) -> None:
        while True:
            with contextlib.suppress(OSError):
                self._attack()
            self._begun.set()

    def _serve(self) -> None:
        while True:
            sock, _peer = self._server.accept()
            threading.Thread(target=self._swallow, args=(sock,), daemon=True).start()

    @staticmethod
    def _swallow(sock: socket.socket) -> None:
        with sock, contextlib.suppress(OSError):
            while data := sock.recv(65536):
                if b"Upgrade: websocket" in data:
                    sock.sendall(b"HTTP/1.1 101 Yes\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")

    def _connect(self, name: bytes = b"web.test") -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self._socks), timeout=5)
        port = self._server.getsockname()[1]
        sock.sendall(b"\x05\x01\x00\x05\x01\x00\x03" + bytes((len(name),)) + name + port.to_bytes(2, "big"))
        answered = b""
        while len(answered) < 12:
            answered += sock.recv(12 - len(answered)) or b"\xff" * 12
        return sock

    def _many(self, *said: bytes) -> None:
        """Say this on many connections at once, and read what is answered for a moment."""
        socks = [self._connect() for _ in range(SOCKETS // 8)]
        for part in said:
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.sendall(part)
            self._begun.set()
        for sock in socks:
            sock.settimeout(0.02)
            with sock, contextlib.suppress(OSError):
                while sock.recv(1 << 20):
                    pass

    # The attacks

    def large_headers(self) -> None:
        self._headers(60_000)

    def allowed_headers(self) -> None:
        self._headers(15_000)

    def _headers(self, size: int) -> None:
        """Blocks in Huffman's code, of which the last letter has the shortest."""
        connection = H2Connection(H2Configuration(header_encoding=None))
        connection.initiate_connection()
        said = connection.data_to_send()
        value = b"\x18\xc6\x31\x8c\x63" * (size // 8)  # `a` is 00011
        length = len(value)
        block = Encoder().encode(HEAD) + b"\x00\x01x"
        more, rest = b"", length - 127
        while rest >= 128:
            more += bytes((rest % 128 + 128,))
            rest //= 128
        block += b"\xff" + more + bytes((rest,)) + value
        for stream in range(1, 20, 2):
            frames: list[HeadersFrame | ContinuationFrame] = [HeadersFrame(stream, data=block[:16000])]
            frames += [ContinuationFrame(stream, data=block[at : at + 16000]) for at in range(16000, len(block), 16000)]
            frames[0].flags.add("END_STREAM")
            frames[-1].flags.add("END_HEADERS")
            said += b"".join(frame.serialize() for frame in frames)
        self._many(said)

    def hellos(self) -> None:
        """TLS for a name of its own each time, which is refused in TLS: a certificate for each."""
        out = ssl.MemoryBIO()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=f"{os.urandom(8).hex()}.test").do_handshake()
        self._many(out.read())

    def refused_requests(self) -> None:
        self._many(*[b"GET /no HTTP/1.1\r\nHost: web.test\r\n\r\n" * 1000] * 3)

    def small_chunks(self) -> None:
        head = b"POST /ok HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\n"
        self._many(head, *[b"1\r\nx\r\n" * 10_000] * 10)

    def encoded_bodies(self) -> None:
        head = b"POST /ok HTTP/1.1\r\nHost: web.test\r\nContent-Length: 10000000\r\n\r\n"
        self._many(head, *[b"%61" * 20_000] * 10)

    def small_frames(self) -> None:
        """WebSocket messages of a byte each, after one that is slow to search."""
        opening = b"GET /ok HTTP/1.1\r\nHost: web.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        escapes = b"\x81\xfe\x0f\x00" + bytes(4) + b"\\" * 0xF00
        self._many(opening, escapes, *[(b"\x81\x81" + bytes(4) + b"\\") * 10_000] * 4)

    def indexed_headers(self) -> None:
        """HTTP/2 blocks of some bytes that each name a long field of the table six times."""
        connection = H2Connection(H2Configuration(header_encoding=None))
        connection.initiate_connection()
        said = connection.data_to_send()
        encoder = Encoder()
        for stream in range(1, 200, 2):
            block = encoder.encode([*HEAD, (b"x", b"\\" * 3900)]) + b"\xbe" * 5
            frame = HeadersFrame(stream, data=block)
            frame.flags |= {"END_STREAM", "END_HEADERS"}
            said += frame.serialize()
        self._many(said)

    def connections(self) -> None:
        for _ in range(200):
            socket.create_connection(("127.0.0.1", self._socks), timeout=5).close()

    def questions(self) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", self._dns))
            for number in range(500):
                name = os.urandom(4).hex().encode()
                sock.send(
                    number.to_bytes(2, "big")
                    + b"\x01\x00\x00\x01"
                    + bytes(6)
                    + b"\x08"
                    + name
                    + b"\x04test\x00\x00\x01\x00\x01"
                )


if __name__ == "__main__":
    Attacker(sys.argv[1])
