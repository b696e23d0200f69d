"""What goes over a connection that is allowed: WebSocket, server-sent events, half-closed sockets, big bodies.

Each both passed through and opened, where the protocol is inside TLS.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from network_certificates import Certificates
from network_daemons import need_program
from network_routes import OpenJar, decisions, network, rule, run_python, run_shell, summary, told
from network_servers import Server
from network_web import Site, Web

EVENTS = """
import sys, urllib.request
base = sys.argv[1]
with urllib.request.urlopen(base + "/events") as stream:
    print(stream.readline().decode().strip())
    urllib.request.urlopen(base + "/release").read()   # only then does the server send the second one
    print(stream.read().decode().strip())
"""
WEBSOCKET = """
import base64, os, socket, ssl, sys
def read(end, size):
    data = b""
    while len(data) < size:
        more = end.recv(size - len(data))
        assert more, data
        data += more
    return data
end = socket.create_connection(("web.test", int(sys.argv[1])))
if sys.argv[1] == "443":
    end = ssl.create_default_context().wrap_socket(end, server_hostname="web.test")
key = base64.b64encode(os.urandom(16)).decode()
end.sendall(("GET /socket HTTP/1.1\\r\\nHost: web.test\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
             f"Sec-WebSocket-Key: {key}\\r\\nSec-WebSocket-Version: 13\\r\\n\\r\\n").encode())
head = b""
while not head.endswith(b"\\r\\n\\r\\n"):
    head += read(end, 1)
assert b" 101 " in head.split(b"\\r\\n")[0], head
text = b"a word over the socket"
mask = os.urandom(4)
end.sendall(bytes((0x81, 0x80 | len(text))) + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(text)))
kind, size = read(end, 2)
print(read(end, size).decode())
"""


@pytest.mark.parametrize(("scheme", "route"), [("http", "transparent"), ("https", "transparent"), ("https", "http")])
def test_events_arrive_one_by_one(
    net_jar: OpenJar, web: Web, secure: Web, extra: dict[str, Any], scheme: str, route: str
) -> None:
    """The first event is read before the server has the second to send."""
    server = secure if scheme == "https" else web
    jar = net_jar(network(rule("web.test", server.address, **extra)))
    result = run_python(jar, EVENTS, f"{scheme}://web.test", route=route)
    assert told(result).split("\n") == ["data: first", "data: second", ""]


@pytest.mark.parametrize("port", [80, 443])
def test_websocket(net_jar: OpenJar, web: Web, secure: Web, extra: dict[str, Any], port: int) -> None:
    """After the server has switched protocols, both sides say what they like."""
    server = secure if port == 443 else web
    jar = net_jar(network(rule("web.test", server.address, **extra)))
    assert told(run_python(jar, WEBSOCKET, str(port))) == "a word over the socket\n"
    assert "a word over the socket" in server.heard


READ_BACK = """
import socket, threading
end = socket.create_connection(("plain.test", 7))
def send():
    for _ in range(64):
        end.sendall(b"x" * 65536)
    end.shutdown(socket.SHUT_WR)
threading.Thread(target=send).start()
got = 0
while data := end.recv(1 << 16):
    got += len(data)
print(got)
"""


def test_both_sides_over_ipv6(net_jar: OpenJar, site: Site, certificates: Certificates, extra: dict[str, Any]) -> None:
    """The jar dials the IPv6 address that stands for the name, the proxy the server's."""
    need_program("curl", "curl")
    try:
        server = Web(site, tls=certificates.context(), host="::1")
    except OSError:
        pytest.skip("this host has no IPv6 loopback")
    with server:
        jar = net_jar(network(rule("web.test", server.address, 443, **extra)))
        script = "curl -6 -sS -w '%{remote_ip}' https://web.test/six"
        said, _, address = told(run_shell(jar, script)).partition("\n")
    assert said == "hello from web.test/six to GET"
    assert address.startswith("fd62:656c:6c6a:")


def test_half_closed_connection_still_carries_the_answer(net_jar: OpenJar, plain: Server) -> None:
    """The code says that it is done; what the server then sends still arrives, whole."""
    jar = net_jar(network(rule("plain.test", plain.address, 7)))
    assert told(run_python(jar, READ_BACK)) == f"{64 * 65536}\n"


def test_body_goes_up_whole(net_jar: OpenJar, secure: Web, site: Site, extra: dict[str, Any]) -> None:
    """Three megabytes, with a length and in chunks."""
    need_program("curl", "curl")
    jar = net_jar(network(rule("web.test", secure.address, 443, **extra)))
    script = """
        head -c 3000000 /dev/urandom >body; sha256sum body
        curl -sS -H 'Expect:' --data-binary @body https://web.test/up
        curl -sS -H 'Expect:' -H 'Transfer-Encoding: chunked' --data-binary @body https://web.test/up
    """
    said = told(run_shell(jar, script)).split()
    assert [hashlib.sha256(request.body).hexdigest() for request in site.requests] == [said[0]] * 2


def test_answer_that_never_ends_ends_with_its_reader(net_jar: OpenJar, secure: Web, extra: dict[str, Any]) -> None:
    """And the next request is served."""
    need_program("curl", "curl")
    jar = net_jar(network(rule("web.test", secure.address, 443, **extra)))
    script = "curl -sS https://web.test/endless 2>/dev/null | head -c 2000000 | wc -c; curl -sS https://web.test/next"
    assert told(run_shell(jar, script)).split("\n")[:2] == ["2000000", "hello from web.test/next to GET"]


def test_connection_without_any_word_is_closed_with_the_run(net_jar: OpenJar, plain: Server) -> None:
    """The server sees the end of a connection that the code left open."""
    jar = net_jar(network(rule("plain.test", plain.address, 7)))
    code = "import socket, os; s = socket.create_connection(('plain.test', 7)); s.send(b'word'); s.recv(4); os._exit(0)"
    result = run_python(jar, code)
    told(result)
    assert ("plain.test", True) in decisions(result, "connect"), summary(result)
    assert plain.ended(5)
