"""Inside the jar it looks like a host on a network: its own servers, names, addresses, the host's ports if opened."""

from __future__ import annotations

import pytest
from network_daemons import need_program
from network_routes import OpenJar, codes, denial, network, rule, run_python, run_shell, summary, told
from network_servers import Server
from network_web import Site, Web

OWN_SERVERS = """
import http.server, os, threading, urllib.request

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"the jar's own on {self.server.server_address[0]}:{self.server.server_port}".encode())
    def log_message(self, *_):
        pass

for place in (("0.0.0.0", 443), ("0.0.0.0", 8080), ("127.0.0.1", 3128), ("0.0.0.0", 1080)):
    server = http.server.ThreadingHTTPServer(place, Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
for address in ("localhost:443", "127.0.0.1:8080", "198.19.255.2:8080", "localhost:3128", "127.0.0.1:1080"):
    print(opener.open(f"http://{address}/").read().decode())
print(opener.open("http://web.test:8080/").read().decode().strip())
"""


def test_servers_of_the_code_keep_their_ports(open_jar: OpenJar, web: Web) -> None:
    """Ports of the policy and of the proxy are free in the jar, and the same port of another host is that host's."""
    jar = open_jar(network(rule("web.test", web.address, 443, 8080)))
    assert told(run_python(jar, OWN_SERVERS)).splitlines() == [
        "the jar's own on 0.0.0.0:443",
        "the jar's own on 0.0.0.0:8080",
        "the jar's own on 0.0.0.0:8080",
        "the jar's own on 127.0.0.1:3128",
        "the jar's own on 0.0.0.0:1080",
        "hello from web.test/ to GET",
    ]


NAMES = """
import socket
for family, flags in ((0, 0), (0, socket.AI_ADDRCONFIG), (socket.AF_INET, socket.AI_ADDRCONFIG),
                      (socket.AF_INET6, socket.AI_ADDRCONFIG)):
    found = socket.getaddrinfo("web.test", 80, family, socket.SOCK_STREAM, 0, flags)
    print(sorted({one[0].name for one in found}), sorted({one[4][0] for one in found}))
print(socket.gethostbyname("WEB.Test.") == socket.gethostbyname("web.test"))
print(socket.gethostbyname("other.test") != socket.gethostbyname("web.test"))
print(socket.gethostbyname("localhost"))
for family in (socket.AF_INET, socket.AF_INET6):
    address = socket.getaddrinfo("web.test", 80, family, socket.SOCK_STREAM)[0][4]
    end = socket.socket(family)
    end.connect(address)
    print(end.getpeername()[0] == address[0])
try:
    socket.getaddrinfo("nowhere.test", 80)
except socket.gaierror as error:
    print(error.errno == socket.EAI_NONAME)
"""


def test_names_are_as_on_any_host(open_jar: OpenJar, plain: Server) -> None:
    """A name has an IPv4 and an IPv6 address, the same for as long as the run lives; AI_ADDRCONFIG changes nothing."""
    jar = open_jar(network(rule("web.test", plain.address, 80), rule("other.test", plain.address, 80)))
    lines = told(run_python(jar, NAMES)).splitlines()
    both, configured, four, six, *rest = lines
    assert both == configured
    assert "'AF_INET', 'AF_INET6'" in both
    assert four.startswith("['AF_INET'] ['198.18.")
    assert six.startswith("['AF_INET6'] ['fd62:656c:6c6a:")
    assert rest == ["True", "True", "127.0.0.1", "True", "True", "True"]


QUESTIONS = """
import socket, struct, sys

def question(name, kind, opcode=0):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\\0"
    return struct.pack(">HHHHHH", 7, 0x0100 | opcode << 11, 1, 0, 0, 0) + labels + struct.pack(">HH", kind, 1)

def over_udp(server, wire):
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    end = socket.socket(family, socket.SOCK_DGRAM)
    end.settimeout(5)
    end.connect((server, 53))  # only an answer from the address that was asked is taken
    end.send(wire)
    return end.recv(4096)

def over_tcp(server, wire):
    end = socket.create_connection((server, 53), timeout=5)
    end.sendall(struct.pack(">H", len(wire)) + wire)
    size = struct.unpack(">H", end.recv(2))[0]
    return end.recv(size)

def told(answer):
    flags, _questions, answers = struct.unpack(">HHH", answer[2:8])
    return f"{flags & 15} {answers}"

for server in ("198.18.0.1", "192.0.2.53", "2001:db8::53"):
    for way in (over_udp, over_tcp):
        print(told(way(server, question("web.test", 1))), told(way(server, question("web.test", 28))),
              told(way(server, question("web.test", 16))), told(way(server, question("secret.evil.test", 1))),
              told(way(server, question("secret.evil.test", 16))))
"""


def test_every_name_server_is_the_proxy(open_jar: OpenJar, web: Web) -> None:
    """Whichever address is asked, over UDP and TCP, IPv4 and IPv6: listed names have addresses, all else NXDOMAIN."""
    result = run_python(open_jar(network(rule("web.test", web.address, 80))), QUESTIONS)
    assert told(result).splitlines() == ["0 1 0 1 0 0 3 0 3 0"] * 6
    assert denial(result, "name-not-listed").target == "look up secret.evil.test"


def test_port_of_the_host(net_jar: OpenJar, web: Web, site: Site, plain: Server) -> None:
    """`net.host_ports` opens one port of the host's loopback by one name, and no other port of it."""
    need_program("curl", "curl")
    jar = net_jar(network(host_ports=[web.port]))
    script = f"""
        curl -sS http://host.belljar.internal:{web.port}/service
        curl -sS http://host.belljar.internal:{plain.port}/ 2>/dev/null || echo refused
        curl -sS http://127.0.0.1:{web.port}/ 2>/dev/null || echo refused
        curl -sS http://localhost:{web.port}/ 2>/dev/null || echo refused
    """
    result = run_shell(jar, script)
    assert told(result).splitlines() == ["hello from host.belljar.internal/service to GET", *["refused"] * 3]
    assert denial(result, "port-not-listed").allow == f"net.host_ports: [{plain.port}]"
    assert not plain.heard
    assert len(site.requests) == 1


def test_port_of_the_host_for_any_protocol(open_jar: OpenJar, plain: Server) -> None:
    """It is a connection, whatever is said over it."""
    code = f"""
import socket
end = socket.create_connection(("host.belljar.internal", {plain.port}))
end.sendall(b"a word of no protocol")
print(end.recv(100).decode())
"""
    assert told(run_python(open_jar(network(host_ports=[plain.port])), code)) == "a word of no protocol\n"


@pytest.mark.parametrize("rules", [[], [{"host": "web.test"}]], ids=["no rule", "another rule"])
def test_host_is_closed_unless_the_policy_opens_it(
    open_jar: OpenJar, plain: Server, rules: list[dict[str, str]]
) -> None:
    """Without `host_ports` the name does not exist."""
    code = f"import socket; socket.create_connection(('host.belljar.internal', {plain.port}))"
    result = run_python(open_jar(network(*rules)), code)
    assert "Name or service not known" in result.stderr, summary(result)
    assert codes(result) == {"name-not-listed"}
    assert not plain.heard


def test_address_that_a_rule_names(open_jar: OpenJar, plain: Server) -> None:
    """An address may be listed like a name; then it is reached without one, and only on its port."""
    jar = open_jar(network({"host": "192.0.2.9", "ports": [7], "addresses": [plain.address]}))
    code = """
import socket
end = socket.create_connection(("192.0.2.9", 7), timeout=5)
end.sendall(b"word")
print(end.recv(10).decode())
try:
    socket.create_connection(("192.0.2.10", 7), timeout=5).recv(10)
except OSError as error:
    print(type(error).__name__)
else:
    print("closed")
"""
    result = run_python(jar, code)
    assert told(result).splitlines()[0] == "word"
    assert plain.heard == ["connection", "word"]
    assert denial(result, "address-not-listed").target == "connect 192.0.2.10:7"


def test_run_without_network_has_none(open_jar: OpenJar, plain: Server) -> None:
    """`net.enabled: false` is an empty namespace, whatever the list says; the environment names no proxy."""
    jar = open_jar({"net": {"enabled": False, "allowlist": [rule("web.test", plain.address, 80)]}})
    code = """
import os, socket
print([name for name in os.environ if "proxy" in name.lower()], [name for _, name in socket.if_nameindex()])
socket.create_connection(("web.test", 80))
"""
    result = run_python(jar, code, route="transparent")
    assert result.stdout == "[] ['lo']\n"
    assert result.outcome == "failed"
    assert not plain.heard
