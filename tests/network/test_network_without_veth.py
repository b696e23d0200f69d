"""Where the kernel makes no cable, the proxy's sockets are in the jar's own namespace: that is less, and is told."""

from __future__ import annotations

import pytest
from network_routes import OpenJar, codes, network, rule, run_python, told
from network_web import Web

from belljar.sandbox.record.result import Outcome

REACHES = """
import socket, urllib.request
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
print(opener.open("http://web.test/").read().decode().strip())
try:
    opener.open("http://192.0.2.1/")
except urllib.error.HTTPError as error:
    print(error.code)
try:
    socket.getaddrinfo("other.test", 80)
except socket.gaierror as error:
    print(error.errno == socket.EAI_NONAME)
"""


@pytest.fixture(autouse=True)
def without_veth(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """As on a kernel that was built without it."""
    if backend != "bubblewrap":
        pytest.skip("the gateway of a container is laid by root, whose kernel has it")
    monkeypatch.setenv("BELLJAR_VETH", "none")


def test_it_is_not_accepted_in_silence(open_jar: OpenJar, web: Web) -> None:
    """The run is refused, and the reason says what would be lost."""
    result = run_python(open_jar(network(rule("web.test", web.address))), REACHES)
    assert result.outcome is Outcome.REFUSED
    assert "net.enabled" in result.reason
    assert "no veth" in result.reason


def test_it_works_where_it_is_accepted(open_jar: OpenJar, web: Web) -> None:
    """What is listed is reached, what is not is refused, by name and by address."""
    policy = {**network(rule("web.test", web.address)), "on_degraded": "allow"}
    result = run_python(open_jar(policy), REACHES)
    assert told(result).splitlines() == ["hello from web.test/ to GET", "403", "True"]
    assert codes(result) == {"address-not-listed", "name-not-listed"}


def test_what_is_lost(open_jar: OpenJar, web: Web) -> None:
    """The code's servers can't have the ports: so it is the weaker way."""
    policy = {**network(rule("web.test", web.address, 8080)), "on_degraded": "allow"}
    result = run_python(open_jar(policy), "import socket; socket.create_server(('0.0.0.0', 8080))")
    assert "Address already in use" in result.stderr
