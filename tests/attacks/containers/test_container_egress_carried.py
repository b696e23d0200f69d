"""The attacks of `test_container_egress`, from a container that belljar may not enter: its loopback is its network."""

from __future__ import annotations

import pytest
from attack_egress import JAR_ROUTES
from network_world import MAY_NOT_ENTER
from test_attack_network_names import (
    test_name_carries_nothing_out,
    test_name_that_resolves_to_what_it_should_not,
    test_rule_for_every_host_is_for_the_internet_alone,
)
from test_attack_network_openings import test_slow_opening_is_judged_as_well
from test_attack_network_requests import (
    certificates,
    ears,
    servers,
    test_allowed_name_is_no_front_for_another,
    test_foreign_key_and_placeholder,
    test_nothing_goes_around_the_proxy,
    test_proxy_serves_each_jar_by_its_own_rules,
    test_relay_in_the_jar_reaches_no_more,
    test_request_is_not_smuggled,
    test_server_name_in_a_connection_that_is_passed_through,
)

from belljar.backends.container import backend as container_backend

__all__ = [
    "certificates",
    "ears",
    "servers",
    "test_allowed_name_is_no_front_for_another",
    "test_foreign_key_and_placeholder",
    "test_name_carries_nothing_out",
    "test_name_that_resolves_to_what_it_should_not",
    "test_nothing_goes_around_the_proxy",
    "test_proxy_serves_each_jar_by_its_own_rules",
    "test_relay_in_the_jar_reaches_no_more",
    "test_request_is_not_smuggled",
    "test_rule_for_every_host_is_for_the_internet_alone",
    "test_server_name_in_a_connection_that_is_passed_through",
    "test_slow_opening_is_judged_as_well",
]


@pytest.fixture(autouse=True)
def may_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user who may only speak with the engine's daemon; the proxy is on loopback then."""
    monkeypatch.setattr(container_backend, "_enters", lambda _known: False)
    monkeypatch.setenv(MAY_NOT_ENTER, "1")
    for route in ("http", "socks"):
        name, _proxy, port = JAR_ROUTES[route]
        monkeypatch.setitem(JAR_ROUTES, route, [name, "127.0.0.1", port])
