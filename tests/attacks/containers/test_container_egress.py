"""Attacks on an open network, from a container: those of `test_attack_network_names` and `…_requests`, as they are.

The proxy and its decisions are the same for every backend; the way to it is not.
"""

from __future__ import annotations

from test_attack_network_names import (
    front,
    test_name_carries_nothing_out,
    test_name_that_resolves_to_what_it_should_not,
    test_odd_name_gets_nowhere,
    test_rule_for_every_host_is_for_the_internet_alone,
    victim,
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

__all__ = [
    "certificates",
    "ears",
    "front",
    "servers",
    "test_allowed_name_is_no_front_for_another",
    "test_foreign_key_and_placeholder",
    "test_name_carries_nothing_out",
    "test_name_that_resolves_to_what_it_should_not",
    "test_nothing_goes_around_the_proxy",
    "test_odd_name_gets_nowhere",
    "test_proxy_serves_each_jar_by_its_own_rules",
    "test_relay_in_the_jar_reaches_no_more",
    "test_request_is_not_smuggled",
    "test_rule_for_every_host_is_for_the_internet_alone",
    "test_server_name_in_a_connection_that_is_passed_through",
    "test_slow_opening_is_judged_as_well",
    "victim",
]
