"""HTTP/1.1 through the proxy: what is relayed, what is refused, and what must not confuse it."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable

import pytest
from proxy_bench import Bench, curl, echo, exchange, http_serving, read_all, rule, rules, serving

from belljar.egress.decide.rules import Rule

Make = Callable[..., Bench]


def ask(run: Bench, port: int, request: str, host: str = "web.test") -> bytes:
    """What comes back for this text through SOCKS, until the end."""
    with run.by_socks(host, port) as sock:
        return exchange(sock, request.replace("\n", "\r\n").encode("latin-1"))


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d+)", answer)
    assert found, answer
    return int(found[1])


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        ("GET /a?b=c HTTP/1.1", b"GET /a?b=c "),
        ("GET /chunks HTTP/1.1", b"4\r\none \r\n4\r\ntwo \r\n5\r\nthree\r\n0\r\n\r\n"),
        ("GET /chunks HTTP/1.0", b"\r\n\r\none two three"),
        ("GET /close HTTP/1.1", b"until the end"),
        ("OPTIONS /x HTTP/1.1", b"OPTIONS /x "),
        ("GET http://web.test:{port}/abs HTTP/1.1", b"GET /abs "),
    ],
)
def test_requests_are_relayed(bench: Make, request_line: str, expected: bytes) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        line = request_line.format(port=server.port)
        answer = ask(run, server.port, f"{line}\nHost: web.test:{server.port}\nConnection: close\n\n")
        assert status(answer) == 200
        assert answer.endswith(expected)


@pytest.mark.parametrize("path", ["/x", "/chunks", "/empty204", "/empty304"])
def test_responses_without_a_body_keep_the_connection(bench: Make, path: str) -> None:
    """HEAD, 204 and 304 announce what does not come; the next request is answered all the same."""
    method = "HEAD" if "empty" not in path else "GET"
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        host = f"Host: web.test:{server.port}\n"
        answer = ask(
            run, server.port, f"{method} {path} HTTP/1.1\n{host}\nGET /next HTTP/1.1\n{host}Connection: close\n\n"
        )
        assert answer.count(b"HTTP/1.1 ") == 2
        assert answer.endswith(b"GET /next ")


@pytest.mark.parametrize(
    "framing", ["Content-Length: 5\n\nhello", "Transfer-Encoding: chunked\n\n2\nhe\n3;x=y\nllo\n0\nT: x\n\n"]
)
def test_bodies_are_relayed(bench: Make, framing: str) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        answer = ask(run, server.port, f"POST /p HTTP/1.1\nHost: web.test:{server.port}\nConnection: close\n{framing}")
        assert answer.endswith(b"POST /p hello")
        assert server.seen[0][3] == b"hello"


def test_a_large_upload_and_download(bench: Make) -> None:
    size = 20 << 20
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            body = bytes(range(256)) * (size // 256)
            head = f"POST /p HTTP/1.1\r\nHost: web.test\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
            writer = threading.Thread(target=sock.sendall, args=(head.encode() + body,))
            writer.start()
            answer = read_all(sock)
            writer.join()
        assert answer.endswith(b"POST /p " + body)


@pytest.mark.parametrize(
    ("more", "request_text", "reason"),
    [
        ({"methods": ("GET",)}, "POST / HTTP/1.1\nHost: web.test\nContent-Length: 3\n\nabc", "method-not-listed"),
        ({"paths": ("/api/*",)}, "GET /other HTTP/1.1\nHost: web.test\n\n", "path-not-listed"),
        ({"paths": ("/api/*",)}, "GET /api/../other HTTP/1.1\nHost: web.test\n\n", "path-ambiguous"),
        ({"query": ("q",)}, "GET /?z=1 HTTP/1.1\nHost: web.test\n\n", "query-not-listed"),
        ({}, "GET / HTTP/1.1\nHost: evil.test\n\n", "authority-mismatch"),
        ({}, "GET http://evil.test/ HTTP/1.1\nHost: web.test\n\n", "authority-mismatch"),
        ({}, "GET / HTTP/1.1\nX: y\n\n", "authority-missing"),
        ({}, "GET / HTTP/1.1\nHost: web.test\nHost: evil.test\n\n", "bad-request"),
        ({}, "POST / HTTP/1.1\nHost: web.test\nContent-Length: 3\nTransfer-Encoding: chunked\n\n", "bad-request"),
        ({}, "POST / HTTP/1.1\nHost: web.test\nContent-Length: 3\nContent-Length: 4\n\n", "bad-request"),
        ({}, "POST / HTTP/1.1\nHost: web.test\nTransfer-Encoding: gzip, chunked\n\n0\n\n", "bad-request"),
        ({}, "POST / HTTP/1.0\nHost: web.test\nTransfer-Encoding: chunked\n\n0\n\n", "bad-request"),
        ({}, "GET / HTTP/1.1\nHost: web.test\nA: b\n c\n\n", "bad-request"),
        ({}, "GET / HTTP/1.1\nHost: web.test\nA : b\n\n", "bad-request"),
        ({}, "GET / HTTP/1.1\nHost: web.test\nA: \x00\n\n", "bad-request"),
        ({}, "GET /\nHost: web.test\n\n", "bad-request"),
        ({}, "get / HTTP/1.1\nHost: web.test\n\n", "bad-request"),
        ({}, "GET / HTTP/2.0\nHost: web.test\n\n", "bad-request"),
        ({}, "CONNECT evil.test:443 HTTP/1.1\nHost: web.test\n\n", "method-not-listed"),
        (
            {},
            "POST / HTTP/1.1\nHost: web.test\nConnection: upgrade\nUpgrade: x\nContent-Length: 3\n\nabc",
            "bad-request",
        ),
    ],
)
def test_what_is_refused_never_reaches_the_server(
    bench: Make, more: dict[str, object], request_text: str, reason: str
) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port, **more)))
        answer = ask(run, server.port, request_text)
        assert status(answer) == (400 if reason == "bad-request" else 403)
        assert f"X-Belljar-Reason: {reason}\r\n".encode() in answer
        event = run.wait_for(lambda event: event.kind == "request")
        assert (event.allowed, event.reason) == (False, reason)
        assert server.seen == []


def test_each_request_of_a_connection_is_judged(bench: Make) -> None:
    """An allowed one first does not carry another host's, or another path's, along."""
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port, paths=("/ok", "/last"))))
        host = "Host: web.test\n"
        answer = ask(
            run,
            server.port,
            f"GET /ok HTTP/1.1\n{host}\nGET /no HTTP/1.1\n{host}\nGET /ok HTTP/1.1\nHost: evil.test\n\n"
            f"GET /last HTTP/1.1\n{host}Connection: close\n\n",
        )
        assert [int(code) for code in re.findall(rb"HTTP/1\.1 (\d+)", answer)] == [200, 403, 403, 200]
        assert [path for _method, path, _headers, _body in server.seen] == ["/ok", "/last"]


def test_hop_by_hop_and_proxy_headers_stay_behind(bench: Make) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        ask(
            run,
            server.port,
            "GET / HTTP/1.1\nHost: web.test\nConnection: close, X-Hop\nX-Hop: 1\nTE: trailers\nKeep-Alive: 5\n"
            "Proxy-Authorization: Basic x\nUpgrade: h2c\nHTTP2-Settings: AA\nX-Kept: yes\n\n",
        )
        assert set(server.seen[0][2]) == {"host", "x-kept"}


def test_a_refusal_says_what_to_do(bench: Make) -> None:
    run = bench(rules(Rule(0, "net.allowlist[0]", "policy.yaml:7", "web.test", ports=(80,), methods=("GET",))))
    code, said = curl("-x", f"http://127.0.0.1:{run.ports['http-proxy']}", "-d", "x", "http://web.test/upload")
    assert code == 0
    assert "method-not-listed" in said
    assert "net.allowlist[0] (policy.yaml:7)" in said
    assert "allow:  net.allowlist[0].methods, with POST" in said


def test_the_proxy_variables_way(bench: Make) -> None:
    """CONNECT and absolute URIs by curl itself; a second host on a kept connection is judged as the first."""
    with http_serving() as server, http_serving() as other:
        run = bench(rules(rule("web.test", server.port), rule("other.test", other.port)))
        proxy = f"http://127.0.0.1:{run.ports['http-proxy']}"
        plain = [
            f"http://web.test:{server.port}/1",
            f"http://other.test:{other.port}/2",
            f"http://evil.test:{server.port}/3",
        ]
        code, said = curl("-x", proxy, "-w", "%{http_code} ", *plain)
        assert code == 0
        assert said.startswith("GET /1 200 GET /2 200 belljar: GET evil.test")
        assert curl("-x", proxy, "-p", plain[0]) == (0, "GET /1 ")
        code, said = curl("-x", proxy, "-p", plain[2])
        assert code == 56
        assert "403" in said
        for scheme in ("socks5h", "socks5"):
            code, said = curl(
                "-x",
                f"{scheme}://127.0.0.1:{run.ports['socks']}",
                "--resolve",
                f"web.test:{server.port}:9.9.9.9",
                plain[0],
            )
            assert (code == 0) is (scheme == "socks5h"), said
        assert {path for _method, path, _headers, _body in [*server.seen, *other.seen]} == {"/1", "/2"}


@pytest.mark.parametrize(
    "head",
    [
        "CONNECT web.test HTTP/1.1\n\n",
        "CONNECT web.test:0 HTTP/1.1\n\n",
        "CONNECT evil.test:{port} HTTP/1.1\nHost: web.test:{port}\n\n",
        "CONNECT web.test%00.evil:{port} HTTP/1.1\n\n",
        "CONNECT web.test:{port} HTTP/9\n\n",
        "CONNECT user@web.test:{port} HTTP/1.1\n\n",
        "GET / HTTP/1.1\nHost: web.test:{port}\n\n",
        "GET https://web.test:{port}/ HTTP/1.1\nHost: web.test:{port}\n\n",
        "GET http://user@web.test:{port}/ HTTP/1.1\nHost: web.test:{port}\n\n",
        "GET http://web.test:{port}/ HTTP/1.1\nHost: evil.test\n\n",
    ],
)
def test_the_proxy_port_refuses(bench: Make, head: str) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.connect("http-proxy") as sock:
            answer = exchange(sock, head.format(port=server.port).replace("\n", "\r\n").encode())
        assert status(answer) in (400, 403)
        assert server.seen == []


def test_a_client_that_pipelines_into_its_connect(bench: Make) -> None:
    """What follows the CONNECT without waiting for its answer is not lost."""
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        request = "GET /x HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n"
        head = f"CONNECT web.test:{server.port} HTTP/1.1\r\n\r\n{request}"
        with run.connect("http-proxy") as sock:
            answer = exchange(sock, head.encode())
        assert answer.startswith(b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK")
        assert answer.endswith(b"GET /x ")


def _websocket(sock: socket.socket) -> None:
    head = b""
    while b"\r\n\r\n" not in head:
        head += sock.recv(65536)
    if b"Upgrade: websocket" in head and b"/ws" in head:
        sock.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nearly")
        echo(sock)
    else:
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
        echo(sock)


def test_websocket(bench: Make) -> None:
    with serving(_websocket) as server:
        run = bench(rules(rule("web.test", server.port, paths=("/ws",))))
        upgrade = (
            "Host: web.test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
        )
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(f"GET /ws HTTP/1.1\r\n{upgrade}".encode())
            got = b""
            while not got.endswith(b"early"):
                got += sock.recv(65536)
            assert status(got) == 101
            sock.sendall(b"frame")
            assert sock.recv(100) == b"frame"
            sock.shutdown(socket.SHUT_WR)
            assert read_all(sock) == b""
        assert status(ask(run, server.port, f"GET /other HTTP/1.1\r\n{upgrade}".replace("\r\n", "\n"))) == 403


def test_a_websocket_that_the_server_does_not_grant_opens_nothing(bench: Make) -> None:
    """Bytes sent ahead, in the hope of a tunnel, are judged as the requests that they are."""
    with serving(_websocket) as server:
        run = bench(rules(rule("web.test", server.port, paths=("/no",))))
        upgrade = "Host: web.test\nConnection: Upgrade\nUpgrade: websocket\n\n"
        answer = ask(
            run, server.port, f"GET /no HTTP/1.1\n{upgrade}GET /secret HTTP/1.1\nHost: web.test\nConnection: close\n\n"
        )
        assert re.findall(rb"HTTP/1\.1 (\d+)", answer) == [b"200", b"403"]


def test_server_sent_events_arrive_one_by_one(bench: Make) -> None:
    def one_by_one(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for number in range(3):
            sock.sendall(b"data: %d\n\n" % number)
            told.wait(5)
            told.clear()

    told = threading.Event()
    with serving(one_by_one) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(b"GET /events HTTP/1.1\r\nHost: web.test\r\n\r\n")
            got = b""
            for number in range(3):
                while b"data: %d" % number not in got:
                    got += sock.recv(65536)
                told.set()
            assert read_all(sock) == b""


def test_a_server_that_talks_nonsense_is_a_bad_gateway(bench: Make) -> None:
    def nonsense(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"what?\r\n\r\n")

    with serving(nonsense) as server:
        run = bench(rules(rule("web.test", server.port)))
        assert status(ask(run, server.port, "GET / HTTP/1.1\nHost: web.test\n\n")) == 502


def test_a_host_that_does_not_answer_is_a_bad_gateway(bench: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    for more in ({}, {"methods": ("GET",)}):
        run = bench(rules(rule("web.test", port, **more)))
        answer = ask(run, port, "GET / HTTP/1.1\nHost: web.test\nConnection: close\n\n")
        assert status(answer) == 502
        assert b"Connection refused" in answer


def test_a_kept_connection_that_the_server_closed_is_dialled_again(bench: Make) -> None:
    def one_answer(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    with serving(one_answer) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            for _request in range(3):
                sock.sendall(b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n")
                got = b""
                while not got.endswith(b"ok"):
                    got += sock.recv(65536)
        assert server.accepted == 3


def test_a_head_that_comes_byte_by_byte(bench: Make) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port, methods=("GET",))))
        with run.by_socks("web.test", server.port) as sock:
            for byte in b"GET /slow HTTP/1.1\r\nHost: web.test\r\nConnection: close\r\n\r\n":
                sock.sendall(bytes((byte,)))
                time.sleep(0.001)
            assert read_all(sock).endswith(b"GET /slow ")


def test_a_head_without_end_is_refused(bench: Make) -> None:
    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        answer = ask(run, server.port, "GET / HTTP/1.1\nHost: web.test\nA: " + "a" * 200_000)
        assert status(answer) == 400


def test_a_truncated_answer_is_not_taken_for_a_whole_one(bench: Make) -> None:
    def cut(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")

    with serving(cut) as server:
        run = bench(rules(rule("web.test", server.port)))
        code, _said = curl("-x", f"socks5h://127.0.0.1:{run.ports['socks']}", f"http://web.test:{server.port}/")
        assert code == 18


def test_json_survives(bench: Make) -> None:
    """Python's own client through the proxy port, twice on one connection."""
    import http.client

    with http_serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        client = http.client.HTTPConnection("127.0.0.1", run.ports["http-proxy"], timeout=10)
        for number in range(2):
            body = json.dumps({"number": number})
            client.request("POST", f"http://web.test:{server.port}/j", body, {"Content-Type": "application/json"})
            assert client.getresponse().read() == b"POST /j " + body.encode()
        client.close()
        assert len(server.seen) == 2
