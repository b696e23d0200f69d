"""Why a run ended, as a container's program tells it: code that took its place can't claim a fault of the machine."""

from __future__ import annotations

import pytest

from belljar.backends.container.jar.process import believed
from belljar.sandbox.record.result import Fault, Outcome, fault_of

REASONS = ("", "timeout", "oom", "abandoned", "internal", "gate", "unrecorded", "an operator's words")


@pytest.mark.parametrize("reason", REASONS)
def test_no_reason_of_a_container_is_infra(reason: str) -> None:
    assert fault_of(Outcome.KILLED, believed(reason)) is not Fault.INFRA


@pytest.mark.parametrize("reason", ["internal", "gate", "unrecorded"])
def test_the_host_may_say_so(reason: str) -> None:
    """A control: the same words of the host's own are."""
    assert fault_of(Outcome.KILLED, reason) is Fault.INFRA


def test_other_reasons_are_as_they_were() -> None:
    assert [believed(reason) for reason in ("", "timeout", "oom")] == ["", "timeout", "oom"]
