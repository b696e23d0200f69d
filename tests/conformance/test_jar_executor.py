"""Executor: several commands in one jar, one after the other or side by side."""

from __future__ import annotations

import pytest
from jars import WAIT_FOR_GO

from belljar import Command, Executor, Sandbox
from belljar.errors import UsageError


def outcomes(results: list) -> list[tuple[str, int | None]]:  # type: ignore[type-arg]
    return [(str(result.outcome), result.exit_code) for result in results]


class TestSequence:
    """One after the other, in one workspace."""

    def test_in_order_and_sharing_files(self, jar: Sandbox) -> None:
        """Words, a line for the shell, and code: whatever a command is."""
        commands = [
            ["sh", "-c", "echo 1 >> log"],
            "echo 2 >> log",
            Command(code="open('log', 'a').write('3')"),
            ["cat", "log"],
        ]
        results = Executor(jar).sequence(commands)
        assert outcomes(results) == [("ok", 0)] * 4
        assert results[-1].stdout == "1\n2\n3"

    def test_it_stops_at_the_first_failure(self, jar: Sandbox) -> None:
        """The failed one is the last, and what comes after it was not started."""
        results = Executor(jar).sequence(["echo 1 > one", "exit 3", "echo 3 > three"])
        assert outcomes(results) == [("ok", 0), ("failed", 3)]
        assert [entry.path for entry in jar.files.list()] == ["one"]

    def test_it_goes_on_if_asked(self, jar: Sandbox) -> None:
        """Every command has its result."""
        results = Executor(jar).sequence(["exit 3", "exit 0", "kill -KILL $$"], stop_on_failure=False)
        assert outcomes(results) == [("failed", 3), ("ok", 0), ("failed", 137)]

    def test_nothing_is_nothing(self, jar: Sandbox) -> None:
        """An empty list has no results."""
        assert Executor(jar).sequence([]) == []
        assert Executor(jar).parallel([]) == []


class TestParallel:
    """Side by side, with a bound."""

    def test_results_are_in_the_order_of_the_commands(self, jar: Sandbox) -> None:
        """Whatever ends first: here the first waits for the last."""
        commands = [f"{WAIT_FOR_GO}; echo 0", "echo 1", "echo 2; : > go"]
        assert [result.stdout for result in Executor(jar).parallel(commands, limit=3)] == ["0\n", "1\n", "2\n"]

    @pytest.mark.slow
    @pytest.mark.parametrize("limit", [1, 2, 3])
    def test_no_more_than_the_limit_at_once(self, jar: Sandbox, limit: int) -> None:
        """Each counts those that run beside it; at most `limit` are ever seen."""
        script = (
            "count() { set -- /workspace/r*; echo $#; }; "
            ": > /workspace/r$$-$1; count; sleep 0.1; count; rm /workspace/r$$-$1"
        )
        results = Executor(jar).parallel([["sh", "-c", script, "sh", str(number)] for number in range(6)], limit=limit)
        counts = [int(word) for result in results for word in result.stdout.split()]
        assert max(counts) <= limit

    def test_they_are_at_once(self, jar: Sandbox) -> None:
        """Two that wait for each other both end: they would not, one after the other."""
        meet = ": > {mine}; until [ -e {other} ]; do sleep 0.01; done"
        commands = [meet.format(mine="a", other="b"), meet.format(mine="b", other="a")]
        assert outcomes(Executor(jar).parallel(commands, limit=2)) == [("ok", 0)] * 2

    def test_a_failure_does_not_stop_the_others(self, jar: Sandbox) -> None:
        """Each has its own result."""
        assert outcomes(Executor(jar).parallel(["exit 1", "exit 0", "exit 2"])) == [
            ("failed", 1),
            ("ok", 0),
            ("failed", 2),
        ]

    def test_a_limit_of_nothing_is_a_mistake(self, jar: Sandbox) -> None:
        """It would never end."""
        with pytest.raises(UsageError, match="limit"):
            Executor(jar).parallel(["true"], limit=0)

    def test_a_fault_is_raised(self, jar: Sandbox) -> None:
        """The caller's mistake in one command is not swallowed by a thread."""
        with pytest.raises(UsageError):
            Executor(jar).parallel([["true"], []])


def test_one_command(jar: Sandbox) -> None:
    """`execute`."""
    assert Executor(jar).execute("echo x").stdout == "x\n"
