"""The network of a jar, tried with servers on loopback and with programs that were not written for this.

Every server belongs to the tests, and remembers what reached it. A rule of a policy pins a made-up name (`web.test`) to
the port of one (`addresses: ['127.0.0.1:PORT']`); nothing here asks a name server of the host's, or leaves the host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from network_certificates import Certificates, make_certificates
from network_servers import Server, echo
from network_web import NAMES, Site, Web, make_repository

from belljar import Sandbox


@pytest.fixture(scope="session", autouse=True)
def proxy_of_these_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A state directory that all tests here share, and with it the proxy process, which keeps its authority there."""
    from belljar.egress.client.client import PROXY

    PROXY.stop()
    path = str(tmp_path_factory.mktemp("state"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BELLJAR_STATE_DIR", path)
        PROXY.start()
    yield path
    PROXY.stop()


@pytest.fixture(autouse=True)
def state_directory(proxy_of_these_tests: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """In the place of one for each test: nothing of the user's is read or written."""
    monkeypatch.setenv("BELLJAR_STATE_DIR", proxy_of_these_tests)
    return proxy_of_these_tests


@pytest.fixture(params=["bubblewrap"], scope="session")
def backend(request: pytest.FixtureRequest, need_backend: Callable[[str], None]) -> str:
    """The backends whose jars can have a network."""
    need_backend(request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of the tests' own, for `net.ca_file`."""
    return make_certificates(tmp_path_factory.mktemp("certificates"), NAMES)


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `git clone` finds."""
    return make_repository(tmp_path_factory.mktemp("repositories"))


@pytest.fixture
def site() -> Site:
    """What the web servers of a test show."""
    return Site()


@pytest.fixture
def web(site: Site) -> Iterator[Web]:
    """A web server without TLS."""
    with Web(site) as server:
        yield server


@pytest.fixture
def secure(site: Site, certificates: Certificates) -> Iterator[Web]:
    """A web server with TLS."""
    with Web(site, tls=certificates.context()) as server:
        yield server


_INSIDE = {"passed through": {}, "opened": {"methods": ["GET", "POST", "HEAD"]}}


@pytest.fixture(params=list(_INSIDE))
def extra(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What makes a rule look into TLS, or not."""
    return dict(_INSIDE[request.param])


@pytest.fixture
def plain() -> Iterator[Server]:
    """Sends back what comes."""
    with Server(echo) as server:
        yield server


@pytest.fixture
def net_jar(open_jar: Callable[..., Sandbox], certificates: Certificates) -> Callable[..., Sandbox]:
    """Opens a jar that believes the tests' authority, and has the Python of the tests with its packages."""

    def open_one(policy: dict[str, Any], **options: Any) -> Sandbox:
        policy = {**policy, "python": {"venv": sys.prefix}}
        policy["net"] = {"ca_file": str(certificates.authority), **policy["net"]}
        return open_jar(policy, **options)

    return open_one
