"""What runs use over time: samples of those that live long enough, in the log, the store and `inspect`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.audit.store import RunStore
from belljar.cli.terminal.sparkline import rates, sparkline
from belljar.sandbox.record import remote
from belljar.sandbox.record.control import CONTROL
from belljar.sandbox.record.sampling import Samples

BUSY = """
import os, time
held = bytearray(64 << 20)
if os.fork() == 0:
    time.sleep(60)
until = time.monotonic() + 1.5
while time.monotonic() < until:
    pass
input()
"""


def inspected(run: str, *words: str) -> str:
    """`belljar inspect`, in a process of its own."""
    words = (sys.executable, "-m", "belljar", "inspect", *words, run)
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def sampled(run: Callable[..., Any]) -> tuple[str, list[list[float]]]:
    """Run until there are samples. The run's name, and what its process told of it while it ran."""
    reader, writer = os.pipe()
    thread = threading.Thread(target=run, args=(BUSY,), kwargs={"stdin": reader})
    thread.start()
    try:
        deadline = time.monotonic() + 60
        told: list[list[float]] = []
        while len(told) < 2:
            assert time.monotonic() < deadline
            found = remote.running()
            told = remote.usage(str(found[0]["run"])) if found else []
            time.sleep(0.05)
        return str(found[0]["run"]), told
    finally:
        os.write(writer, b"\n")
        os.close(writer)
        thread.join()
        os.close(reader)


@pytest.mark.backend("bubblewrap")
class TestRuns:
    """Of real ones."""

    @pytest.mark.parametrize("kind", [Sandbox, Pool])
    def test_a_long_one(self, kind: type[Sandbox | Pool]) -> None:
        """Its process tells while it runs; then it is in the log, in the store, and in the store made anew."""
        with kind() as jar:
            run, told = sampled(jar.run)
        (record,) = [one for one in records(directory()) if one["event"] == "usage"]
        assert record["run"] == run
        assert record["samples"][: len(told)] == told
        with RunStore() as store:
            kept = store.samples(run)
            path = store.path
        assert [list(sample.values()) for sample in kept] == record["samples"]
        last = kept[-1]
        assert last["seconds"] > 1
        assert last["cpu_seconds"] > 0.3
        assert last["memory_bytes"] > 64 << 20
        assert last["processes"] == 2
        with open(path, "r+b") as file:
            file.write(b"no database")
        with RunStore() as store:
            assert store.rebuilt
            assert store.samples(run) == kept
        assert json.loads(inspected(run, "--json"))["usage"] == kept
        assert "memory     " in inspected(run)

    def test_a_short_one(self) -> None:
        """Has none, and no thread looks at it."""
        with Pool() as pool:
            result = pool.run("pass")
        assert "usage" not in {record["event"] for record in records(directory())}
        assert json.loads(inspected(result.run_id, "--json"))["usage"] == []
        assert "over time" not in inspected(result.run_id)

    def test_a_session(self) -> None:
        """Lives long, whether it is busy or not; the thread ends with the last such run."""
        with Session() as session:
            session.run("held = bytearray(64 << 20)")
            run = str(remote.running()[0]["run"])
            deadline = time.monotonic() + 60
            while not (told := remote.usage(run)):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert told[0][2] > 64 << 20
        while CONTROL._sampling:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def test_unknown(self) -> None:
        """Nothing is known of it."""
        assert remote.usage("01a1e4e2ffbe-8c01c265") == []


def test_there_are_never_many() -> None:
    """A run of a day has some hundred samples, evenly spread."""
    samples = Samples()
    for second in range(86_400):
        if samples.due(float(second)):
            samples.add((float(second), 0.0, 0, 1))
    assert 100 < len(samples.taken) <= 240
    gaps = {later[0] - sooner[0] for sooner, later in zip(samples.taken, samples.taken[1:], strict=False)}
    assert gaps == {samples.every}


def test_sparklines() -> None:
    """As high as the value, the largest of some each where there are many; and how fast a total grows."""
    assert sparkline([0, 7, 14]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([]) == ""
    many = sparkline([0.0] * 500 + [1.0] + [0.0] * 499)
    assert (len(many), many.count("█")) == (60, 1)
    assert rates([1.0, 2.0, 2.0, 4.0], [1.0, 1.5, 1.5, 3.5]) == [1.0, 0.5, 0.0, 1.0]
