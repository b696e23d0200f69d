"""`belljar audit tail -f`: every record once, however slow the reader is."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from belljar.audit.log import audit_log


@pytest.mark.parametrize("count", ["5", "1000"])
def test_a_slow_reader_loses_nothing(count: str) -> None:
    """Whoever does not read for a while gets all that was written meanwhile, and nothing twice."""
    for number in range(300):  # more than a pipe holds, so that the first ones are still being shown
        audit_log().append({"event": "before", "number": number, "text": "x" * 500})
    command = [sys.executable, "-m", "belljar", "audit", "tail", "-f", "--json", "-n", count]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        found = [json.loads(tail.stdout.readline())]
        for number in range(100):
            audit_log().append({"event": "after", "number": number})
        while found[-1].get("event") != "after" or found[-1]["number"] != 99:
            found.append(json.loads(tail.stdout.readline()))
        tail.kill()
    assert [one["number"] for one in found if one["event"] == "after"] == list(range(100))
    assert [one["number"] for one in found if one["event"] == "before"] == list(range(300))[-int(count) :]


def test_a_log_that_is_not_there_yet() -> None:
    """Its first record is shown."""
    command = [sys.executable, "-m", "belljar", "audit", "tail", "-f", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tail:
        assert tail.stdout is not None
        audit_log().append({"event": "first"})
        assert json.loads(tail.stdout.readline())["event"] == "first"
        tail.kill()
