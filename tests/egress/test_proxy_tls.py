"""TLS that is opened: leaf certificates, upstream verification, ALPN, HTTP/1.1 and HTTP/2 inside."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from http2_server import Http2Server
from proxy_bench import Bench, HttpServer, Server, curl, echo, http_serving, rule, rules, serving

from belljar.egress import ca
from belljar.egress.client.client import ProxyClient

Make = Callable[..., Bench]


class World:
    """A web with an authority of its own, and a jar that trusts the proxy's."""

    def __init__(self, directory: Path, proxy: ProxyClient, bench: Make) -> None:
        self._bench = bench
        self.issuer = ca.Issuer(authority := ca.new_authority())
        self.roots = directory / "roots.pem"
        self.roots.write_text(authority.certificate)
        self.trust = directory / "trust.pem"
        self.trust.write_text(proxy.authority().certificate)

    def run(self, given: Any, **more: Any) -> Bench:
        return self._bench(given, **{"ca_file": str(self.roots), **more})

    @contextlib.contextmanager
    def https(self, name: str = "web.test") -> Iterator[HttpServer]:
        with http_serving(self.issuer.context(name, ("http/1.1",))) as server:
            yield server

    @contextlib.contextmanager
    def http2(self, *protocols: str) -> Iterator[tuple[Http2Server, Server]]:
        context = self.issuer.context("web.test", protocols or ("h2", "http/1.1"))
        told = Http2Server()

        def handle(sock: socket.socket) -> None:
            with context.wrap_socket(sock, server_side=True) as inside:
                told.handle(inside)

        with serving(handle) as server:
            yield told, server

    def curl(self, run: Bench, *arguments: str, trust: Path | None = None) -> tuple[int, str]:
        proxy = f"socks5h://127.0.0.1:{run.ports['socks']}"
        return curl("--cacert", str(trust or self.trust), "-x", proxy, *arguments)


@pytest.fixture
def world(tmp_path: Path, proxy: ProxyClient, bench: Make) -> World:
    return World(tmp_path, proxy, bench)


def test_a_rule_about_paths_opens_tls(world: World) -> None:
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port, methods=("GET",), paths=("/ok",))))
        url = f"https://web.test:{server.port}"
        assert world.curl(run, f"{url}/ok", f"{url}/ok") == (0, "GET /ok GET /ok ")
        code, said = world.curl(run, f"{url}/no")
        assert code == 0
        assert "path-not-listed" in said
        code, said = world.curl(run, "-d", "x=1", f"{url}/ok")
        assert "method-not-listed" in said
        assert len(server.seen) == 2


def test_without_such_a_rule_the_client_sees_the_real_certificate(world: World) -> None:
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port)))
        url = f"https://web.test:{server.port}/x"
        assert world.curl(run, url)[0] == 60
        assert world.curl(run, url, trust=world.roots) == (0, "GET /x ")


def test_a_host_in_the_request_that_was_not_dialled(world: World) -> None:
    """Fronting: the server name is the allowed one, the Host inside is another."""
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))))
        _code, said = world.curl(run, "-H", "Host: evil.test", f"https://web.test:{server.port}/")
        assert "authority-mismatch" in said
        assert server.seen == []


@pytest.mark.parametrize("opened", [True, False])
def test_another_server_name_is_refused_in_words(world: World, opened: bool) -> None:
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port, **({"methods": ("GET",)} if opened else {}))))
        connect = ["--connect-to", f"evil.test:{server.port}:web.test:{server.port}"]
        code, said = world.curl(run, *connect, f"https://evil.test:{server.port}/")
        assert code == 0
        assert "server-name-mismatch" in said
        assert server.seen == []


def test_an_upstream_certificate_that_nobody_vouches_for(world: World) -> None:
    """Refused with words, and nothing was sent to it."""
    with world.https() as server, world.https("other.test") as wrong:
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))), ca_file=None)
        code, said = world.curl(run, f"https://web.test:{server.port}/")
        assert code == 0
        assert "upstream-certificate" in said
        run = world.run(rules(rule("web.test", wrong.port, methods=("GET",))))
        _code, said = world.curl(run, f"https://web.test:{wrong.port}/")
        assert "upstream-certificate" in said
        assert server.seen == wrong.seen == []


def test_a_client_that_does_not_trust_the_proxy_is_told_of(world: World) -> None:
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))))
        assert world.curl(run, f"https://web.test:{server.port}/", trust=world.roots)[0] == 60
        run.wait_for(lambda event: event.reason == "not-inspected")


def test_tls_1_2_clients_are_opened_too(world: World) -> None:
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))))
        code, said = world.curl(run, "--tls-max", "1.2", f"https://web.test:{server.port}/old")
        assert (code, said) == (0, "GET /old ")


def test_http2_is_spoken_with_both(world: World, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_text("x" * 300_000)
    with world.http2() as (told, server):
        run = world.run(rules(rule("web.test", server.port, paths=("/a", "/b", "/p", "/trailers", "/reset"))))
        url = f"https://web.test:{server.port}"
        version = ["-w", "[%{http_version}]"]
        assert world.curl(run, *version, f"{url}/a", f"{url}/b") == (0, "GET /a [2]GET /b [2]")
        assert world.curl(run, *version, "-d", "body", f"{url}/p") == (0, "POST /p body[2]")
        code, said = world.curl(run, *version, f"{url}/no")
        assert code == 0
        assert "path-not-listed" in said
        assert said.endswith("[2]")
        _code, said = world.curl(run, "--data-binary", f"@{body}", f"{url}/no")
        assert "path-not-listed" in said
        assert world.curl(run, f"{url}/reset")[0] == 92
        _code, said = world.curl(run, "-v", f"{url}/trailers")
        assert "message" in said
        assert "grpc-status: 0" in said
        assert server.accepted == 6
        assert {path for _method, path, _headers, _body in told.seen} == {"/a", "/b", "/p", "/trailers", "/reset"}


def test_http2_with_a_server_that_speaks_only_http1(world: World) -> None:
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))))
        url = f"https://web.test:{server.port}/x"
        assert world.curl(run, "--http2", "-w", "[%{http_version}]", url) == (0, "GET /x [1.1]")


def test_http2_carries_megabytes_both_ways(world: World, tmp_path: Path) -> None:
    body = tmp_path / "body"
    body.write_bytes(bytes(range(256)) * 4096 * 3)
    back = tmp_path / "back"
    with world.http2() as (_told, server):
        run = world.run(rules(rule("web.test", server.port, methods=("POST",))))
        url = f"https://web.test:{server.port}/p"
        code, said = world.curl(run, "--data-binary", f"@{body}", "-o", str(back), url)
        assert (code, said) == (0, "")
        assert back.read_bytes() == b"POST /p " + body.read_bytes()


def test_http2_many_requests_at_once(world: World, tmp_path: Path) -> None:
    with world.http2() as (told, server):
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))))
        code, _said = world.curl(
            run, "-Z", "--parallel-max", "200", "-o", str(tmp_path / "#1"), f"https://web.test:{server.port}/n[1-300]"
        )
        assert code == 0
        assert sorted(path for _method, path, _headers, _body in told.seen) == sorted(f"/n{n}" for n in range(1, 301))
        assert (tmp_path / "300").read_text() == "GET /n300 "


def test_a_server_that_says_goodbye_still_answers(world: World) -> None:
    with world.http2() as (_told, server):
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))))
        url = f"https://web.test:{server.port}"
        code, said = world.curl(run, f"{url}/goaway", f"{url}/next")
        assert (code, said) == (0, "lastGET /next ")


def test_http2_without_tls(bench: Make) -> None:
    told = Http2Server()
    with serving(told.handle) as server:
        run = bench(rules(rule("web.test", server.port, paths=("/ok",))))
        proxy = f"socks5h://127.0.0.1:{run.ports['socks']}"
        url = f"http://web.test:{server.port}"
        assert curl("-x", proxy, "--http2-prior-knowledge", f"{url}/ok") == (0, "GET /ok ")
        code, said = curl("-x", proxy, "--http2-prior-knowledge", f"{url}/no")
        assert code == 0
        assert "path-not-listed" in said
        assert [path for _method, path, _headers, _body in told.seen] == ["/ok"]


@pytest.mark.parametrize(
    "headers",
    [
        [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"evil.test"), (b":path", b"/ok")],
        [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", b"web.test"),
            (b":path", b"/ok"),
            (b"host", b"evil.test"),
        ],
        [(b":method", b"GET"), (b":scheme", b"http"), (b":authority", b"web.test"), (b":path", b"/ok")],
        [(b":method", b"GET"), (b":scheme", b"https"), (b":path", b"/ok")],
        [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"web.test"), (b":path", b"/no")],
        [(b":method", b"CONNECT"), (b":authority", b"evil.test:443")],
        [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", b"web.test"),
            (b":path", b"/ok"),
            (b"connection", b"x"),
        ],
        [
            (b":method", b"GET"),
            (b":scheme", b"https"),
            (b":authority", b"web.test"),
            (b":path", b"/ok"),
            (b"a", b"b\r\nc: d"),
        ],
    ],
)
def test_http2_requests_that_are_refused(world: World, headers: list[tuple[bytes, bytes]]) -> None:
    """Told by a client that checks nothing itself."""
    from h2.config import H2Configuration
    from h2.connection import H2Connection

    with world.http2() as (told, server):
        run = world.run(rules(rule("web.test", server.port, paths=("/ok",))))
        context = ssl.create_default_context(cafile=str(world.trust))
        context.set_alpn_protocols(["h2"])
        config = H2Configuration(
            validate_outbound_headers=False, normalize_outbound_headers=False, validate_inbound_headers=False
        )
        client = H2Connection(config)
        client.initiate_connection()
        client.send_headers(1, headers, end_stream=True)
        with context.wrap_socket(run.by_socks("web.test", server.port), server_hostname="web.test") as sock:
            assert sock.selected_alpn_protocol() == "h2"
            sock.sendall(client.data_to_send())
            event = run.wait_for(lambda event: event.kind == "request")
            assert not event.allowed
        assert told.seen == []


def test_openssl_agrees_about_the_name_of_the_certificate(proxy: ProxyClient, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text(proxy.authority().certificate)
    said = subprocess.run(
        ["openssl", "x509", "-in", str(path), "-noout", "-hash"], capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == ca.subject_hash()


def test_the_key_is_its_owners_alone(tmp_path: Path) -> None:
    first = ca.load_or_make(str(tmp_path))
    assert (tmp_path / "egress" / "ca.key").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "egress").stat().st_mode & 0o777 == 0o700
    assert ca.load_or_make(str(tmp_path)) == first
    (tmp_path / "egress" / "ca.key").chmod(0o644)
    with pytest.raises(Exception, match="may be read by others"):
        ca.load_or_make(str(tmp_path))


def test_raw_bytes_inside_opened_tls(world: World) -> None:
    """Opened for canary tokens only: what is no request is carried, either side first."""
    context = world.issuer.context("web.test")

    def handle(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as inside:
            inside.sendall(b"hello")
            echo(inside)

    with serving(handle) as server:
        run = world.run(rules(rule("web.test", server.port), canaries=True), canaries=(b"0123456789abcdef",))
        trusting = ssl.create_default_context(cafile=str(world.trust))
        with trusting.wrap_socket(run.by_socks("web.test", server.port), server_hostname="web.test") as sock:
            assert sock.recv(100) == b"hello"
            sock.sendall(b"\x00\x01")
            assert sock.recv(100) == b"\x00\x01"


def test_json_events_are_whole(world: World) -> None:
    with world.https() as server:
        run = world.run(rules(rule("web.test", server.port, methods=("GET",))))
        world.curl(run, f"https://web.test:{server.port}/x?secret=1")
        event = run.wait_for(lambda event: event.kind == "request")
        assert (event.method, event.path, event.rule, event.where) == ("GET", "/x", "net.allowlist[0]", "policy.yaml:7")
        assert json.loads(json.dumps(event.to_json())) == event.to_json()
