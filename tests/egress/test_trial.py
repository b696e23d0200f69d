"""`belljar net test` beneath its command line: a URL against a policy, and nothing is sent."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.egress.decide.rules import compile_rules
from belljar.egress.decide.trial import trial
from belljar.errors import UsageError
from belljar.policy.load.resolve import resolve

POLICY: dict[str, Any] = {
    "net": {
        "enabled": True,
        "allowlist": [
            "plain.test",
            {"host": "api.test", "methods": ["GET"], "credential": "token"},
            {"host": "pinned.test", "addresses": ["127.0.0.1:8443"]},
            {"host": "ssh.test", "ports": [22]},
            "*.wild.test",
        ],
        "host_ports": [5432],
    },
    "credentials": {"token": {"from": "env:TOKEN"}},
}
RULES = compile_rules(resolve(layers=[POLICY], managed=None))
TRIED = {
    "https://plain.test/x": ("", "passed through", ()),
    "HTTPS://PLAIN.TEST": ("", "passed through", ()),
    "https://plain.test:8443/": ("port-not-listed", "passed through", ()),
    "http://plain.test/": ("", "", ()),
    "wss://plain.test/": ("", "passed through", ()),
    "https://api.test/?a=b": ("", "opened", ("token",)),
    "https://pinned.test/": ("", "passed through", ()),
    "https://other.test/": ("name-not-listed", "passed through", ()),
    "https://10.0.0.1/": ("address-not-listed", "passed through", ()),
    "https://0x7f.1/": ("address-form", "", ()),
    "https://plain.test%00.other.test/": ("name-form", "", ()),
    "https://plain.test/a b": ("bad-request", "passed through", ()),
    "https://a.wild.test/": ("", "passed through", ()),
    f"https://{'x' * 50}.{'x' * 50}.wild.test/": ("name-too-long", "passed through", ()),
    "ssh://ssh.test": ("", "", ()),
    "ssh.test:22": ("", "", ()),
    "ssh.test:23": ("port-not-listed", "", ()),
    "host.belljar.internal:5432": ("", "", ()),
    "[::1]:80": ("address-not-listed", "", ()),
}


@pytest.mark.parametrize(("url", "wanted"), TRIED.items(), ids=ascii)
def test_tried(url: str, wanted: tuple[str, str, tuple[str, ...]]) -> None:
    """The verdict, whether TLS would be opened, and what the request would carry."""
    result = trial(RULES, url)
    assert (result.verdict.reason, result.tls, result.credentials) == wanted
    assert result.verdict.allowed is (wanted[0] == "")


def test_where_it_would_be_dialled() -> None:
    """Only what the policy itself says: DNS is not asked."""
    assert trial(RULES, "https://pinned.test/").addresses == ("127.0.0.1:8443",)
    assert trial(RULES, "https://plain.test/").addresses == ()
    assert trial(RULES, "host.belljar.internal:5432").addresses == ("127.0.0.1:5432", "[::1]:5432")


def test_a_method() -> None:
    """As asked for."""
    assert trial(RULES, "https://api.test/", "POST").verdict.reason == "method-not-listed"


def test_off() -> None:
    """A network that is off needs more than a host."""
    off = compile_rules(resolve("aicode", managed=None))
    assert trial(off, "https://plain.test/", enabled=False).verdict.reason == "net-off"


@pytest.mark.parametrize(
    "url", ["", "https://", "plain.test", "https://user@plain.test/", "https:///x", "://x", "https://[::1"]
)
def test_what_is_no_url(url: str) -> None:
    """The caller hears of it."""
    with pytest.raises(UsageError, match="wanted a"):
        trial(RULES, url)
