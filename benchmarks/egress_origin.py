"""The server that every route of benchmarks/egress.py leads to: small answers, plain and TLS, and a stream of bytes.

    python egress_origin.py CERTIFICATE KEY

Prints its three ports as JSON, and serves until its standard input ends. One loop over epoll and no parser: whoever
asks is the benchmark, and the server must not be what is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import sys
import threading

BODY = b'{"name": "belljar", "numbers": [1, 2, 3, 4, 5, 6, 7, 8], "text": "a small answer of a service"}\n'
_ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nCache-Control: no-store\r\nContent-Length: %d\r\n\r\n%s"
    % (len(BODY), BODY)
)
_PIECE = 16 << 20


def listening() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0), backlog=1024)


def serve_requests(plain: socket.socket, secure: socket.socket, context: ssl.SSLContext) -> None:
    """Answer every request the same way."""
    poll, connections = select.epoll(), {plain.fileno(): plain, secure.fileno(): secure}
    for number in connections:
        poll.register(number, select.EPOLLIN)
    while True:
        for number, _what in poll.poll():
            sock = connections[number]
            if sock in (plain, secure):
                accepted = accept(sock, context if sock is secure else None)
                if accepted is not None:
                    connections[accepted.fileno()] = accepted
                    poll.register(accepted, select.EPOLLIN)
            elif not answer(sock):
                poll.unregister(number)
                connections.pop(number).close()


def accept(listener: socket.socket, context: ssl.SSLContext | None) -> socket.socket | None:
    sock, _peer = listener.accept()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.settimeout(10)
    try:
        if context is not None:
            sock = context.wrap_socket(sock, server_side=True)
    except OSError:
        sock.close()
        return None
    sock.setblocking(False)  # noqa: FBT003
    return sock


def answer(sock: socket.socket) -> bool:
    """Whether the connection lives on."""
    try:
        asked = sock.recv(65536)
        if asked:
            sock.send(_ANSWER * asked.count(b"\r\n\r\n"))
        return bool(asked)
    except (ssl.SSLWantReadError, BlockingIOError):
        return True
    except OSError:
        return False


def serve_bytes(listener: socket.socket) -> None:
    """To each who says a zero byte and a number: so many bytes, out of memory and uncopied."""
    file = os.memfd_create("bytes")
    os.truncate(file, _PIECE)
    while True:
        sock, _peer = listener.accept()
        with sock, contextlib.suppress(OSError):
            left = int.from_bytes(sock.recv(9)[1:], "big")
            while left:
                left -= os.sendfile(sock.fileno(), file, 0, min(left, _PIECE))


def main() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    plain, secure, raw = listening(), listening(), listening()
    for target, sockets in ((serve_requests, (plain, secure, context)), (serve_bytes, (raw,))):
        threading.Thread(target=target, args=sockets, daemon=True).start()
    names = ("plain", "secure", "raw")
    print(json.dumps({name: sock.getsockname()[1] for name, sock in zip(names, (plain, secure, raw), strict=True)}))
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
