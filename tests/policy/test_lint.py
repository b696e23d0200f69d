"""`belljar policy lint`: each finding with a policy that has it, and one beside it that has not."""

# ruff: noqa: E501 (rows of tables)

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar.policy.carriers import CARRIERS, carrier, overlap
from belljar.policy.keys.hosts import host_name
from belljar.policy.lint import lint
from belljar.policy.load.resolve import preset_names, resolve


def net(*allowlist: Any, **more: Any) -> dict[str, Any]:
    return {"net": {"enabled": True, "allowlist": list(allowlist), **more}}


def credential(rule: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {**net(rule), "credentials": {"token": {"from": "env:TOKEN", **values}}}


FOUND = {
    # code, what is found, what is not
    "carrier": (net("github.com"), net({"host": "github.com", "methods": ["GET", "HEAD"]})),
    "carrier, beneath a star": (net("*.s3.amazonaws.com"), net("example.com")),
    "carrier, beneath a star of its own": (net("bucket.s3.amazonaws.com"), net("s3.example.com")),
    "carrier, with a credential": (net("api.anthropic.com"), credential({"host": "api.anthropic.com", "credential": "token"})),
    "every-host": (net("*"), net({"host": "*", "methods": ["GET"]})),
    "tunnel": (net({"host": "a.test", "ports": [22]}), net("a.test")),
    "private-address": (net("10.0.0.1"), net("1.1.1.1")),
    "private-address, pinned": (
        net({"host": "a.test", "addresses": ["[fd00::1]:80"]}),
        net({"host": "a.test", "addresses": ["1.1.1.1:80"]}),
    ),
    "never": (net("a.b.test", denylist=["*.b.test"]), net("b.test", denylist=["*.b.test", {"host": "*", "ports": [22]}])),
    "nothing": (net(), net("a.test")),
    "apex": (net("*.a.test"), net("*.a.test", "a.test")),
    "apex, beneath another star": (net("*.b.a.test", "a.test"), net("*.b.a.test", "*.a.test", "a.test")),
    "short": ({"proc": {"timeout_ms": 30}}, {"proc": {"timeout_ms": "30s"}}),
    "wide-pattern": ({"fs": {"deny_globs": ["**/id_*"]}}, {"fs": {"deny_globs": ["**/id_rsa*"]}}),
    "off": ({"net": {"allowlist": ["a.test"]}}, net("a.test")),
    "built-in": (net("a.test", allow_builtin=["openai-files"]), net("a.test")),
    "service": (net("a.test", host_ports=[2375]), net("a.test", host_ports=[5432])),
    "unused": ({**net("a.test"), "credentials": {"token": {"from": "env:T"}}}, credential({"host": "a.test", "credential": "token"})),
    "wide-credential": (
        credential({"host": "*.a.test", "credential": "token"}),
        credential({"host": "*.a.test", "credential": "token"}, hosts=["x.a.test"]),
    ),
    "passed": (
        {**credential({"host": "a.test", "credential": "token"}), "env": {"pass": ["TOKEN"]}},
        {**credential({"host": "a.test", "credential": "token"}), "env": {"pass": ["TERM"]}},
    ),
    "no-tls": (
        credential({"host": "a.test", "ports": [80], "credential": "token"}),
        credential({"host": "a.test", "credential": "token"}),
    ),
    "secret": ({"env": {"pass": ["GITHUB_TOKEN"]}}, {"env": {"pass": ["TERM", "TZ"]}}),
    "secret, written": ({"env": {"set": {"DB_PASSWORD": "x"}}}, {"env": {"set": {"LANG": "C"}}}),
    "degraded": ({"on_degraded": "allow"}, {"on_degraded": ["proc.mem_mb"]}),
    "unconfined": ({"extends": "unrestricted"}, {"backend": "bubblewrap"}),
    "redaction": ({"logging": {"redact_pii": False}}, {}),
    "redaction, of some secrets": ({"logging": {"redact": ["personal", "token"]}}, {"logging": {"redact": ["secrets"]}}),
}  # fmt: skip


@pytest.mark.parametrize(("name", "found", "not_found"), [(name, *pair) for name, pair in FOUND.items()], ids=FOUND)
def test_found(name: str, found: dict[str, Any], not_found: dict[str, Any]) -> None:
    """Once, with its key and a place; and not where there is no reason."""
    code = name.partition(",")[0]
    matching = [finding for finding in lint(resolve(layers=[found], managed=None)) if finding.code == code]
    assert len(matching) == 1
    assert matching[0].where
    assert code not in [finding.code for finding in lint(resolve(layers=[not_found], managed=None))]


def test_what_the_host_executes(tmp_path: Path) -> None:
    """A directory that the code changes itself, with a hook or a build file in it."""
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "Makefile").touch()
    mount = {"path": "/workspace", "source": str(tmp_path / "p"), "rw": True}
    (finding,) = lint(resolve(layers=[{"fs": {"mounts": [mount]}}], managed=None))
    assert (finding.level, finding.code, finding.key) == ("warning", "executed", "fs.mounts[0]")
    assert "Makefile" in finding.text
    assert lint(resolve(layers=[{"fs": {"mounts": [{**mount, "cow": True}]}}], managed=None)) == ()


def test_warnings_come_first() -> None:
    """Then notes."""
    layer = {**net("10.0.0.1", "github.com"), "logging": {"redact_pii": False}}
    assert [finding.level for finding in lint(resolve(layers=[layer], managed=None))] == ["warning", "note", "note"]


@pytest.mark.parametrize("preset", [name for name in preset_names() if name not in ("unrestricted", "webscraping")])
def test_presets(preset: str) -> None:
    """Nothing to say about them."""
    assert lint(resolve(preset, managed=None)) == ()


def test_the_table_of_carriers() -> None:
    """Every name is one that a rule could have, once in a kind."""
    for kind in CARRIERS:
        plain = [name.replace("*-", "x-").replace("-*", "-x").replace(".*.", ".x.") for name in kind.names]
        assert [host_name(name) for name in plain] == plain, kind.kind
        assert len(set(kind.names)) == len(kind.names), kind.kind
        assert kind.why
    assert carrier("gist.github.com") == ("code hosting", CARRIERS[2].why, "gist.github.com")
    assert carrier("example.com") is None


def test_overlap() -> None:
    """Names and stars, either way."""
    assert overlap("*.a.test", "x.a.test")
    assert overlap("x.a.test", "*.a.test")
    assert overlap("*.a.test", "*.x.a.test")
    assert overlap("*.x.a.test", "*.a.test")
    assert not overlap("a.test", "*.a.test")
    assert not overlap("xa.test", "*.a.test")
