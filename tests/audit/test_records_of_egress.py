"""Decisions of the egress proxy in the real log: written when `take` returns, bounded, and refused if they can't be."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.audit.verify import verify
from belljar.egress.decide.rules import compile_rules
from belljar.egress.events import UNRECORDED, Event
from belljar.policy.load.resolve import resolve
from belljar.sandbox.network.egress import Traffic
from belljar.sandbox.network.egress_check import Canary


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


def name(number: int) -> Event:
    """A name that is looked up, every other one in vain."""
    return Event(
        "run-1", 1.5, "name", f"n{number}.web.test", allowed=bool(number % 2), reason="" if number % 2 else "no"
    )


def test_what_passes_is_always_recorded() -> None:
    """However many there are, and however many cheap lookups and refusals there were before."""
    run = traffic([])
    assert run.take([name(number) for number in range(3000)]) is None
    for number in range(0, 2000, 100):
        assert (
            run.take([event(one, "credential" if one % 2 else "request") for one in range(number, number + 100)])
            is None
        )
    canary = Event("run-1", 1.5, "canary", "web.test", allowed=False, reason="canary")
    assert run.take([canary]) is None
    kinds = [one["kind"] for one in records(directory())]
    assert (kinds.count("name"), kinds.count("request"), kinds.count("credential")) == (1000, 1000, 1000)
    assert kinds[-1] == "canary"
    assert verify(directory()).ok
    assert len(run.records) == 2000
    assert run.totals == {"allowed": 3500, "refused": 1501, "unrecorded": 2000}


def test_a_log_that_cannot_be_written() -> None:
    """The proxy hears so, and the run is ended: of one decision, and of many at once."""
    for count in (1, 1000):
        killed: list[str] = []
        run = traffic(killed)
        shutil.rmtree(directory(), ignore_errors=True)
        Path(directory()).parent.mkdir(parents=True, exist_ok=True)
        Path(directory()).write_text("in the way")
        assert run.take([event(number) for number in range(count)]) == UNRECORDED
        assert killed == ["unrecorded"]
        os.unlink(directory())


@pytest.mark.backend("bubblewrap")
def test_how_many_there_were_is_in_the_end() -> None:
    """Of a run with a network, whatever was recorded of it."""
    asks = "import socket\ntry: socket.create_connection(('nowhere.example.com', 443))\nexcept OSError: pass"
    with Sandbox({"net": {"enabled": True, "allowlist": ["api.example.com"]}}, one_shot=True) as jar:
        jar.run(asks)
    (end,) = [one for one in records(directory()) if one["event"] == "finished"]
    assert end["egress"]["refused"] == sum(one["event"] == "egress" for one in records(directory())) > 0
    assert end["egress"]["unrecorded"] == 0
