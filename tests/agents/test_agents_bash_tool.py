"""The Bash tool's interface over a jar, and the way out of it that a policy has to open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_model import Records

from belljar.tools.bash_tool import BashTool

pytestmark = pytest.mark.backend("bubblewrap")

OPEN = {"agents": {"unsandboxed": True}}


@pytest.fixture
def bash() -> Iterator[BashTool]:
    with BashTool(session_id="conversation") as tool:
        yield tool


def test_commands_share_their_files_and_see_nothing_of_the_host(bash: BashTool, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("of the host's")

    assert bash("echo hi > f; echo done").text.startswith("done")
    assert bash("cat f").text == "hi"
    assert "No such file" in bash(f"cat {tmp_path}/secret").text


def test_the_time_is_in_seconds_from_python_and_in_milliseconds_from_a_model(bash: BashTool) -> None:
    assert bash("sleep 60", timeout=0.3).outcome == "timeout"
    assert bash.answer({"command": "sleep 60", "timeout": 300}).outcome == "timeout"
    assert bash("sleep 0.5; echo slept", timeout=30).text == "slept"


def test_a_models_own_input_is_answered(bash: BashTool, records: Records) -> None:
    answer = bash.answer({"command": "echo $((6 * 7))", "description": "counts"}, tool_use_id="toolu_7")

    assert answer.text == "42"
    (asked,) = records("tool")
    assert (asked["tool"], asked["session"], asked["tool_use"]) == ("Bash", "conversation", "toolu_7")


WRONG: list[tuple[Any, str]] = [
    (None, "takes an object"),
    ("ls", "takes an object"),
    (["ls"], "takes an object"),
    ({"command": "ls", 5: 6}, "does not take '5'"),
    ({"command": "ls", "timeout": 10**400}, "milliseconds"),
    ({"command": "ls", "timeout": 10**5000}, "milliseconds"),
    ({"command": "ls", "timeout": float("nan")}, "milliseconds"),
    ({"command": "ls", "timeout": float("inf")}, "milliseconds"),
    ({}, "command"),
    ({"command": ["ls"]}, "command"),
    ({"command": "ls", "timeout": "5"}, "milliseconds"),
    ({"command": "ls", "timeout": 0}, "milliseconds"),
    ({"command": "ls", "run_in_background": True}, "does not take"),
    ({"command": "ls", "dangerously_disable_sandbox": "yes"}, "not true or false"),
]


@pytest.mark.parametrize(("given", "words"), WRONG, ids=[f"{number}" for number in range(len(WRONG))])
def test_what_makes_no_sense_does_not_run(bash: BashTool, given: Any, words: str, records: Records) -> None:
    """Whatever a model writes is answered, and both are recorded."""
    answer = bash.answer(given)

    assert answer.is_error
    assert words in answer.text
    assert not records("started")
    assert [record["allowed"] for record in records("tool")] == [False]
    assert len(records("answered")) == 1


@pytest.mark.parametrize("spelling", ["dangerously_disable_sandbox", "dangerouslyDisableSandbox"])
def test_nothing_leaves_the_jar_unless_the_policy_says_so(
    bash: BashTool, tmp_path: Path, records: Records, spelling: str
) -> None:
    answer = bash.answer({"command": f"touch {tmp_path}/mark", spelling: True, "reason": "I want to"})

    assert answer.is_error
    assert "agents.unsandboxed: false" in answer.text
    assert not (tmp_path / "mark").exists()
    (asked,) = records("tool")
    assert not asked["allowed"]
    assert asked["unsandboxed"] == "I want to"


def test_the_reason_is_recorded_redacted_and_bounded(bash: BashTool, records: Records) -> None:
    """It is a model's text, as any other."""
    secret = "AKIA" + "Z7Q2M5K3P6X4T2W7"  # in two parts: nothing that scans this file shall find it
    reason = f"joe.doe@example.com said so, with {secret} " + "and so on " * 300_000

    bash("id", dangerously_disable_sandbox=True, reason=reason)

    (asked,) = records("tool")
    assert len(asked["unsandboxed"]) < 2000
    assert "<EMAIL_1> said so" in asked["unsandboxed"]
    assert secret not in asked["unsandboxed"]


@pytest.mark.parametrize("reason", ["", "  "])
def test_nor_without_a_reason(tmp_path: Path, reason: str) -> None:
    with BashTool(OPEN) as bash:
        answer = bash(f"touch {tmp_path}/mark", dangerously_disable_sandbox=True, reason=reason)

    assert "without a reason" in answer.text
    assert not (tmp_path / "mark").exists()


def test_with_both_it_runs_outside_and_the_reason_is_recorded(tmp_path: Path, records: Records) -> None:
    with BashTool(OPEN) as bash:
        inside = bash(f"touch {tmp_path}/mark")
        assert inside.is_error
        answer = bash(f"touch {tmp_path}/mark", dangerously_disable_sandbox=True, reason="the test wants a file")

    assert not answer.is_error, answer.text
    assert (tmp_path / "mark").exists()
    asked = records("tool")[-1]
    assert asked["allowed"]
    assert asked["unsandboxed"] == "the test wants a file"
    assert records("created")[-1]["backend"] == "unconfined"
