"""`ps`, `inspect`, `kill` and `audit query` for people: names, times and code, and what a mistyped word means."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Ran

pytestmark = pytest.mark.host


@pytest.fixture
def runs(jar: Callable[..., Ran], here: Path) -> list[str]:
    """Three runs: a script, a script in its workspace, a program. Their names, oldest first."""
    (here / "first.py").write_text("print('hello')\nprint('there')")
    (here / "second.py").write_text("pass")
    for words in (["run", "first.py"], ["run", "--workspace", ".", "second.py"], ["exec", "--", "/bin/true"]):
        assert jar(*words).code == 0
    return [row["run"] for row in reversed(jar("ps", "--all", "--json").json)]


@pytest.mark.usefixtures("runs")
def test_ps_shows_what_ran(jar: Callable[..., Ran]) -> None:
    lines = jar("ps", "--all").out.splitlines()[1:]
    assert [line.split("bubblewrap")[1].split()[0] for line in lines] == ["true", "second.py", "first.py"]


def test_inspect_shows_times_and_the_code(jar: Callable[..., Ran], runs: list[str]) -> None:
    out = jar("inspect", runs[0]).out
    assert re.search(r"^created +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d$", out, re.MULTILINE)
    assert re.search(r"^duration +\d+\.\d{3} s$", out, re.MULTILINE)
    assert "code:\n  print('hello')\n  print('there')\n" in out


@pytest.mark.parametrize("command", ["inspect", "logs", "replay"])
def test_a_name_that_fits_several_runs(jar: Callable[..., Ran], runs: list[str], command: str) -> None:
    shared = runs[0][:3]
    told = jar(command, shared)
    assert told.code == 2
    assert f"'{shared}' fits more than one run: {runs[2]}, {runs[1]}, {runs[0]}" in told.err


def test_a_part_of_a_name(jar: Callable[..., Ran], runs: list[str]) -> None:
    assert jar("inspect", runs[1][-6:]).out.startswith(f"run                {runs[1]}")


QUERIES = [
    ("evnt=created", "no record has a member 'evnt' (did you mean 'event'?)"),
    ("since=2026-01-31", "no record has a member 'since' (did you mean --since 2026-01-31?)"),
    ("event=create", "no record has the event 'create' (did you mean 'created'?)"),
    ("outcome=killed", "no record fits"),
]


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(("word", "told"), QUERIES)
def test_a_query_that_finds_nothing(jar: Callable[..., Ran], word: str, told: str) -> None:
    assert jar("audit", "query", word) == Ran(1, "", f"belljar: {told}\n")
