"""Limits that end no run: the result says which of them a failed program's output speaks of, wherever it is read."""

from __future__ import annotations

import json

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit.store import RunStore
from belljar.sandbox.record.result import Outcome
from belljar.tools.calls import Call
from belljar.tools.toolbox import Toolbox

pytestmark = pytest.mark.backend("bubblewrap")

LIMITS = [
    ("fs.size_mb=4", "open('f', 'wb').write(bytes(6 << 20))", "fs.size_mb=8"),
    ("fs.inodes=100", "[open(f'f{n}', 'w').close() for n in range(120)]", "fs.inodes=200"),
    ("proc.open_files=64", "kept = [open('/dev/null') for _ in range(80)]", "proc.open_files=128"),
    ("proc.file_size_mb=4", "open('f', 'wb').write(bytes(6 << 20))", "proc.file_size_mb=8"),
]


@pytest.mark.parametrize(("setting", "code", "advice"), LIMITS, ids=[row[0] for row in LIMITS])
def test_the_result_names_the_limit(setting: str, code: str, advice: str) -> None:
    """In Python, in JSON, and in what `belljar inspect` reads; the advice works."""
    with Sandbox(overrides=[setting]) as jar:
        result = jar.run(code)
    assert result.outcome is Outcome.FAILED
    assert f"--set {advice}" in result.reason
    assert json.loads(json.dumps(result.to_dict()))["reason"] == result.reason
    with RunStore() as store:
        row = store.run(result.run_id)
    assert row is not None
    assert row["reason"] == result.reason
    with Sandbox(overrides=[setting, advice]) as jar:
        assert jar.run(code).ok


def test_where_else_it_is_told() -> None:
    """A pool's run, a step of a session, and a model's tool."""
    setting, code, advice = LIMITS[0]
    with Pool(overrides=[setting], size=1) as pool:
        assert advice in pool.run(code).reason
    with Session(overrides=[setting]) as session:
        step = session.run(code)
        assert step.outcome is Outcome.FAILED
        assert advice in step.reason
        assert session.run("1 / 0").reason == ""
    with Toolbox(overrides=[setting], pool_size=0) as box:
        answer = box.call("run", {"code": code}, Call(client="test", session="one", tool_use="use"))
        assert advice in answer.text


def test_a_failure_of_its_own_has_no_reason() -> None:
    with Sandbox() as jar:
        assert jar.run("1 / 0").reason == ""
        assert jar.run("print('No space left on device')").reason == ""  # it did not fail
