"""One proxy process for the tests of this directory, with a state directory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from proxy_bench import Bench

from belljar.egress.client.client import ProxyClient
from belljar.egress.decide.rules import Rules


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyClient]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BELLJAR_STATE_DIR", str(tmp_path_factory.mktemp("state")))
        client = ProxyClient()
        client.start()
        yield client
        client.stop()


@pytest.fixture
def bench(proxy: ProxyClient) -> Iterator[Callable[..., Bench]]:
    """Makes a run at the proxy from rules; ended with the test. A fault of the proxy fails the test."""
    made: list[Bench] = []

    def make(given: Rules, **more: Any) -> Bench:
        made.append(Bench(proxy, given, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()
        assert [event for event in one.events if event.kind == "proxy"] == []
