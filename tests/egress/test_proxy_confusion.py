"""Requests that the proxy and an origin could read differently: what the proxy did not judge, the origin never sees.

The origin forgives as much as any: it skips blank lines, ignores bodies that it does not expect, takes an underscore
for a hyphen, lets a header change the method or the path, and cuts a path where it decodes a `?`. Each control sends the
same bytes to it without the proxy.
"""

# ruff: noqa: E501 (rows of tables)

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from http2_server import Http2Server
from proxy_bench import Bench, Server, read_all, rule, rules, serving

from belljar.egress import ca
from belljar.egress.client.client import ProxyClient

Make = Callable[..., Bench]
HOST = "Host: web.test"


class Origin:
    """Remembers each request as it understands it: method, path, host."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    def __call__(self, sock: socket.socket) -> None:
        held = b""
        while True:
            while b"\r\n\r\n" not in held.lstrip():
                data = sock.recv(65536)
                if not data:
                    return
                held += data
            head, _, held = held.lstrip().partition(b"\r\n\r\n")
            close, length = self._take(head.decode("latin-1"))
            while len(held) < length:
                held += sock.recv(65536)
            held = held[length:]
            sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            if close:
                return

    def _take(self, head: str) -> tuple[bool, int]:
        line, *others = head.split("\r\n")
        method, target, _version = line.split(" ")
        pairs = (other.partition(":") for other in others)
        headers = {name.lower().replace("_", "-"): value.strip() for name, _, value in pairs}
        parts = urlsplit(target)
        path = urlsplit(unquote(headers.get("x-original-url", parts.path))).path
        for override in ("x-http-method-override", "x-http-method"):
            method = headers.get(override, method).split(",")[0].strip()
        host = headers.get("x-host", headers.get("x-forwarded-host", parts.netloc or headers.get("host", "")))
        self.asked.append((method, path, host))
        ignored = method in ("GET", "HEAD") or path.startswith("/static")
        return headers.get("connection", "") == "close", 0 if ignored else int(headers.get("content-length", 0))

    @property
    def fooled(self) -> list[tuple[str, str, str]]:
        return [
            (method, path, host)
            for method, path, host in self.asked
            if method == "DELETE" or path == "/admin" or "evil.test" in host
        ]


@contextlib.contextmanager
def origin() -> Iterator[tuple[Origin, Server]]:
    one = Origin()
    with serving(one) as server:
        yield one, server


def text(*lines: str, body: str = "") -> bytes:
    return "\r\n".join((*lines, "", body)).encode("latin-1")


EVIL = text("GET /x HTTP/1.1", "Host: evil.test")
ADMIN = text("GET /admin HTTP/1.1", HOST).decode()
DENY_ADMIN = {"paths": ("/static/*", "/ok", "/ok/*")}
BYPASSES = {
    "blank lines": ({}, b"\r\n" * 8192 + EVIL),
    "more blank lines": ({}, b"\n" * 100_000 + EVIL),
    "other blanks": ({}, b"\v\f" * 8192 + b"\r\n" + EVIL),
    "a long method": ({}, b"M" * 40 + b" /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    "a method without end": ({}, b"M" * 40_000 + b" /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    "a long target": ({}, b"ODD /" + b"x" * 17_000 + b" HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    "an odd method after blanks": ({}, b"\n" * 16_380 + b"ODD /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    "a method that is none": ({}, b"O(D /x HTTP/1.1\r\nHost: evil.test\r\n\r\n"),
    "a body on GET": (DENY_ADMIN, text("GET /ok HTTP/1.1", HOST, f"Content-Length: {len(ADMIN)}", body=ADMIN)),
    "a body on HEAD": ({}, text("HEAD /ok HTTP/1.1", HOST, f"Content-Length: {len(EVIL)}", body=EVIL.decode())),
    "a body that is ignored": (
        DENY_ADMIN,
        text("POST /static/x HTTP/1.1", HOST, f"Content-Length: {len(ADMIN)}", body=ADMIN),
    ),
    "an underscored method": ({"methods": ("POST",)}, text("POST /ok HTTP/1.1", HOST, "X_HTTP_Method_Override: DELETE")),
    "half underscored": ({"methods": ("POST",)}, text("POST /ok HTTP/1.1", HOST, "X-HTTP_METHOD: DELETE")),
    "two methods": ({"methods": ("POST",)}, text("POST /ok HTTP/1.1", HOST, "X-HTTP-Method: DELETE, POST")),
    "an underscored URL": (DENY_ADMIN, text("GET /ok HTTP/1.1", HOST, "X_Original_URL: /admin")),
    "another host by underscores": ({}, text("GET /ok HTTP/1.1", HOST, "X_Forwarded_Host: evil.test")),
    "another host": ({}, text("GET /ok HTTP/1.1", HOST, "X-Host: evil.test")),
    "a host in the path": ({"paths": ("/**",), "denied": ("/admin",)}, text("GET //x/admin HTTP/1.1", HOST)),
    "a query in the path": ({"paths": ("/**",), "denied": ("/admin",)}, text("GET /admin%3f HTTP/1.1", HOST)),
    "a fragment in the path": ({"paths": ("/**",), "denied": ("/admin",)}, text("GET /admin%23x HTTP/1.1", HOST)),
}  # fmt: skip


@pytest.mark.parametrize(("more", "said"), BYPASSES.values(), ids=BYPASSES)
def test_the_origin_is_not_fooled(bench: Make, more: dict[str, tuple[str, ...]], said: bytes) -> None:
    more = dict(more)
    denied = more.pop("denied", ())
    with origin() as (one, server):
        deny = [rule("web.test", server.port, paths=denied)] if denied else []
        run = bench(rules(rule("web.test", server.port, **more), deny=deny))
        with run.by_socks("web.test", server.port) as sock, contextlib.suppress(OSError):
            sock.sendall(said)
            sock.settimeout(3)
            sock.recv(65536)
        run.close()
        assert one.fooled == []
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as sock:
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)
        assert one.fooled


REFUSED = [
    ("bad-request", text("POST /ok HTTP/1.1", HOST, "Content_Length: 5")),
    ("bad-request", text("POST /ok HTTP/1.1", HOST, "Transfer_Encoding: chunked")),
    ("bad-request", text("POST /ok HTTP/1.1", HOST, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked", body="0\r\n\r\n")),
    ("bad-request", text("POST /ok HTTP/1.1", HOST, "Expect: y 100-continue", "Content-Length: 2", body="ok")),
    ("bad-request", text("GET /ok HTTP/1.1", HOST, "X-A: b\x0bc")),
    ("bad-request", text("GET /ok HTTP/1.1", HOST, "X-A: " + "b" * 17_000)),
    ("bad-request", text("GET /" + "k" * 17_000 + " HTTP/1.1", HOST)),
    ("bad-request", text("GET /?" + "&" * 2_000 + " HTTP/1.1", HOST)),
    ("body-not-listed", text("GET /ok HTTP/1.1", HOST, "Transfer-Encoding: chunked", body="0\r\n\r\n")),
    ("body-not-listed", text("HEAD /ok HTTP/1.1", HOST, "Content-Length: 1", body="x")),
    ("method-not-listed", text("POST /ok?_method=DELETE HTTP/1.1", HOST)),
    ("method-not-listed", text("POST /ok?%24httpMethod=DELETE HTTP/1.1", HOST)),
    ("method-not-listed", text("POST /ok?a=b&%5Fmethod=delete HTTP/1.1", HOST)),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "said"), REFUSED)
def test_refused(bench: Make, reason: str, said: bytes) -> None:
    with origin() as (one, server):
        run = bench(rules(rule("web.test", server.port, methods=("GET", "HEAD", "POST"))))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(said)
            assert f"X-Belljar-Reason: {reason}\r\n".encode() in read_all_or_one(sock)
        assert one.asked == []


def read_all_or_one(sock: socket.socket) -> bytes:
    sock.settimeout(10)
    return sock.recv(65536)


def test_a_body_on_get_that_a_rule_allows(bench: Make) -> None:
    """It is sent on, and the connection ends with it; a denial says which key allows it."""
    said = text("GET /static/x HTTP/1.1", HOST, f"Content-Length: {len(ADMIN)}", body=ADMIN)
    with origin() as (one, server):
        run = bench(rules(rule("web.test", server.port, get_body=True)))
        with run.by_socks("web.test", server.port) as sock:
            for _again in range(2):
                sock.sendall(said)
                assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert one.asked == [("GET", "/static/x", "web.test")] * 2
        assert server.accepted == 2
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(said)
            assert b"get_body: true" in sock.recv(65536)


def test_requests_without_a_body_share_a_connection(bench: Make) -> None:
    with origin() as (one, server):
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            for _again in range(3):
                sock.sendall(text("GET /ok HTTP/1.1", HOST, "Content-Length: 0"))
                assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        assert len(one.asked) == 3
        assert server.accepted == 1


# --- HTTP/2 ----------------------------------------------------------------------------------------------------------

HEAD = [(b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"web.test"), (b":path", b"/ok")]


@pytest.mark.parametrize(
    ("reason", "head", "body"),
    [
        ("body-not-listed", HEAD, b"GET /admin HTTP/1.1"),
        ("method-not-listed", [(b":method", b"GET /admin HTTP/1.1"), *HEAD[1:]], b""),
        ("bad-request", [*HEAD, (b"content_length", b"0")], b""),
        ("bad-request", [*HEAD, (b"x-a", b"b" * 17_000)], b""),
        ("bad-request", [*HEAD, (b"x-a", b"b\x0bc")], b""),
        ("method-not-listed", [*HEAD, (b"x_http_method_override", b"DELETE")], b""),
    ],
)
def test_http2(
    bench: Make, proxy: ProxyClient, tmp_path: Path, reason: str, head: list[tuple[bytes, bytes]], body: bytes
) -> None:
    (tmp_path / "roots.pem").write_text((authority := ca.new_authority()).certificate)
    server_side, told, seen = ca.Issuer(authority).context("web.test", ("h2",)), Http2Server(), threading.Event()
    client_side = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_side.load_verify_locations(cadata=proxy.authority().certificate)
    client_side.set_alpn_protocols(["h2"])

    def handle(sock: socket.socket) -> None:
        with server_side.wrap_socket(sock, server_side=True) as inside:
            told.handle(inside)
        seen.set()

    with serving(handle) as server:
        methods = () if b" " in head[0][1] else ("GET", "POST")
        run = bench(
            rules(rule("web.test", server.port, methods=methods, paths=("/ok",))), ca_file=str(tmp_path / "roots.pem")
        )
        connection = H2Connection(H2Configuration(header_encoding=None, validate_outbound_headers=False))
        connection.initiate_connection()
        connection.send_headers(1, head, end_stream=not body)
        if body:
            connection.send_data(1, body, end_stream=True)
        with client_side.wrap_socket(run.by_socks("web.test", server.port), server_hostname="web.test") as sock:
            sock.sendall(connection.data_to_send())
            run.wait_for(lambda event: event.reason == reason)
        assert seen.wait(10)
        assert told.seen == []
