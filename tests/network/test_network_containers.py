"""The network of containers: the same gateway, or, where belljar may not enter, the gate's own channel."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from network_certificates import Certificates
from network_routes import OpenJar, codes, network, rule, run_python, told
from network_servers import Server
from network_web import Web

from belljar import Sandbox
from belljar.backends.container import backend as container_backend

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


@pytest.mark.usefixtures("may_not_enter")
def test_through_the_gate(jar: Sandbox) -> None:
    """Programs that heed the proxy's variables reach the same; the report says how."""
    result = jar.run(REACHES)
    assert told(result).splitlines() == [*SEEN, "403", "403"]
    assert codes(result) == {"method-not-listed", "path-not-listed", "name-not-listed", "address-not-listed"}
    assert "through the gate's own channel" in result.enforcement.clause("net.enabled").by


MUCH = """
import concurrent.futures, hashlib, socket, sys

def echoed(number):
    data = bytes([number]) * 300_000
    with socket.create_connection(("127.0.0.1", 1080), timeout=60) as end:
        end.sendall(b"\\x05\\x01\\x00")
        assert end.recv(2) == b"\\x05\\x00"
        end.sendall(b"\\x05\\x01\\x00\\x03\\x09echo.test" + (7).to_bytes(2, "big"))
        assert end.recv(10)[1] == 0
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
def test_much_through_the_gate(open_jar: OpenJar, plain: Server) -> None:
    """Many connections at once, both ways, each to its own end; and the run's output beside them."""
    jar = open_jar({**network(rule("echo.test", plain.address, 7)), "proc": {"pids": 128, "open_files": 512}})
    assert told(jar.run(MUCH)) == "40\n"


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
