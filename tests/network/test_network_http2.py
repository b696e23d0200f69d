"""HTTP/2 through the proxy: passed through, and opened, where every request on a connection is judged by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from network_certificates import Certificates
from network_daemons import need_program
from network_http2 import serve_http2
from network_routes import OpenJar, codes, network, rule, run_shell, told
from network_servers import Server


@pytest.fixture
def http2(certificates: Certificates) -> Iterator[Server]:
    """A server that knows HTTP/2 alone."""
    with Server(serve_http2, tls=certificates.context(protocols=["h2"])) as server:
        yield server


@pytest.mark.parametrize("route", ["transparent", "http", "socks"])
def test_http2(net_jar: OpenJar, http2: Server, extra: dict[str, object], route: str) -> None:
    """Both sides speak it, end to end."""
    need_program("curl", "curl")
    jar = net_jar(network(rule("web.test", http2.address, **extra)))
    script = 'curl -sS -w "%{http_version}\\n" https://web.test/one https://web.test/two'
    assert told(run_shell(jar, script, route=route)) == "h2 GET web.test/one\n2\nh2 GET web.test/two\n2\n"
    assert [text for text in http2.heard if text.startswith("GET")] == ["GET web.test/one", "GET web.test/two"]


def test_request_within_http2_is_judged(net_jar: OpenJar, http2: Server) -> None:
    """A path that is not listed gets 403 on the same connection, and never reaches the server."""
    need_program("curl", "curl")
    jar = net_jar(network(rule("web.test", http2.address, 443, paths=["/public/**"])))
    script = 'curl -sS -w "%{http_code} %{num_connects}\\n" -o /dev/null -o /dev/null https://web.test/public/x https://web.test/secret'
    result = run_shell(jar, script)
    assert told(result) == "200 1\n403 0\n"
    assert [text for text in http2.heard if text.startswith("GET")] == ["GET web.test/public/x"]
    assert codes(result) == {"path-not-listed"}
