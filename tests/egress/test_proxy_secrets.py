"""Credentials, canary tokens, budgets and rates, as the proxy applies them to what passes."""

from __future__ import annotations

import base64
import os
import signal
import socket
import threading
from collections.abc import Callable
from urllib.parse import quote

import pytest
from proxy_bench import Bench, HttpServer, echo, exchange, http_serving, read_all, rule, rules, serving
from test_proxy_http import ask, status
from test_proxy_tls import World, world  # noqa: F401 a fixture

from belljar.egress.client.client import ProxyClient
from belljar.egress.decide.canary_tokens import Scanner, Tokens
from belljar.policy.models import Credential

Make = Callable[..., Bench]
TOKEN = b"7f3a9c1e5b7d2f4a6c8e0b1d3f5a7c9e1b3d5f70"
KEY = Credential("key", source="env:KEY", placeholder="placeholder-of-key")


def bound(server: HttpServer, *, credential: Credential = KEY, **more: object) -> dict[str, object]:
    """Rules that bind a credential to the server, and its secret."""
    given = rules(rule("web.test", server.port, credential=credential.name, **more), credentials=(credential,))
    return {"given": given, "secrets": {credential.name: "s3cret-value"}}


@pytest.mark.parametrize("sent", ["", "Authorization: Bearer placeholder-of-key\n"])
def test_the_credential_is_put_in(bench: Make, sent: str) -> None:
    with http_serving() as server:
        run = bench(**bound(server))
        assert status(ask(run, server.port, f"GET / HTTP/1.1\nHost: web.test\n{sent}Connection: close\n\n")) == 200
        assert server.seen[0][2]["authorization"] == "Bearer s3cret-value"
        assert run.wait_for(lambda event: event.kind == "credential").detail == "key"
        assert not [event for event in run.events if "s3cret" in repr(event)]


def test_a_foreign_credential_is_refused(bench: Make) -> None:
    with http_serving() as server:
        run = bench(**bound(server))
        answer = ask(run, server.port, "GET / HTTP/1.1\nHost: web.test\nX-Api-Key: theirs\n\n")
        assert status(answer) == 403
        assert b"foreign-credential" in answer
        assert server.seen == []


def test_a_placeholder_sent_elsewhere_stays_a_placeholder(bench: Make) -> None:
    with http_serving() as server, http_serving() as other:
        given = rules(
            rule("web.test", server.port, credential="key"), rule("other.test", other.port), credentials=(KEY,)
        )
        run = bench(given, secrets={"key": "s3cret-value"})
        request = "GET / HTTP/1.1\nHost: other.test\nAuthorization: Bearer placeholder-of-key\nConnection: close\n\n"
        ask(run, other.port, request, host="other.test")
        assert "s3cret" not in repr(other.seen)


def test_a_secret_that_comes_back_is_blotted_out(bench: Make) -> None:
    """In the body, wherever its chunks are cut, and in the headers; the length stays."""

    def reflect(sock: socket.socket) -> None:
        sock.recv(65536)
        body = b"token=s3cret-value;"
        sock.sendall(b"HTTP/1.1 200 OK\r\nX-Token: s3cret-value\r\nContent-Length: %d\r\n\r\n" % len(body))
        for byte in body:
            sock.sendall(bytes((byte,)))

    credential = Credential("key", source="env:KEY", reflects=True)
    with serving(reflect) as server:
        given = rules(rule("web.test", server.port, credential="key"), credentials=(credential,))
        run = bench(given, secrets={"key": "s3cret-value"})
        answer = ask(run, server.port, "GET / HTTP/1.1\nHost: web.test\nAccept-Encoding: gzip\nConnection: close\n\n")
        assert answer.endswith(b"token=************;")
        assert b"s3cret" not in answer


def test_requests_are_signed(bench: Make) -> None:
    signer = Credential("signer", source="env:K", algorithm="hmac-sha256", key_id="k1")
    with http_serving() as server:
        given = rules(rule("web.test", server.port, sign="signer"), credentials=(signer,))
        run = bench(given, secrets={"signer": base64.b64encode(b"k" * 32).decode()})
        assert status(ask(run, server.port, "GET /s?a=b HTTP/1.1\nHost: web.test\nConnection: close\n\n")) == 200
        assert 'keyid="k1"' in server.seen[0][2]["signature-input"]
        assert "signature" in server.seen[0][2]


def test_headers_are_stripped(bench: Make) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port), strip_headers=("x-trace",)))
        ask(
            run,
            server.port,
            "GET / HTTP/1.1\nHost: web.test\nX-Trace: 1\nForwarded: for=me\nX-Forwarded-For: me\nX-Kept: 1\n"
            "Connection: close\n\n",
        )
        assert set(server.seen[0][2]) == {"host", "x-kept"}


WAYS = {
    "path": lambda token: b"GET /%s HTTP/1.1\r\nHost: web.test\r\n\r\n" % token,
    "percent": lambda token: (
        b"GET /?q=%s HTTP/1.1\r\nHost: web.test\r\n\r\n" % "".join(f"%{byte:02x}" for byte in token).encode()
    ),
    "header": lambda token: b"GET / HTTP/1.1\r\nHost: web.test\r\nCookie: a=%s\r\n\r\n" % token,
    "body": lambda token: b"POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 46\r\n\r\nabc%sdef" % token,
    "base64": lambda token: (
        b"POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 64\r\n\r\n%s"
        % base64.b64encode(b"xxxxx" + token + b"yy")
    ),
    "hex": lambda token: b"POST / HTTP/1.1\r\nHost: web.test\r\nContent-Length: 80\r\n\r\n%s" % token.hex().encode(),
    "chunks": lambda token: (
        b"POST / HTTP/1.1\r\nHost: web.test\r\nTransfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"1\r\n%c\r\n" % byte for byte in token)
        + b"0\r\n\r\n"
    ),
    "raw": lambda token: b"\x00\x01" + token,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_canary_token_stops_the_run(bench: Make, way: str) -> None:
    """Whole it never arrives, and nothing of the run passes after it."""
    arrived: list[bytes] = []

    def swallow(sock: socket.socket) -> None:
        while data := sock.recv(65536):
            arrived.append(data)

    with serving(swallow) as server:
        run = bench(rules(rule("web.test", server.port), canaries=True), canaries=(TOKEN,))
        with run.by_socks("web.test", server.port) as sock:
            exchange(sock, WAYS[way](TOKEN))
        event = run.wait_for(lambda event: event.kind == "canary")
        assert (event.host, event.allowed, event.reason) == ("web.test", False, "canary")
        assert TOKEN not in b"".join(arrived)
        assert TOKEN not in repr(run.events).encode()
        with pytest.raises(OSError):
            run.by_socks("web.test", server.port)


def test_a_token_in_a_name_stops_the_run(bench: Make) -> None:
    run = bench(rules(rule("*.web.test", 443), canaries=True), canaries=(TOKEN,))
    with pytest.raises(OSError):
        run.by_socks(TOKEN + b".web.test", 443).close()
    run.wait_for(lambda event: event.kind == "canary")


def test_a_token_inside_tls_stops_the_run(world: World) -> None:  # noqa: F811
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port), canaries=True), canaries=(TOKEN,))
        url = f"https://web.test:{server.port}"
        assert world.curl(run, f"{url}/fine") == (0, "GET /fine ")
        assert world.curl(run, "-d", TOKEN.decode(), url)[0] != 0
        run.wait_for(lambda event: event.kind == "canary")
        assert TOKEN.decode() not in repr(server.seen)


def test_a_token_inside_http2_stops_the_run(world: World) -> None:  # noqa: F811
    with world.http2() as (told, server):
        run = world.run(rules(rule("web.test", server.port), canaries=True), canaries=(TOKEN,))
        url = f"https://web.test:{server.port}"
        assert world.curl(run, f"{url}/fine") == (0, "GET /fine ")
        assert world.curl(run, "-H", f"X: {TOKEN.decode()}", url)[0] != 0
        run.wait_for(lambda event: event.kind == "canary")
        assert len(told.seen) == 1


def test_a_token_in_the_last_question_does_not_hold_up_the_end(bench: Make, proxy: ProxyClient) -> None:
    """It stops a run that is being ended already: whoever waits for that end hears of it."""
    run = bench(rules(rule("*", 443), canaries=True), canaries=(TOKEN,))
    labels = (TOKEN, b"example", b"com")
    name = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    question = bytes.fromhex("123401000001000000000000") + name + bytes.fromhex("00010001")
    os.kill(proxy.pid, signal.SIGSTOP)
    try:
        run.served.end()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(question, ("127.0.0.1", run.ports["dns-udp"]))
    finally:
        os.kill(proxy.pid, signal.SIGCONT)
    closing = threading.Thread(target=run.close, daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    assert [event.kind for event in run.events] == ["canary"]


def test_the_forms_of_a_token() -> None:
    wanted = Tokens([TOKEN])
    for before in range(6):
        text = b"x" * before + TOKEN + b"yz"
        for encode in (base64.b64encode, base64.urlsafe_b64encode, base64.b32encode, bytes.hex):
            said = encode(text)
            data = said if isinstance(said, bytes) else said.encode()
            assert Scanner(wanted).finds(b"..." + data + b"..."), (before, encode)
    assert Scanner(wanted).finds(quote(TOKEN, safe="").encode())
    assert not Scanner(wanted).finds(b"nothing of the kind" * 100)
    split = Scanner(wanted)
    assert not split.finds(TOKEN[:12])
    assert split.finds(TOKEN[12:])


def test_a_budget_ends_what_exceeds_it(bench: Make) -> None:
    with serving(echo) as server:
        run = bench(rules(rule("web.test", server.port, budget_bytes=100_000)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(b"\x00" * 40_000)
            got = 0
            while got < 40_000:
                got += len(sock.recv(65536))
            assert len(exchange(sock, b"\x00" * 40_000)) < 40_000
        event = run.wait_for(lambda event: event.reason == "budget")
        assert event.rule == "net.allowlist[0]"


def test_the_budget_of_a_run_holds_for_http(bench: Make) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port), budget_bytes=1500))
        codes = []
        for _request in range(20):
            answer = ask(run, server.port, "GET / HTTP/1.1\nHost: web.test\nConnection: close\n\n")
            codes.append(status(answer) if answer else 0)
        assert codes[0] == 200
        assert codes[-1] == 403
        assert len(server.seen) < 15


def test_a_rate(bench: Make) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port, rate="3/m")))
        host = "Host: web.test\n"
        answer = ask(run, server.port, f"GET / HTTP/1.1\n{host}\n" * 5)
        assert answer.count(b"HTTP/1.1 200") == 3
        assert answer.count(b"HTTP/1.1 429") == 2
        assert len(server.seen) == 3


def test_credentials_are_put_in_over_http2(world: World) -> None:  # noqa: F811
    with world.http2() as (told, server):
        credential = Credential("key", source="env:K", header="X-Api-Key", format="{}")
        given = rules(rule("web.test", server.port, credential="key"), credentials=(credential,))
        run = world.run(given, secrets={"key": "s3cret-value"})
        url = f"https://web.test:{server.port}/c"
        assert world.curl(run, url) == (0, "GET /c ")
        assert told.seen[0][2]["x-api-key"] == "s3cret-value"
        _code, said = world.curl(run, "-H", "Authorization: Bearer other", url)
        assert "foreign-credential" in said


@pytest.mark.parametrize("reflects", [True, False])
def test_a_credential_that_comes_back_over_http2(world: World, reflects: bool) -> None:  # noqa: F811
    """In the head, the body or behind it; a rule that does not expect it shows that it does."""
    with world.http2() as (_told, server):
        credential = Credential("key", source="env:K", header="X-Api-Key", format="{}", reflects=reflects)
        given = rules(rule("web.test", server.port, credential="key"), credentials=(credential,))
        run = world.run(given, secrets={"key": "s3cret-value"})
        code, said = world.curl(run, "-v", f"https://web.test:{server.port}/reflect")
        assert code == 0
        told = [line for line in said.splitlines() if "body:" in line or "x-head" in line or "x-trailer" in line]
        assert len(told) == 3, said
        assert ["s3cret-value" in line for line in told] == [not reflects] * 3


def test_a_tunnel_that_idles_is_left_alone(bench: Make) -> None:
    with serving(echo) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(b"\x00")
            assert sock.recv(1) == b"\x00"
            sock.settimeout(0.3)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            sock.settimeout(5)
            sock.sendall(b"\x01")
            assert sock.recv(1) == b"\x01"
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b""
