"""A policy for one call: less than the policy that it is made of, and never more."""

from __future__ import annotations

from typing import Any

import pytest

from belljar.errors import PolicyError
from belljar.policy.load.resolve import from_mapping, preset_names, resolve
from belljar.policy.load.tighten import tightened

NETWORK = {"net": {"enabled": True, "allowlist": [{"host": "api.example.com", "methods": ["GET"]}]}}


@pytest.mark.parametrize("name", preset_names())
def test_nothing_said_changes_nothing(name: str) -> None:
    policy = resolve(name)

    assert tightened(policy, {}, by="the caller") == policy


TIGHTER: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {"proc": {"timeout_ms": 1000}}),
    ({}, {"proc": {"mem_mb": 64}, "fs": {"deny_globs": ["**/*.key"]}}),
    ({}, {"fs": {"mounts": [{"path": "/workspace", "rw": False}]}}),
    (NETWORK, {"net": {"enabled": False}}),
    (NETWORK, {"net": {"allowlist": []}}),
    ({"agents": {"unsandboxed": True}}, {"agents": {"unsandboxed": False}}),
]


@pytest.mark.parametrize(("under", "over"), TIGHTER, ids=str)
def test_less_is_granted(under: dict[str, Any], over: dict[str, Any]) -> None:
    policy = from_mapping(under)

    assert tightened(policy, over, by="the caller") != policy


LOOSER: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"net": {"enabled": True}}, "net.enabled"),
    ({}, {"proc": {"mem_mb": 99_999}}, "proc.mem_mb"),
    ({}, {"proc": {"timeout_ms": 3_600_000}}, "proc.timeout_ms"),
    ({}, {"agents": {"unsandboxed": True}}, "agents.unsandboxed"),
    ({}, {"backend": "unconfined"}, "backend"),
    ({}, {"fallback": ["unconfined"]}, "fallback"),
    ({}, {"fs": {"deny_globs": ["!**/.env"]}}, "fs.deny_globs"),
    ({}, {"fs": {"mounts": [{"path": "/data", "source": "/etc"}]}}, "fs.mounts"),
    ({}, {"env": {"pass": ["HOME"]}}, "env.pass"),
    ({}, {"on_degraded": "allow"}, "on_degraded"),
    ({}, {"extends": "unrestricted"}, "extends"),
    (NETWORK, {"net": {"allowlist": ["api.example.com"]}}, "net.allowlist"),
    (NETWORK, {"net": {"allowlist": ["example.org"]}}, "net.allowlist"),
]


@pytest.mark.parametrize(("under", "over", "key"), LOOSER, ids=str)
def test_more_is_refused_with_the_key_that_asks_for_it(under: dict[str, Any], over: dict[str, Any], key: str) -> None:
    with pytest.raises(PolicyError, match=f"the caller: {key}"):
        tightened(from_mapping(under), over, by="the caller")


def test_a_managed_policy_that_does_not_say_so_lets_nothing_run_outside_of_a_jar(tmp_path: Any) -> None:
    managed = tmp_path / "managed.yaml"
    managed.write_text("version: 1\nproc: {mem_mb: 512}\n")
    managed.chmod(0o644)

    with pytest.raises(PolicyError, match=r"agents\.unsandboxed: wanted false"):
        resolve(layers=[{"agents": {"unsandboxed": True}}], managed=str(managed))
