"""Decisions of the egress proxy in the real log: written when `take` returns, bounded, and refused if they can't be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.audit.verify import verify
from belljar.egress.events import COUNTED, UNRECORDED, Event
from belljar.egress.rules import compile_rules
from belljar.policy.resolve import resolve
from belljar.sandbox.egress import Traffic
from belljar.sandbox.egress_canary import Canary


def traffic(killed: list[str]) -> Traffic:
    """That of a run under the default policy."""
    policy = resolve()
    rules = compile_rules(policy)
    return Traffic(policy, rules, killed.append, Canary(rules, []))


def event(number: int, kind: str = "request") -> Event:
    """A request that is let pass."""
    return Event(
        "run-1", 1.5, kind, "web.test", 443, "GET", f"/{number}", detail="token" if kind == "credential" else ""
    )


def test_written_when_it_returns() -> None:
    """All of one moment, in their order; the name of a credential, and nothing else of it."""
    killed: list[str] = []
    assert traffic(killed).take([event(1), event(1, "credential"), event(2)]) is None
    told = [(one["event"], one["kind"], one["path"], one.get("detail")) for one in records(directory())]
    assert told == [("egress", "request", "/1", None), ("egress", "credential", "/1", "token"), ("egress", "request", "/2", None)]  # fmt: skip # noqa: E501
    assert killed == []


def test_a_thousand_of_a_run() -> None:
    """From then on the proxy is told that it need not wait."""
    run = traffic([])
    assert run.take([event(number) for number in range(999)]) is None
    assert run.take([event(number) for number in range(999, 1010)]) == COUNTED
    assert run.take([event(2000)]) == COUNTED
    assert verify(directory()).records == 1000
    assert len(run.records) == 1000


def test_a_log_that_cannot_be_written() -> None:
    """The proxy hears so, and the run is ended; so is one whose bound is reached in the same moment."""
    for count in (1, 1000):
        killed: list[str] = []
        run = traffic(killed)
        shutil.rmtree(directory(), ignore_errors=True)
        Path(directory()).parent.mkdir(parents=True, exist_ok=True)
        Path(directory()).write_text("in the way")
        assert run.take([event(number) for number in range(count)]) == UNRECORDED
        assert killed == ["unrecorded"]
        os.unlink(directory())
