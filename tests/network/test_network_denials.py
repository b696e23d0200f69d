"""What a policy does not allow is refused at once and told: a stable code, the rule, its file and line, the change.

The policy is a file here, so that lines can be told.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

import pytest
from network_daemons import need_program
from network_routes import (
    OpenJar,
    codes,
    decisions,
    denial,
    network,
    network_denials,
    rule,
    run_python,
    run_shell,
    summary,
    told,
)
from network_servers import Datagrams, Server
from network_web import Site, Web

from belljar.egress.events import Event

POLICY = """\
net:
  enabled: true
  allowlist:
    - host: web.test
      ports: [80, 8081]
      addresses: ['{web}']
    - host: api.test
      ports: [80]
      methods: [GET, HEAD]
      paths: [/public/**]
      query: [page]
      addresses: ['{web}']
    - host: '*.wild.test'
      ports: [80]
      addresses: ['{web}']
  denylist:
    - host: closed.wild.test
    - host: web.test
      methods: [DELETE]
      paths: [/kept/**]
"""
ALLOWLIST, WEB, API, CLOSED, KEPT = 4, 4, 7, 17, 18
"""Lines of it."""

CONNECT = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10)
except OSError as error:
    print(type(error).__name__)
else:
    print("connected")
"""
DATAGRAM = """
import socket, sys
family, kind, protocol, _, address = socket.getaddrinfo(sys.argv[1], int(sys.argv[2]), type=socket.SOCK_DGRAM)[0]
end = socket.socket(family, kind)
end.connect(address)
end.settimeout(10)
end.send(b"secret")
try:
    end.recv(100)
except OSError as error:
    print(type(error).__name__)
else:
    print("answered")
"""


@pytest.fixture
def policy_file(tmp_path: Path, web: Web) -> Path:
    """The policy, for the server of this test."""
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY.format(web=web.address))
    return path


class Attempt(NamedTuple):
    """What a program tries, what it sees, and how the refusal is told."""

    name: str
    code: str
    place: tuple[str, int]
    sees: str
    reason: str
    target: str
    rule: str
    line: int
    allow: str


ATTEMPTS = (
    Attempt(
        "a name that is not listed",
        CONNECT,
        ("nowhere.test", 80),
        "gaierror",
        "name-not-listed",
        "look up nowhere.test",
        "net.allowlist",
        ALLOWLIST,
        "net.allowlist: [nowhere.test]",
    ),
    Attempt(
        "a name that is denied",
        CONNECT,
        ("closed.wild.test", 80),
        "gaierror",
        "denied-by-rule",
        "look up closed.wild.test",
        "net.denylist[0]",
        CLOSED,
        "remove net.denylist[0]",
    ),
    Attempt(
        "a port of a listed name where nobody listens",
        CONNECT,
        ("web.test", 9999),
        "ConnectionRefusedError",
        "port-not-listed",
        "connect web.test:9999",
        "net.allowlist[0]",
        WEB,
        "net.allowlist[0].ports, with 9999",
    ),
    Attempt(
        "a port that is another name's",
        CONNECT,
        ("api.test", 8081),
        "connected",
        "port-not-listed",
        "connect api.test:8081",
        "net.allowlist[1]",
        API,
        "net.allowlist[1].ports, with 8081",
    ),
    Attempt(
        "an address, on a port that is listed",
        CONNECT,
        ("192.0.2.7", 8081),
        "connected",
        "address-not-listed",
        "connect 192.0.2.7:8081",
        "net.allowlist",
        ALLOWLIST,
        "net.allowlist: [{host: '192.0.2.7', ports: [8081]}]",
    ),
    Attempt(
        "an address, on a port that is not",
        CONNECT,
        ("192.0.2.7", 9999),
        "ConnectionRefusedError",
        "address-not-listed",
        "connect 192.0.2.7:9999",
        "net.allowlist",
        ALLOWLIST,
        "net.allowlist: [{host: '192.0.2.7', ports: [9999]}]",
    ),
    Attempt(
        "an IPv6 address",
        CONNECT,
        ("2001:db8::7", 9999),
        "ConnectionRefusedError",
        "address-not-listed",
        "connect [2001:db8::7]:9999",
        "net.allowlist",
        ALLOWLIST,
        "net.allowlist: [{host: '2001:db8::7', ports: [9999]}]",
    ),
    Attempt(
        "a datagram to an address",
        DATAGRAM,
        ("192.0.2.7", 443),
        "ConnectionRefusedError",
        "udp",
        "send a datagram to 192.0.2.7:443",
        "net.allowlist",
        ALLOWLIST,
        "no policy allows it: UDP does not leave a jar, but for DNS",
    ),
    Attempt(
        "a datagram to a listed name",
        DATAGRAM,
        ("web.test", 80),
        "ConnectionRefusedError",
        "udp",
        "send a datagram to web.test:80",
        "net.allowlist",
        ALLOWLIST,
        "no policy allows it: UDP does not leave a jar, but for DNS",
    ),
    Attempt(
        "a datagram over IPv6",
        DATAGRAM,
        ("2001:db8::7", 443),
        "ConnectionRefusedError",
        "udp",
        "send a datagram to [2001:db8::7]:443",
        "net.allowlist",
        ALLOWLIST,
        "no policy allows it: UDP does not leave a jar, but for DNS",
    ),
)


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_attempt_is_refused_at_once_and_told(open_jar: OpenJar, policy_file: Path, web: Web, attempt: Attempt) -> None:
    """Nobody waits for a time limit, and nobody has to guess."""
    jar = open_jar(policy_file)
    host, port = attempt.place
    started = time.monotonic()
    result = run_python(jar, attempt.code, host, str(port))
    assert time.monotonic() - started < 8, "it waited for a time limit"
    assert told(result) == f"{attempt.sees}\n", summary(result)
    refusal = denial(result, attempt.reason)
    assert (refusal.target, refusal.rule) == (attempt.target, attempt.rule)
    assert refusal.where == f"{policy_file}:{attempt.line}"
    assert refusal.allow.startswith(attempt.allow), refusal.allow
    assert codes(result) == {attempt.reason}
    assert not web.heard


class Asked(NamedTuple):
    """A request that is refused."""

    name: str
    words: str
    reason: str
    target: str
    rule: str
    line: int
    allow: str


REQUESTS = (
    Asked(
        "a method",
        "-X POST http://api.test/public/a",
        "method-not-listed",
        "POST api.test/public/a",
        "net.allowlist[1]",
        API,
        "net.allowlist[1].methods, with POST",
    ),
    Asked(
        "a path",
        "http://api.test/private/a",
        "path-not-listed",
        "GET api.test/private/a",
        "net.allowlist[1]",
        API,
        "net.allowlist[1].paths, with /private/a",
    ),
    Asked(
        "a path that is dressed up",
        "--path-as-is http://api.test/public/../private/a",
        "path-ambiguous",
        "GET api.test/public/../private/a",
        "net.allowlist[1]",
        API,
        "no policy allows it",
    ),
    Asked(
        "a key of the query",
        "http://api.test/public/a?page=1&data=secret",
        "query-not-listed",
        "GET api.test/public/a",
        "net.allowlist[1]",
        API,
        "net.allowlist[1].query, with data",
    ),
    Asked(
        "what a deny rule names",
        "-X DELETE http://web.test/kept/a",
        "denied-by-rule",
        "DELETE web.test/kept/a",
        "net.denylist[1]",
        KEPT,
        "remove net.denylist[1]",
    ),
    Asked(
        "an address on a port that is answered",
        "http://192.0.2.7/",
        "address-not-listed",
        "connect 192.0.2.7:80",
        "net.allowlist",
        ALLOWLIST,
        "net.allowlist: ['192.0.2.7']",
    ),
)


@pytest.mark.parametrize(
    ("asked", "route"),
    [
        (asked, route)
        for asked in REQUESTS
        for route in ("transparent", "http", "socks")
        if route != "socks" or not asked.target.startswith("connect")  # SOCKS refuses a connection without words
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_request_is_refused_in_plain_words(
    open_jar: OpenJar, policy_file: Path, site: Site, asked: Asked, route: str
) -> None:
    """403, with the reason, the rule with its file and line, and the change; the server has seen nothing."""
    need_program("curl", "curl")
    result = run_shell(open_jar(policy_file), f"curl -sS -w '%{{http_code}}' {_quoted(asked.words)}", route=route)
    body = told(result)
    assert body.endswith("403")
    where = f"{policy_file}:{asked.line}"
    for words in (f"reason: {asked.reason}: ", f"rule:   {asked.rule} ({where})"):
        assert words in body, body
    refusal = denial(result, asked.reason)
    assert refusal.target.startswith(asked.target), refusal
    assert (refusal.rule, refusal.where) == (asked.rule, where)
    assert refusal.allow.startswith(asked.allow), refusal.allow
    if not asked.allow.startswith("no policy"):
        assert f"allow:  {asked.allow}" in body, body
    assert not site.requests


def _quoted(words: str) -> str:
    *options, address = words.split(" ")
    return " ".join([*options, f"'{address}'"])


@pytest.mark.parametrize("route", ["transparent", "http", "socks"])
def test_allowed_request_passes_and_its_neighbour_does_not(
    open_jar: OpenJar, policy_file: Path, site: Site, route: str
) -> None:
    """On one kept-alive connection, each request is judged by itself."""
    need_program("curl", "curl")
    script = """curl -sS -w '%{http_code} %{num_connects}\\n' -o /dev/null \
        http://api.test/public/one --next \
        -sS -w '%{http_code} %{num_connects}\\n' -o /dev/null --data secret http://api.test/public/two --next \
        -sS -w '%{http_code} %{num_connects}\\n' -o /dev/null 'http://api.test/public/three?page=7'"""
    result = run_shell(open_jar(policy_file), script, route=route)
    lines = told(result).splitlines()
    assert [line.split()[0] for line in lines] == ["200", "403", "200"], summary(result)
    assert [(request.method, request.path) for request in site.requests] == [
        ("GET", "/public/one"),
        ("GET", "/public/three?page=7"),
    ]
    assert codes(result) == {"method-not-listed"}


def test_refusal_inside_tls_is_in_words_too(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """A program that speaks TLS reads the same 403, from a certificate that it trusts."""
    need_program("curl", "curl")
    jar = net_jar(network(rule("web.test", secure.address, 443, methods=["GET"]), rule("web.test", secure.address, 80)))
    script = "curl -sS https://web.test/a; curl -sS -w '%{http_code}\\n' -d secret https://web.test/a"
    result = run_shell(jar, script)
    said = told(result)
    assert said.startswith("hello from web.test/a to GET\n")
    assert "reason: method-not-listed: " in said
    assert said.endswith("403\n")
    assert [request.method for request in site.requests] == ["GET"]


def test_tls_to_an_unlisted_address_is_told_in_words(net_jar: OpenJar) -> None:
    """Whoever looks at it sees why: the certificate is for the name that was asked for."""
    need_program("curl", "curl")
    jar = net_jar(network(rule("web.test", "127.0.0.1:1", 443)))
    script = "curl -sS --resolve nowhere.test:443:192.0.2.7 https://nowhere.test/"
    result = run_shell(jar, script)
    assert "reason: address-not-listed: " in told(result)
    assert denial(result, "address-not-listed").target == "connect 192.0.2.7:443"


def test_server_that_nobody_signed_is_refused(net_jar: OpenJar, site: Site, certificates: object) -> None:
    """Where belljar opens TLS it verifies the server, as the program would have."""
    from network_certificates import Certificates

    need_program("curl", "curl")
    assert isinstance(certificates, Certificates)
    with Web(site, tls=certificates.context(known=False)) as stranger:
        jar = net_jar(network(rule("web.test", stranger.address, 443, methods=["GET"])))
        result = run_shell(jar, "curl -sS -w '%{http_code}' https://web.test/")
    assert told(result).endswith("502"), summary(result)
    assert "upstream-certificate" in codes(result)
    assert not site.requests


def test_datagrams_and_direct_connections_reach_nobody(open_jar: OpenJar, plain: Server) -> None:
    """Not even servers on the host's own loopback, by whatever name of it."""
    with Datagrams() as datagrams:
        jar = open_jar(network(rule("web.test", plain.address, 80)))
        code = f"""
import socket
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for host in ("127.0.0.1", "198.19.255.1", "198.18.0.1", "192.0.2.7", "host.belljar.internal", "localhost"):
    for attempt in (lambda: udp.sendto(b"secret", (host, {datagrams.port})),
                    lambda: socket.create_connection((host, {plain.port}), timeout=3).send(b"secret")):
        try:
            attempt()
        except OSError:
            pass
"""
        told(run_python(jar, code))
        assert not datagrams.heard
        assert not plain.heard


def test_empty_allowlist_allows_nothing(open_jar: OpenJar, plain: Server) -> None:
    """CVE-2025-66479: an empty list is no "allow all": names, addresses, and the proxy itself."""
    jar = open_jar(network())
    code = f"""
import socket
def proxied(asked, host):
    end = socket.create_connection(("198.18.0.1", 3128), timeout=5)
    end.sendall(f"{{asked}} HTTP/1.1\\r\\nHost: {{host}}\\r\\n\\r\\n".encode())
    return end.recv(1000).split(b"\\r\\n")[0].decode()
for attempt in (lambda: socket.create_connection(("127.0.0.1", {plain.port}), timeout=3),
                lambda: socket.create_connection(("localhost", {plain.port}), timeout=3),
                lambda: socket.create_connection(("web.test", {plain.port}), timeout=3),
                lambda: proxied("CONNECT 127.0.0.1:{plain.port}", "127.0.0.1:{plain.port}"),
                lambda: proxied("GET http://localhost:{plain.port}/", "localhost:{plain.port}")):
    try:
        print(attempt())
    except OSError as error:
        print(type(error).__name__)
"""
    result = run_python(jar, code)
    refused = ["HTTP/1.1 403 Forbidden"] * 2
    assert told(result).splitlines() == ["ConnectionRefusedError", "ConnectionRefusedError", "gaierror", *refused]
    assert {"name-not-listed", "address-not-listed"} <= codes(result)
    assert not any(allowed for kind in ("name", "connect") for _host, allowed in decisions(result, kind))
    assert not plain.heard


def test_limits_of_names(open_jar: OpenJar, web: Web) -> None:
    """A name that carries data: too long, too random, too many. Each is told."""
    policy = network(rule("*.wild.test", web.address, 80), max_name_length=60, max_names=3)
    code = """
import socket
def known(name):
    try:
        socket.getaddrinfo(name, 80)
        return True
    except OSError:
        return False
print(known("a.wild.test"), known("a" * 51 + ".wild.test"), known("k3j9x0q8z7w2v6b1n4m5p.wild.test"))
print([known(f"n{at}.wild.test") for at in range(4)], known("a.wild.test"))
"""
    result = run_python(open_jar(policy), code)
    assert told(result) == "True False False\n[True, True, False, False] True\n"
    assert codes(result) == {"name-too-long", "name-entropy", "too-many-names"}


def test_every_decision_is_heard_as_it_is_made(open_jar: OpenJar, web: Web) -> None:
    """The feed has what the result has, in order."""
    need_program("curl", "curl")
    heard: list[Event] = []
    jar = open_jar(network(rule("web.test", web.address, 80)), on_egress=heard.append)
    result = run_shell(jar, "curl -sS http://web.test/; curl -sS http://nowhere.test/ || true")
    told(result)
    assert tuple(heard) == result.egress
    assert ("web.test", True) in decisions(result, "request")
    assert ("nowhere.test", False) in decisions(result, "name")


def test_server_of_the_test_is_there(plain: Server) -> None:
    """A control: what these tests say was not heard, would have been."""
    import socket

    with socket.create_connection(("127.0.0.1", plain.port), 5) as end:
        end.sendall(b"word")
        assert end.recv(10) == b"word"
    assert plain.heard[:2] == ["connection", "word"]


def test_a_name_that_has_no_address_is_no_denial(open_jar: OpenJar) -> None:
    """The policy allows it, so there is nothing to change; the record says what failed, and so does the report."""
    from belljar.cli.run.outcome import report

    code = "import urllib.request; urllib.request.urlopen('http://no-such-name.invalid/')"
    result = run_python(open_jar(network({"host": "no-such-name.invalid"})), code)
    assert result.denials == ()
    assert "the name can't be resolved" in next(event for event in result.egress if event.reason == "upstream").detail
    told_people = report(result, quiet=True, explained=False)
    assert "belljar: not reached: no-such-name.invalid:80: the name can't be resolved" in told_people
    assert "denied" not in told_people


def test_the_report_says_why_a_host_was_refused(open_jar: OpenJar) -> None:
    """Between what was tried and the rule."""
    from belljar.cli.run.outcome import report

    code = "import socket; socket.getaddrinfo('api.openai.com', 443)"
    lines = report(run_python(open_jar(network({"host": "*"})), code), quiet=True, explained=False).splitlines()
    at = lines.index("belljar: denied: look up api.openai.com")
    assert lines[at + 1] == (
        "  reason:   rule-too-broad: a rule with a star does not open this kind of host, only one that names it does"
    )
    assert lines[at + 3] == "  to allow: net.allowlist: [api.openai.com]"


def test_a_server_in_the_jar_is_no_denial(open_jar: OpenJar) -> None:
    """`python -m http.server` asks which of its own addresses is best, by connecting to them; the control is one that
    is not its own.
    """
    ask = "import http.server; http.server._get_best_family(None, 8000)"
    jar = open_jar({"net": {"enabled": False}})
    assert network_denials(jar.run(ask, explain_denials=True)) == []
    other = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.7', 8000))"
    (denied,) = network_denials(jar.run(other, explain_denials=True))
    assert denied.target == "connect 192.0.2.7:8000"
