"""The network of containers: the same gateway, or, where belljar may not enter, loopback and the gate's own channel."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from network_certificates import Certificates
from network_routes import OpenJar, codes, denial, network, network_denials, rule, run_python, told
from network_servers import Server
from network_web import Web
from test_network_canary import EVERYTHING, serve_by

from belljar import Sandbox
from belljar.backends.container import backend as container_backend
from belljar.backends.container.jar import compile as container_compile
from belljar.egress.decide.rules import Rule
from belljar.sandbox.record.result import Outcome

ENGINES = ("docker", "gvisor", "podman")

REACHES = """
import os, socket, urllib.error, urllib.request

def tried(what):
    try:
        return what()
    except urllib.error.HTTPError as error:
        return error.code
    except urllib.error.URLError as error:
        return type(error.reason).__name__
    except OSError as error:
        return type(error).__name__

get = lambda url, data=None: tried(lambda: urllib.request.urlopen(url, data=data, timeout=20).read().decode().strip())
print(get("http://web.test/"))
print(get("https://deep.wild.test/listed"))
print(get("https://deep.wild.test/listed", b"data"))
print(get("https://deep.wild.test/other"))
print(get("http://other.test/"))
print(get("http://192.0.2.1/"))
"""

CLOSED = """
import socket
for address, port in (("192.0.2.1", 81), ("web.test", 81)):
    try:
        socket.create_connection((address, port), timeout=10)
    except ConnectionRefusedError:
        print("refused")
    except OSError as error:
        print("refused" if error.errno in (97, 99, 101) else error)  # gVisor tries IPv6 last, and has none
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
    sender.sendto(b"x", ("192.0.2.1", 99))
"""


@pytest.fixture(params=ENGINES, scope="session")
def backend(request: pytest.FixtureRequest, need_backend: Callable[[str], None]) -> str:
    """The engines."""
    need_backend(request.param)
    return str(request.param)


@pytest.fixture
def jar(net_jar: Callable[..., Sandbox], web: Web, secure: Web) -> Sandbox:
    """One that reaches a server without TLS, and one path of a server with."""
    rules = (
        rule("web.test", web.address),
        rule("deep.wild.test", secure.address, methods=["GET"], paths=["/listed"]),
    )
    return net_jar(network(*rules))


@pytest.fixture
def net_jar(open_jar: OpenJar, certificates: Certificates) -> Callable[..., Sandbox]:
    """Opens a jar that believes the tests' authority."""

    def open_one(policy: dict[str, Any]) -> Sandbox:
        return open_jar({"net": {"ca_file": str(certificates.authority), **policy["net"]}})

    return open_one


@pytest.fixture
def enters(backend: str) -> None:
    """Where belljar may enter the container's network."""
    if os.geteuid() != 0 and backend != "podman":
        pytest.skip("only root, or the owner of the engine, may enter its containers")


@pytest.fixture
def may_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user who may only speak with the engine's daemon."""
    monkeypatch.setattr(container_backend, "_enters", lambda _known: False)


SEEN = ["hello from web.test/ to GET", "hello from deep.wild.test/listed to GET", "403", "403"]


@pytest.mark.usefixtures("enters")
@pytest.mark.parametrize("route", ["transparent", "http"])
def test_what_is_listed_is_reached(jar: Sandbox, route: str) -> None:
    """And nothing else: by name, by address, by method, by path."""
    result = run_python(jar, REACHES, route=route)
    other = "gaierror" if route == "transparent" else "403"
    assert told(result).splitlines() == [*SEEN, other, "403"]
    assert codes(result) == {"method-not-listed", "path-not-listed", "name-not-listed", "address-not-listed"}


@pytest.mark.usefixtures("enters")
def test_other_ports_and_datagrams(jar: Sandbox) -> None:
    """Are refused at once, and recorded."""
    result = run_python(jar, CLOSED)
    assert told(result).splitlines() == ["refused", "refused"]
    assert codes(result) >= {"address-not-listed", "port-not-listed", "udp"}


# --- where belljar may not enter -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("may_not_enter")
def test_through_the_gate(jar: Sandbox) -> None:
    """Programs that heed the proxy's variables reach the same; the report says how."""
    result = jar.run(REACHES)
    assert told(result).splitlines() == [*SEEN, "403", "403"]
    assert codes(result) == {"method-not-listed", "path-not-listed", "name-not-listed", "address-not-listed"}
    report = result.enforcement.clause("net.enabled").by
    assert "through the gate's own channel" in report
    assert "the code's servers can't have the policy's ports" in report
    assert not result.enforcement.shortfalls()


@pytest.mark.usefixtures("may_not_enter")
def test_programs_that_know_of_no_proxy(jar: Sandbox) -> None:
    """Reach the same, by name. An address has no route; where calls are seen, that is a denial as well."""
    result = run_python(jar, REACHES)
    assert told(result).splitlines() == [*SEEN, "gaierror", "OSError"]
    seen = set() if jar.backend_name == "gvisor" else {""}
    assert codes(result) == {"method-not-listed", "path-not-listed", "name-not-listed", *seen}
    assert denial(result, "name-not-listed").target == "look up other.test"
    assert [each.target for each in network_denials(result) if not each.code] == ["connect 192.0.2.1:80"] * len(seen)


NODE = """
const http = require("http");
http.get("http://web.test/", answer => answer.pipe(process.stdout));
"""


@pytest.mark.usefixtures("may_not_enter")
def test_node(jar: Sandbox) -> None:
    """Which heeds no variable."""
    assert told(jar.exec(["node", "-e", NODE])).strip() == "hello from web.test/ to GET"


@pytest.mark.usefixtures("may_not_enter")
def test_refusal_in_words(jar: Sandbox) -> None:
    """Through TLS, to a program that dialled the host itself."""
    code = """
import urllib.error, urllib.request
try:
    urllib.request.urlopen("https://deep.wild.test/other")
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
    said = told(run_python(jar, code))
    assert said.startswith("403 ")
    assert "path-not-listed" in said


@pytest.mark.usefixtures("may_not_enter")
def test_name_that_another_policy_lists(open_jar: OpenJar, web: Web) -> None:
    """The control of a name that does not exist: listed, it is reached, with nothing else changed."""
    code = "import urllib.request; print(urllib.request.urlopen('http://other.test/').status)"
    result = run_python(open_jar(network(rule("web.test", web.address))), code)
    assert "Name or service not known" in result.stderr
    assert told(run_python(open_jar(network(rule("other.test", web.address))), code)) == "200\n"


ASKED = """
import socket, struct

def question(name, kind):
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split(".")) + b"\\0"
    return struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">HH", kind, 1)

def over_udp(wire, end=None):
    end = end or socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.settimeout(10)
    end.connect(("127.18.0.1", 53))
    end.send(wire)
    return end.recv(4096)

def over_tcp(wire):
    end = socket.create_connection(("127.18.0.1", 53), timeout=10)
    end.sendall(struct.pack(">H", len(wire)) + wire)
    size = struct.unpack(">H", end.recv(2))[0]
    return end.recv(size)

def told(answer):
    flags, _questions, answers = struct.unpack(">HHH", answer[2:8])
    return f"{flags & 15} {answers}"

for way in (over_udp, over_tcp):
    print(*(told(way(question(*each))) for each in (
        ("web.test", 1), ("web.test", 28), ("web.test", 16), ("secret.evil.test", 1), ("secret.evil.test", 16))))
print(socket.inet_ntoa(over_udp(question("web.test", 1))[-4:]), open("/etc/resolv.conf").readline().strip())
ends = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(10)]
for end in ends:  # what is no question is not answered, and holds up nobody
    end.connect(("127.18.0.1", 53))
    end.send(b"x" * 30)
    end.send(b"")
    end.send(b"x" * 5000)
    end.send(question("web.test", 1))
for end in ends:
    end.settimeout(10)
print({told(end.recv(4096)) for end in ends})
"""


@pytest.mark.usefixtures("may_not_enter")
def test_names_are_answered_on_loopback(open_jar: OpenJar, web: Web) -> None:
    """Over UDP and TCP: a listed name has an address of loopback, and none of IPv6; any other does not exist."""
    result = run_python(open_jar(network(rule("web.test", web.address, 80))), ASKED)
    assert told(result).splitlines() == [
        *["0 1 0 0 0 0 3 0 3 0"] * 2,
        "127.18.1.0 nameserver 127.18.0.1",
        "{'0 1'}",
    ]
    assert denial(result, "name-not-listed").target == "look up secret.evil.test"
    assert codes(result) == {"name-not-listed"}


PORTS = """
import socket, sys
port, other = int(sys.argv[1]), int(sys.argv[2])
with socket.create_connection(("host.belljar.internal", port), timeout=20) as end:
    end.sendall(b"a word of no protocol")
    print(end.recv(100).decode())
for host in ("127.0.0.1", "127.18.77.1"):  # the container's own, and nobody's: not the host's
    try:
        with socket.create_connection((host, port), timeout=20) as end:
            end.sendall(b"word")
            print(end.recv(100))
    except ConnectionResetError:
        print(b"")
try:
    socket.create_connection(("host.belljar.internal", other), timeout=20)
except ConnectionRefusedError:
    print("refused")
try:
    socket.create_server(("0.0.0.0", port))
except OSError as error:
    print(error.strerror.partition(" (")[0])
with socket.create_server(("127.0.0.1", other)) as server:
    socket.create_connection(("localhost", other), timeout=20)
    print(server.accept()[1][0])
"""


@pytest.mark.usefixtures("may_not_enter")
def test_ports_of_the_host_and_of_the_code(open_jar: OpenJar, plain: Server, web: Web) -> None:
    """A port of the host is reached by its name only. Its number is taken, for the code; all others are free."""
    result = run_python(open_jar(network(host_ports=[plain.port])), PORTS, str(plain.port), str(web.port))
    assert told(result).splitlines() == [
        "a word of no protocol",
        "b''",
        "b''",
        "refused",
        "Address already in use",
        "127.0.0.1",
    ]
    assert plain.heard == ["connection", "a word of no protocol"]
    assert {each.target for each in network_denials(result)} == {
        f"connect {host}:{plain.port}" for host in ("127.0.0.1", "127.18.77.1")
    }
    assert codes(result) == {"address-not-listed"}


@pytest.mark.usefixtures("may_not_enter")
def test_ports_that_can_not_be_had(monkeypatch: pytest.MonkeyPatch, open_jar: OpenJar, web: Web, backend: str) -> None:
    """Where the container's kernel keeps low ports for root, that is less, and is told; the proxy is still reached."""
    if backend == "gvisor":
        pytest.skip("gVisor lets everybody have every port")
    monkeypatch.setattr(container_compile, "LOW_PORTS", "net.ipv4.ip_unprivileged_port_start=1024")
    policy = network(rule("web.test", web.address, 80, 8080))
    code = "import urllib.request; print(urllib.request.urlopen('http://web.test/').status)"
    result = open_jar(policy).run(code)
    assert result.outcome is Outcome.REFUSED
    assert "the gate can't listen on port 53, 80, 443 of the container" in result.reason
    jar = open_jar({**policy, "on_degraded": "allow"})
    assert told(jar.run(code)) == "200\n"


@pytest.mark.usefixtures("may_not_enter")
def test_proxy_that_is_broken(open_jar: OpenJar, plain: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is found out before the code starts: by a name, asked for in both ways, and by a place that was dialled."""
    listed = Rule(0, "net.allowlist[0]", "", "192.0.2.1", ports=(80, 443), addresses=(plain.address,))
    everything = replace(EVERYTHING, allow=(listed, *EVERYTHING.allow))
    serve_by(monkeypatch, lambda _rules: everything)
    result = open_jar(network(rule("echo.test", plain.address))).run("print('ran')")
    assert (result.outcome, result.stdout) == (Outcome.REFUSED, "")
    assert result.reason.count("a name that nobody listed was not refused") == 2
    assert result.reason.count("a host that nobody listed was not refused") == 1


BY_SOCKS = """
    end = socket.create_connection(("127.0.0.1", 1080), timeout=60)
    end.sendall(b"\\x05\\x01\\x00")
    assert end.recv(2) == b"\\x05\\x00"
    end.sendall(b"\\x05\\x01\\x00\\x03\\x09echo.test" + (7).to_bytes(2, "big"))
    assert end.recv(10)[1] == 0
"""
BY_NAME = """
    end = socket.create_connection(("echo.test", 7), timeout=60)
"""
MUCH = """
import concurrent.futures, hashlib, socket, sys

def echoed(number):
    data = bytes([number]) * 300_000
    DIAL
    with end:
        with concurrent.futures.ThreadPoolExecutor(1) as sender:
            sent = sender.submit(lambda: (end.sendall(data), end.shutdown(socket.SHUT_WR)))
            back = b""
            while piece := end.recv(65536):
                back += piece
            sent.result()
    return back == data

with concurrent.futures.ThreadPoolExecutor(20) as pool:
    print(sum(pool.map(echoed, range(40))))
"""


@pytest.mark.usefixtures("may_not_enter")
@pytest.mark.parametrize("dial", [BY_SOCKS, BY_NAME], ids=["socks", "transparent"])
def test_much_through_the_gate(open_jar: OpenJar, plain: Server, dial: str) -> None:
    """Many connections at once, both ways, each to its own end; and the run's output beside them."""
    jar = open_jar({**network(rule("echo.test", plain.address, 7)), "proc": {"pids": 128, "open_files": 512}})
    assert told(jar.run(MUCH.replace("DIAL", dial.strip()))) == "40\n"


@pytest.mark.usefixtures("enters")
def test_the_host_reaches_a_server_in_it(open_jar: OpenJar) -> None:
    """`net.publish`, with no network for the code."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    jar = open_jar({"net": {"publish": [f"{port}:8000"]}})
    code = """
import socket
server = socket.create_server(("127.0.0.1", 8000))
print("up", flush=True)
end, _ = server.accept()
end.sendall(end.recv(100).upper())
end.close()
"""
    stream = jar.stream(code)
    next(stream)
    rest = threading.Thread(target=lambda: list(stream))
    rest.start()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as end:
        end.sendall(b"hello")
        assert end.recv(100) == b"HELLO"
    rest.join()
