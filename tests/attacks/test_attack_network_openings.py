"""Connections that begin slowly, or oddly, so that it can't be told at once what they are."""

from __future__ import annotations

from attack_egress import JAR_ROUTES, probe, said_by
from test_attack_network_requests import (
    REQUESTS,
    ROUTES,
    OpenJar,
    Servers,
    attempts,
    certificates,
    in_control,
    servers,
)

__all__ = ["certificates", "servers"]

SLOW = {
    "first byte": "slowly(web(), b'G', b'ET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')",
    "method": "slowly(web(), b'GET', b' / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')",
    "blank lines": "slowly(web(), b'\\r\\n', b'\\r\\n', b'GET / HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')",
    "hello, one byte": "hello(1)",
    "hello, two bytes": "hello(2)",
    "hello, its record's head": "hello(5)",
    "hello, half": "hello(100)",
}
SLOWLY = """
def slowly(end, *parts):
    for part in parts[:-1]:
        end.sendall(part)
        time.sleep(0.6)
    end.sendall(parts[-1])
    return read_answer(end)
def hello(cut):
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(into, out, server_hostname="other.test").do_handshake()
    except ssl.SSLWantReadError:
        pass
    said = out.read()
    end = dial("web.test", 443)
    end.settimeout(3)
    end.sendall(said[:cut])
    time.sleep(0.6)
    end.sendall(said[cut:])
    return end.recv(10)
"""


@ROUTES
def test_slow_opening_is_judged_as_well(open_jar: OpenJar, servers: Servers, route: str) -> None:
    """What begins so slowly that it can't be told yet what it is does not pass for something else."""
    code = probe(REQUESTS + SLOWLY + attempts(SLOW))
    result = open_jar(servers.policy(), overrides=["proc.timeout_ms=60s"]).run(code, args=[*JAR_ROUTES[route], "{}"])
    said = said_by(result)
    assert not servers.fooled, said
    assert not servers.server_names, said
    in_control(servers, route, code)
    assert [request.headers["host"] for request in servers.site.requests] == ["other.test"] * 3
    assert servers.server_names == ["other.test"] * 4
