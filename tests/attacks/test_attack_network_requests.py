"""An allowed host as a way to another one: fronting, confused requests, smuggling, foreign keys, relays, other jars.

A server of two names, `web.test` and `other.test`; the policy allows the first. An attack has succeeded if the server
was asked for the second, or for `/smuggled`. The controls reach the same server without belljar: directly, or through a
proxy that is careless; or in a jar whose policy allows what is tried.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attack_control import python_control
from attack_egress import JAR_ROUTES, CarelessProxy, probe, said_by
from network_certificates import Certificates, make_certificates
from network_servers import Server, echo
from network_web import NAMES, Site, Web
from test_attack_network import KINDS, WAYS, Ears, fill

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]
ROUTES = pytest.mark.parametrize("route", ["transparent", "http", "socks"])


class Servers:
    """Two ports of one site, and a memory of the TLS server names that were asked for."""

    def __init__(self, certificates: Certificates) -> None:
        self.site = Site()
        self.server_names: list[str | None] = []
        context = certificates.context()
        context.sni_callback = self._take
        self.plain = Web(self.site)
        self.secure = Web(self.site, tls=context)
        self.certificates = certificates

    def _take(self, _socket: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        self.server_names.append(name)

    def close(self) -> None:
        self.plain.close()
        self.secure.close()

    @property
    def fooled(self) -> set[str]:
        """What it was asked for that the policy does not allow."""
        asked = {request.headers.get("host", "") for request in self.site.requests} | {
            str(name) for name in self.server_names
        }
        paths = {request.path for request in self.site.requests}
        hidden = {name for name in asked if "other.test" in name} | {path for path in paths if "other.test" in path}
        upgrades = {request.headers.get("upgrade", "") for request in self.site.requests} - {"", "websocket"}
        return hidden | upgrades | {path for path in paths if path == "/smuggled"}

    @property
    def direct(self) -> str:
        """Where a control finds them."""
        places = {
            f"{name}:{port}": ["127.0.0.1", server.port]
            for name in ("web.test", "other.test")
            for port, server in ((80, self.plain), (443, self.secure))
        }
        return json.dumps(places)

    def policy(self, **more: Any) -> dict[str, Any]:
        rules = [
            {"host": "web.test", "ports": [80], "addresses": [self.plain.address]},
            {"host": "web.test", "ports": [443], "addresses": [self.secure.address], **more},
        ]
        return {"net": {"enabled": True, "allowlist": rules, "ca_file": str(self.certificates.authority)}}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"), NAMES)


@pytest.fixture
def servers(certificates: Certificates) -> Iterator[Servers]:
    """Of two names."""
    made = Servers(certificates)
    yield made
    made.close()


class _CarelessFor(CarelessProxy):
    """One that knows both names, by their port."""

    def __init__(self, servers: Servers) -> None:
        super().__init__({})
        self._servers = servers

    def _dial(self, name: bytes, port: int) -> Any:
        import socket

        server = self._servers.secure if port == 443 else self._servers.plain
        return socket.create_connection(("127.0.0.1", server.port), 5)


def in_control(servers: Servers, route: str, code: str, *arguments: str) -> str:
    """What the probe says without belljar, on the same route."""
    careless = _CarelessFor(servers)
    try:
        return python_control(code, *careless.route(route), servers.direct, *arguments, network=True)
    finally:
        careless.close()


# --- one connection, two hosts ---------------------------------------------------------------------------------------

FRONTING = {
    "another server name": "over_tls(dial('web.test', 443), 'other.test').version()",
    "another Host": "get(web(), '/', 'Host: other.test')",
    "another Host, with a port": "get(web(), '/', 'Host: other.test:80')",
    "another Host inside TLS": "get(tls(), '/', 'Host: other.test')",
    "two Hosts": "get(web(), '/', 'Host: other.test', 'Host: web.test')",
    "two Hosts, the other way round": "get(web(), '/', 'Host: web.test', 'Host: other.test')",
    "Host with a user": "get(web(), '/', 'Host: web.test@other.test')",
    "Host in a folded line": "get(web(), '/', 'Host: web.test\\r\\n other.test')",
    "Host with a space before its colon": "get(web(), '/', 'Host: web.test', 'Host : other.test')",
    "an absolute target": "get(web(), 'http://other.test/', 'Host: web.test')",
    "an absolute target, and another Host": "get(web(), 'http://web.test/', 'Host: other.test')",
    "an absolute target inside TLS": "get(tls(), 'https://other.test/', 'Host: web.test')",
    "a second request": "twice(web())",
    "a second request inside TLS": "twice(tls())",
    "a proxy behind the proxy": "send(web(), 'CONNECT other.test:443 HTTP/1.1', 'Host: other.test:443')",
    "another protocol": "get(web(), '/upgraded', 'Host: web.test', *UPGRADE)",
    "both requests at once": "get(web(), '/', 'Host: web.test', '', 'GET / HTTP/1.1', 'Host: other.test')",
}
REQUESTS = """
def web():
    return dial("web.test", 80)
def tls(name="web.test"):
    return over_tls(dial(name, 443), name)
def send(end, *lines):
    end.sendall("\\r\\n".join([*lines, "", ""]).encode())
    return read_answer(end)
def get(end, target, *headers):
    return send(end, f"GET {target} HTTP/1.1", *headers)
UPGRADE = "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"
def twice(end):
    first = get(end, "/", "Host: web.test")
    assert b" 200 " in first, first
    return get(end, "/", "Host: other.test")
"""
SMUGGLING = {
    "length and chunks": "post('Content-Length: {}', 'Transfer-Encoding: chunked', before='0\\r\\n\\r\\n')",
    "chunks and length": "post('Transfer-Encoding: chunked', 'Content-Length: {}', before='0\\r\\n\\r\\n')",
    "chunks in odd letters": "post('Content-Length: {}', 'tRANSFER-eNCODING: CHUNKED', before='0\\r\\n\\r\\n')",
    "length twice": "post('Content-Length: 0', 'Content-Length: {}')",
    "no length": "post('X-Length: {}')",
    "a body of GET": "post('X-Length: {}', method='GET')",
}
POSTING = """
def post(*headers, before="", method="POST"):
    end = dial("web.test", 80)
    body = before + "GET /smuggled HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n"
    lines = [f"{method} / HTTP/1.1", "Host: web.test", *(header.format(len(body)) for header in headers)]
    end.sendall("\\r\\n".join([*lines, "", body]).encode())
    read_answer(end)
    return read_answer(end)
"""


def attempts(rows: dict[str, str]) -> str:
    return "\n".join(f"attempt({row!r}, lambda: {what})" for row, what in rows.items())


@ROUTES
def test_allowed_name_is_no_front_for_another(open_jar: OpenJar, servers: Servers, route: str) -> None:
    """The server name, the Host and the target are those of the host that was dialled, in every request."""
    code = probe(REQUESTS + attempts(FRONTING))
    jar = open_jar(servers.policy(methods=["GET", "POST"]), overrides=["proc.timeout_ms=60s"])
    result = jar.run(code, args=[*JAR_ROUTES[route], "{}"])
    said_by(result)
    assert not servers.fooled, result
    codes = {denial.code for denial in result.denials}
    assert {"authority-mismatch", "server-name-mismatch"} <= codes, codes
    asked_for_the_first = len(servers.site.requests)
    assert asked_for_the_first >= 2, "the first of two requests is allowed"
    said = said_by(in_control(servers, route, code))
    targets = {"http://other.test/", "https://other.test/"}
    assert {
        "other.test",
        "other.test:80",
        "web.test@other.test",
        "other.test:443",
        "h2c",
        *targets,
    } <= servers.fooled, said
    assert [request.headers["host"] for request in servers.site.requests[asked_for_the_first:]].count("other.test") >= 5


@ROUTES
def test_server_name_in_a_connection_that_is_passed_through(open_jar: OpenJar, servers: Servers, route: str) -> None:
    """Where TLS is not opened, its server name is what is seen: it has to be there, and to be the host's."""
    rows = {"other": FRONTING["another server name"], "none": "over_tls(dial('web.test', 443), None).version()"}
    code = probe(attempts(rows))
    result = open_jar(servers.policy()).run(code, args=[*JAR_ROUTES[route], "{}"])
    said_by(result)
    assert not servers.server_names
    assert {"server-name-mismatch", "server-name-missing"} <= {denial.code for denial in result.denials}
    in_control(servers, route, code)
    assert servers.server_names == ["other.test", None]


@ROUTES
def test_request_is_not_smuggled(open_jar: OpenJar, servers: Servers, route: str) -> None:
    """Where two servers would disagree about the end of a request, it is refused: whatever arrives was judged."""
    policy = servers.policy()
    policy["net"]["allowlist"][0]["paths"] = ["/"]
    code = probe(POSTING + attempts(SMUGGLING))
    result = open_jar(policy, overrides=["proc.timeout_ms=60s"]).run(code, args=[*JAR_ROUTES[route], "{}"])
    said_by(result)
    assert not servers.fooled, result
    assert {"bad-request", "path-not-listed"} <= {denial.code for denial in result.denials}
    in_control(servers, route, code)
    assert [request.path for request in servers.site.requests].count("/smuggled") == len(SMUGGLING)


# --- what is allowed, used for someone else --------------------------------------------------------------------------

KEYS = """
attempt("foreign", lambda: get(tls(), "/v1/files", "Host: web.test", "x-api-key: of-the-attacker"))
attempt("placeholder", lambda: get(tls("other.test"), "/", "Host: other.test", "x-api-key: a-placeholder"))
attempt("bound", lambda: get(tls(), "/bound", "Host: web.test", "x-api-key: a-placeholder"))
"""


@ROUTES
def test_foreign_key_and_placeholder(
    open_jar: OpenJar, servers: Servers, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """A key of someone else's does not reach a host that has one; a placeholder is worth nothing at any other host.

    In a jar whose policy has no credential for the host, the foreign key arrives.
    """
    monkeypatch.setenv("KEY_OF_THE_HOST", "the-real-key")
    policy = servers.policy()
    policy["net"]["allowlist"].append({"host": "other.test", "ports": [443], "addresses": [servers.secure.address]})
    code = probe(REQUESTS + KEYS)
    control = open_jar(policy).run(code, args=[*JAR_ROUTES[route], "{}"])
    said_by(control)
    assert "of-the-attacker" in {request.headers.get("x-api-key") for request in servers.site.requests}
    servers.site.requests.clear()
    policy["net"]["allowlist"][1]["credential"] = "key"
    policy["credentials"] = {
        "key": {"from": "env:KEY_OF_THE_HOST", "header": "x-api-key", "placeholder": "a-placeholder"}
    }
    result = open_jar(policy).run(code, args=[*JAR_ROUTES[route], "{}"])
    assert "foreign-credential" in {denial.code for denial in result.denials}, result
    arrived = {(request.host, request.headers.get("x-api-key")) for request in servers.site.requests}
    assert arrived == {("web.test", "the-real-key"), ("other.test", "a-placeholder")}


# --- around the proxy ------------------------------------------------------------------------------------------------


@pytest.fixture
def ears(arena: Path) -> Iterator[Ears]:
    """Listeners on the host."""
    listeners = Ears(arena)
    yield listeners
    listeners.close()


def test_nothing_goes_around_the_proxy(open_jar: OpenJar, servers: Servers, ears: Ears) -> None:
    """The tables of `test_attack_network`, which has their controls, in a jar whose network is open.

    Its listeners hear nothing by any way, and no socket is had that is not TCP's or UDP's.
    """
    jar = open_jar(servers.policy(), overrides=["proc.timeout_ms=60s"])
    programs = json.dumps([fill(way.body, ears) for way in WAYS if "6}" not in way.body or ears.ports["tcp6"]])
    each = "import subprocess\nfor code in json.loads(sys.argv[5]): subprocess.run([sys.executable, '-c', code])"
    rows = {kind.name: f"{kind.body} and 'had'" for kind in KINDS}
    result = jar.run(probe(f"{each}\n{attempts(rows)}"), args=[*JAR_ROUTES["transparent"], "{}", programs])
    said = said_by(result)
    assert not ears.heard(0.1)
    assert result.stdout.count("ESCAPED") + result.stdout.count("HELD") == len(json.loads(programs))
    assert len(said) == len(KINDS)
    had = {row for row, answer in said.items() if "Error" not in answer}
    assert had <= ({"another address for the interface"} if jar.backend_name == "gvisor" else set()), said


RELAY = """
import select
def relay(listener, host, port):
    end, _ = listener.accept()
    other = dial(host, port)
    other.sendall(end.recv(100))
    end.sendall(other.recv(100))
def through_a_relay():
    listener = socket.create_server(("127.0.0.1", 0))
    def serve():
        attempt("relay", lambda: relay(listener, sys.argv[5], int(sys.argv[6])))
    thread = threading.Thread(target=serve)
    thread.start()
    end = socket.create_connection(listener.getsockname(), timeout=5)
    end.sendall(b"secret")
    thread.join()
    return "asked"
def by_address(host):
    end = dial(host, int(sys.argv[6]))
    end.sendall(b"secret")
    return end.recv(100)
attempt("through", through_a_relay)
for host in ("127.0.0.1", "localhost"):
    attempt(host, lambda: by_address(host))
"""


@ROUTES
def test_relay_in_the_jar_reaches_no_more(open_jar: OpenJar, servers: Servers, route: str) -> None:
    """A proxy that the code starts for itself has the code's network: to the proxy it is the code."""
    with Server(echo) as victim:
        policy = servers.policy()
        policy["net"]["allowlist"][0]["ports"] = [80, victim.port]
        arguments = ["{}", "127.0.0.1", str(victim.port)]
        said_by(open_jar(policy).run(probe(RELAY), args=[*JAR_ROUTES[route], *arguments]))
        assert not victim.heard
        careless = CarelessProxy({"127.0.0.1": victim.port})
        careless_arguments = ["{}", "localhost", str(victim.port)]
        try:
            python_control(probe(RELAY), *careless.route(route), *careless_arguments, network=True)
        finally:
            careless.close()
        assert "secret" in victim.heard


OTHERS_NAME = """
told["address"] = socket.gethostbyname("plain.test")
end = dial("plain.test", 7)
end.sendall(b"mine")
attempt("mine", lambda: end.recv(10))
"""
OTHERS_ADDRESS = """
def reach(host):
    end = dial(host, 7)
    end.sendall(b"not mine")
    end.settimeout(3)
    return end.recv(10)
for host in sys.argv[5:]:
    attempt(host, lambda: reach(host))
"""


@ROUTES
def test_proxy_serves_each_jar_by_its_own_rules(open_jar: OpenJar, route: str) -> None:
    """Neither a name of another jar's, nor the address that stands for it there, nor that jar's own addresses lead on.

    The control is the other jar, whose policy allows it.
    """
    with Server(echo) as server:
        rule = {"host": "plain.test", "ports": [7], "addresses": [server.address]}
        allowed = open_jar({"net": {"enabled": True, "allowlist": [rule]}})
        told = said_by(allowed.run(probe(OTHERS_NAME), args=[*JAR_ROUTES[route], "{}"]))
        assert told["mine"] == "b'mine'"
        assert server.heard == ["connection", "mine"]
        server.forget()
        unlisted = open_jar({"net": {"enabled": True, "allowlist": [{"host": "nowhere.test", "ports": [7]}]}})
        targets = ["plain.test", told["address"], "198.19.255.1", "fd62:656c:6c6a:1::1", "198.18.0.1"]
        result = unlisted.run(probe(OTHERS_ADDRESS), args=[*JAR_ROUTES[route], "{}", *targets])
        said = said_by(result)
        assert not [answer for answer in said.values() if "mine" in answer], said
        assert not server.heard
        assert {"name-not-listed", "address-not-listed"} <= {denial.code for denial in result.denials}
