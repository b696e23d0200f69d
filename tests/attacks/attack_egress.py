"""For attacks on a jar whose network is open: servers of the tests', ways to the proxy, and a proxy that is careless.

The control of an attack on the proxy is a proxy that makes the mistakes: it looks at the end of a name only, cuts names
at a NUL as C does, understands every form of an address, and passes on whatever follows the first line.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import sys
import threading
import unicodedata
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "network"))

from network_servers import Server

from belljar import RunResult

PROXY = "198.18.0.1"
JAR_ROUTES = {
    "transparent": ["transparent", "", "0"],
    "http": ["http", PROXY, "3128"],
    "socks": ["socks", PROXY, "1080"],
}
"""The first three arguments of a probe in a jar: the route, and the proxy's address and port."""

DIAL = '''
import json, os, socket, ssl, struct, sys, threading, time
route, proxy_host, proxy_port = sys.argv[1], sys.argv[2], int(sys.argv[3])
direct = json.loads(sys.argv[4])  # in a control: name and port -> where it is on loopback

def as_bytes(host):
    return host if isinstance(host, bytes) else host.encode()

def dial(host, port):
    """A connection to a host, on the route: as a program of this kind would make it."""
    host = as_bytes(host)
    if route == "transparent":
        place = direct.get(f"{host.decode('latin-1')}:{port}")
        return socket.create_connection(tuple(place) if place else (host.decode(), port), timeout=5)
    end = socket.create_connection((proxy_host, proxy_port), timeout=5)
    if route == "http":
        end.sendall(b"CONNECT " + host + b":%d HTTP/1.1\\r\\nHost: " % port + host + b":%d\\r\\n\\r\\n" % port)
        said = read_head(end)
        if b" 200 " not in said.split(b"\\r\\n")[0]:
            raise ConnectionRefusedError(111, said[:300].decode("latin-1"))
    else:
        end.sendall(b"\\5\\1\\0")
        if end.recv(2) != b"\\5\\0":
            raise ConnectionRefusedError(111, "SOCKS: no")
        end.sendall(b"\\5\\1\\0\\3" + bytes([len(host)]) + host + struct.pack(">H", port))
        said = end.recv(10)
        if said[1:2] != b"\\0":
            raise ConnectionRefusedError(111, f"SOCKS: {said!r}")
    return end

def read_head(end):
    head = b""
    while b"\\r\\n\\r\\n" not in head:
        more = end.recv(1)
        if not more:
            break
        head += more
    return head

def read_answer(end):
    """The head of one answer, when its body has been read."""
    end.settimeout(3)
    head = read_head(end)
    size = [line.split(b":")[1] for line in head.lower().split(b"\\r\\n") if line.startswith(b"content-length:")]
    left = int(size[0]) if size else 0
    while left and (more := end.recv(left)):
        left -= len(more)
    return head

def over_tls(end, name):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(end, server_hostname=name)

told = {}
def attempt(row, what):
    try:
        told[row] = str(what())
    except OSError as error:
        told[row] = f"{type(error).__name__}: {error}"
'''
END = "\nprint(json.dumps(told))\n"


def probe(body: str) -> str:
    """A program that makes several attempts and prints how each of them went."""
    return f"{DIAL}\n{body}\n{END}"


def said_by(result: RunResult | str) -> dict[str, Any]:
    """What a probe printed."""
    text = result if isinstance(result, str) else result.stdout
    assert text.strip(), result
    told: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return told


class CarelessProxy:
    """CONNECT, absolute targets and SOCKS5; whoever is called something with `.allowed.test` at its end is let through.

    Args:
        places: ports of loopback, by name; a name that it does not know is taken for an address.
    """

    def __init__(self, places: dict[str, int]) -> None:
        self._places = places
        self.http = Server(self._http)
        self.socks = Server(self._socks)

    def close(self) -> None:
        """End it."""
        self.http.close()
        self.socks.close()

    def route(self, name: str) -> list[str]:
        """The first three arguments of a probe in a control."""
        port = {"transparent": 0, "http": self.http.port, "socks": self.socks.port}[name]
        return [name, "127.0.0.1", str(port)]

    def _http(self, client: socket.socket, _server: Server) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n") and (more := client.recv(1)):
            head += more
        if head.startswith(b"CONNECT "):
            target = re.match(rb"CONNECT (.*):(\d+) HTTP/1.1\r\n", head, re.DOTALL)
            if target is None:
                return
            with self._dial(target[1], int(target[2])) as upstream:
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                _pipe(client, upstream)
            return
        target = re.match(rb"\S+ http://([^/:]*):?(\d*)", head)
        if target is not None:
            with self._dial(target[1], int(target[2] or 80)) as upstream:
                upstream.sendall(head)
                _pipe(client, upstream)

    def _socks(self, client: socket.socket, _server: Server) -> None:
        client.recv(3)
        client.sendall(b"\5\0")
        head = client.recv(5)
        name = client.recv(head[4])
        port = int.from_bytes(client.recv(2), "big")
        with self._dial(name, port) as upstream:
            client.sendall(b"\5\0\0\1" + bytes(6))
            _pipe(client, upstream)

    def _dial(self, name: bytes, port: int) -> socket.socket:
        text = name.decode("utf-8", "surrogateescape")
        if text in ("127.0.0.1", "::1"):
            raise OSError("so careful it is")
        text = re.split(r"\0|\r|\n|%00|%0[dD]|#|/| ", text)[0].rpartition("@")[2]
        text = unicodedata.normalize("NFKC", text).rstrip(".").lower().strip("[]")
        if text in self._places:
            return socket.create_connection(("127.0.0.1", self._places[text]), 5)
        return socket.create_connection((text, port), 5)


def _pipe(client: socket.socket, upstream: socket.socket) -> None:
    def forward(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    other = threading.Thread(target=forward, args=(upstream, client), daemon=True)
    other.start()
    forward(client, upstream)
    other.join(5)
