"""`net test` and `policy lint` as someone types them."""

# ruff: noqa: E501 (a row shows a message as its reader sees it)

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cli_process import Ran

POLICY = """\
version: 1
net:
  enabled: true
  allowlist:
    - github.com
    - {host: api.example.com, methods: [GET]}
"""
DENIED = """\
deny  POST https://api.example.com/v1
  reason  method-not-listed: no rule for this host allows the method (POST)
  rule    net.allowlist[1] (p.yaml:6)
  allow   net.allowlist[1].methods, with POST
"""
ALLOWED = """\
allow  GET https://api.example.com/v1
  rule     net.allowlist[1] (p.yaml:6)
  tls      decrypted, because a rule for this host checks methods, paths or credentials
  dialled  what DNS says when it is asked; only public addresses
"""
LINTED = """\
p.yaml:5: warning: net.allowlist[0]: data can leave through github.com (code hosting): anyone with an account can push, open an issue or write a gist [carrier]
    hint: allow reading only (methods: [GET, HEAD]), bind a credential, or name paths
1 warning, 0 notes
"""


def test_net_test(belljar: Callable[..., Ran], here: Path) -> None:
    """Allowed is 0 and denied is 1, each with its reason."""
    (here / "p.yaml").write_text(POLICY)
    url = "https://api.example.com/v1"
    assert belljar("net", "test", url, "--policy", "p.yaml") == Ran(0, ALLOWED, "")
    assert belljar("net", "test", url, "--method", "post", "--policy", "p.yaml") == Ran(1, DENIED, "")
    ran = belljar("net", "test", url, "--method", "POST", "--json", BELLJAR_POLICY="p.yaml")
    assert ran.code == 1
    assert ran.json == {
        "url": url,
        "method": "POST",
        "host": "api.example.com",
        "port": 443,
        "allowed": False,
        "reason": "method-not-listed",
        "detail": "POST",
        "rule": "net.allowlist[1]",
        "where": "p.yaml:6",
        "allow": "net.allowlist[1].methods, with POST",
        "tls": "opened",
        "addresses": [],
        "credentials": [],
        "other_credentials": None,
    }


def test_net_test_of_a_closed_network(belljar: Callable[..., Ran]) -> None:
    """The default policy says what it takes."""
    ran = belljar("net", "test", "https://example.com/")
    assert ran.code == 1
    assert "allow   net.enabled: true, net.allowlist: [example.com]\n" in ran.out


def test_net_test_of_what_is_no_url(belljar: Callable[..., Ran]) -> None:
    """The caller's mistake: 2."""
    ran = belljar("net", "test", "example.com")
    assert (ran.code, ran.out) == (2, "")
    assert "hint: https://example.com/ or example.com:443" in ran.err


def test_lint(belljar: Callable[..., Ran], here: Path) -> None:
    """A warning is 1; nothing to say is 0."""
    (here / "p.yaml").write_text(POLICY)
    assert belljar("policy", "lint", "p.yaml") == Ran(1, LINTED, "")
    assert belljar("policy", "lint") == Ran(0, "Nothing to warn of.\n", "")
    (finding,) = belljar("policy", "lint", "--json", "p.yaml").json
    assert (finding["code"], finding["where"]) == ("carrier", "p.yaml:5")
