"""The fuzzing targets, for a few seconds each (`make fuzz` takes longer), and that they would notice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fuzz_ends
import fuzz_targets
import pytest
from fuzz_targets import EVERYTHING, SEEDS, TARGETS

import belljar.egress.proxy.relay.request_check
from belljar.egress.decide.steps import Verdict

SECONDS = 20
"""For all of them together."""


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    yield
    fuzz_targets.STAGE.close()


@pytest.mark.parametrize("name", TARGETS)
def test_seeds(name: str) -> None:
    for seed in SEEDS[name]:
        TARGETS[name](seed)


@pytest.mark.parametrize("name", sorted(set(TARGETS) - {"http1_response"}))
def test_a_proxy_that_allows_everything_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: with decisions that refuse nothing, the same seeds fail."""

    def allow(*_values: Any, **_more: Any) -> Verdict:
        return Verdict(allowed=True)

    stage = fuzz_ends.Stage()  # one that remembers no decision
    monkeypatch.setattr(fuzz_targets, "STAGE", stage)
    for module in (fuzz_ends, fuzz_targets, belljar.egress.proxy.relay.request_check):
        for decision in ("decide_name", "decide_connection", "decide_request", "decide_server_name"):
            if hasattr(module, decision):
                monkeypatch.setattr(module, decision, allow)
    try:
        assert any(_fails(TARGETS[name], seed) for seed in SEEDS[name])
    finally:
        stage.close()


def _fails(target: Callable[[bytes], None], seed: bytes) -> bool:
    try:
        target(seed)
    except AssertionError:
        return True
    return False


@pytest.mark.slow
def test_mutations(tmp_path: Path) -> None:
    """The same inputs for every commit, as far as the time goes; `make fuzz` tries others."""
    program = str(Path(__file__).with_name("run.py"))
    command = [sys.executable, program, "--here", "--seed", "1", "--seconds", str(SECONDS), "--kept", str(tmp_path)]
    done = subprocess.run([*command, EVERYTHING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
