"""What the report says of the network, and what a run without one does not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from belljar.backends.network.clauses import NETWORK_CLAUSES, network_clauses
from belljar.policy.keys.table import CLAUSES
from belljar.policy.load.resolve import resolve


def test_every_key_of_the_network_is_accounted_for() -> None:
    """The list is a copy, so that a plain run need not read the table."""
    assert tuple(key for key in CLAUSES if key.startswith("net.")) == NETWORK_CLAUSES


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (
            {"allowlist": ["plain.test", {"host": "seen.test", "methods": ["GET"]}]},
            "TLS with plain.test is passed through",
        ),
        ({"allowlist": [{"host": "seen.test", "paths": ["/x"]}]}, ""),
        ({"allowlist": ["plain.test"], "canary_files": ["/workspace/token"]}, ""),
    ],
    ids=["passed through", "a rule that looks inside", "canary tokens"],
)
def test_what_nobody_looks_into_is_told(net: dict[str, object], told: str) -> None:
    """Fronting inside of TLS can't be noticed there."""
    policy = resolve(layers=[{"net": {"enabled": True, **net}}], managed=None)
    by = {clause.key: clause.by for clause in network_clauses(policy)}["net.allowlist"]
    assert told in by
    assert ("passed through" in by) is bool(told)


@pytest.mark.backend("bubblewrap")
def test_a_run_without_network_imports_none_of_it() -> None:
    """Neither the proxy nor what it stands on, nor what lays cables."""
    code = "import belljar, sys; assert belljar.run('print(1)').ok; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    heavy = ("belljar.egress", "belljar.backends.network.gateway", "cryptography", "asyncio", "ssl", "dns", "uvloop")
    assert [name for name in shown if name.startswith(heavy)] == []
