"""Secrets and personal data in what is logged and returned: tokens instead, where the policy says so."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit import stored
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.backends.contract import End, Process
from belljar.errors import SandboxUnavailableError
from belljar.policy.load.resolve import resolve
from belljar.sandbox.record.events import Output
from belljar.sandbox.run.lifecycle import settle
from belljar.sandbox.run.watch import Watch

pytestmark = pytest.mark.backend("bubblewrap")
MAIL = "jane.doe@example.com"
KEY = "ghp_" + "a1B2c3D4e5" * 3 + "f6G7h8"
PRINTS = f"print('{MAIL}', '{MAIL}', '{KEY[:9]}' + '{KEY[9:]}')"
RETURNED = {"logging": {"redact_in": ["log", "result"]}}


def logged() -> str:
    """The log as it lies there."""
    return "".join(path.read_text() for path in Path(directory()).glob("*.jsonl"))


class TestLog:
    """By default nothing of the kind is in it."""

    def test_arguments_and_files(self) -> None:
        """The same value has the same token within a run."""
        with Sandbox() as jar:
            result = jar.run("import sys; open(sys.argv[1], 'w')", args=[MAIL, f"--token={KEY}"])
        assert MAIL in [artifact.path for artifact in result.artifacts], "the caller gets what there is"
        assert MAIL not in logged()
        assert KEY not in logged()
        mine = {one["event"]: one for one in records(directory()) if one.get("run") == result.run_id}
        assert mine["created"]["arguments"][0] == mine["artifacts"]["paths"][0] == "<EMAIL_1>"

    def test_commands(self) -> None:
        """A secret that was typed."""
        with Sandbox() as jar:
            jar.exec(["echo", f"--password={KEY}"])
        assert KEY not in logged()

    def test_plans(self) -> None:
        """Neither what was typed, nor what the policy sets: both are in the plan."""
        policy = {"env": {"set": {"WORD": "hunter-of-ducks", "API_TOKEN": KEY}}}
        with Sandbox(policy) as jar:
            result = jar.exec(["sh", "-c", "echo $WORD", MAIL, KEY])
            jar.run("1", args=[MAIL, KEY])
        assert result.stdout == "hunter-of-ducks\n"
        plans = [path.read_text() for path in Path(stored.plans()).iterdir()]
        assert len(plans) == 2
        for text in plans:
            assert "<EMAIL_1>" in text
            assert "(set by the policy)" in text
            assert not [word for word in (MAIL, KEY, "hunter-of-ducks") if word in text]

    def test_what_a_broken_jar_said(self) -> None:
        """Its last words may be the code's."""
        policy = resolve()
        plan = Sandbox().plan("1")
        watch = Watch(cast("Process", None), 0)
        watch.captured["stderr"] += f"{MAIL} {KEY}".encode()
        end = End(137, None, "internal", (), True, 0.0, 0, None, None, None, 0, 0, ())
        with pytest.raises(SandboxUnavailableError, match=MAIL):
            settle(
                policy, plan, watch, end,
                run_id="0", report=plan.report, started=0.0, artifacts=(), fallback_from=(),
            )  # fmt: skip
        assert "<EMAIL_1>" in logged()
        assert MAIL not in logged()
        assert KEY not in logged()

    def test_off(self) -> None:
        """If the policy says so."""
        with Sandbox({"logging": {"redact_pii": False}}) as jar:
            jar.run("1", args=[MAIL])
        assert MAIL in logged()


class TestResult:
    """Where the policy says so, what is returned has tokens, too."""

    def test_of_a_sandbox(self) -> None:
        """Also in pieces, as it streams; and as it is without that word."""
        with Sandbox(RETURNED) as jar:
            result = jar.run(PRINTS)
            assert MAIL not in result.stdout
            assert KEY not in result.stdout
            assert result.stdout.startswith("<EMAIL_1> <EMAIL_1> <")
            slow = f"import sys, time\nfor c in {MAIL!r}: sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.001)"
            pieces = [event.data for event in jar.stream(slow) if isinstance(event, Output)]
            assert b"".join(pieces) == b"<EMAIL_1>"
        with Sandbox() as jar:
            assert jar.run(PRINTS).stdout == f"{MAIL} {MAIL} {KEY}\n"

    def test_of_a_pool(self) -> None:
        """The same."""
        with Pool(RETURNED, size=1) as pool:
            assert pool.run(PRINTS).stdout.startswith("<EMAIL_1> <EMAIL_1> <")

    def test_of_a_session(self) -> None:
        """Output, values, errors and what is shown; one token for one value in all its steps."""
        with Session(RETURNED) as session:
            assert session.run(f"x = {MAIL!r}; print(x)").stdout == "<EMAIL_1>\n"
            step = session.run("display({'a': x}); x")
            assert step.value == "'<EMAIL_1>'"
            assert [rich.text for rich in step.results] == ['{"a": "<EMAIL_1>"}']
            error = session.run("raise ValueError(x)").error
            assert error is not None
            assert error.message == "<EMAIL_1>"
            assert MAIL not in error.traceback

    def test_the_limit_is_of_what_was_printed(self) -> None:
        """However short the tokens are."""
        with Sandbox({**RETURNED, "proc": {"output_mb": 1}}) as jar:
            result = jar.run(f"while True: print('{MAIL}')")
            assert result.truncated
            assert len(result.stdout) < 1 << 20
            assert MAIL not in result.stdout
