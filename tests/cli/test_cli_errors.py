"""What belljar says when something is wrong: exact texts, and the exit code that says whose fault it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_process import Ran

EXACT = [
    (["rnu"], 2, "belljar: error: there is no command 'rnu'\n\nhint: did you mean `belljar run`?\n"),
    (["zzz"], 2, "belljar: error: there is no command 'zzz'\n\nhint: `belljar --help` lists the commands\n"),
    (
        ["policy", "chek"],
        2,
        "belljar: error: there is no command 'policy chek'\n\nhint: did you mean `belljar policy check`?\n",
    ),
    (
        ["run", "--diff", "x.py"],
        2,
        "belljar: error: --diff needs a workspace\n\nhint: say which directory: --workspace . --diff\n",
    ),
    (
        ["run", "--workspace", ".", "--live", "--apply", "x.py"],
        2,
        "belljar: error: --apply and --live exclude each other: with --live the code changes DIR itself\n",
    ),
    (["exec"], 2, "belljar: error: which command?\n\nhint: belljar exec -- ls -l\n"),
    (
        ["run", "missing.py"],
        2,
        "belljar: error: missing.py: there is no such file\n\nhint: to run a command, use `belljar exec -- …`\n",
    ),
    (["run", "."], 2, "belljar: error: .: Is a directory\n"),
    (
        ["run", "notes.txt"],
        2,
        "belljar: error: notes.txt: can't tell its language by its name or first line\n\nhint: say it: --lang python\n",
    ),
    (
        ["run", "--lang", "cobol", "-c", "x"],
        2,
        "belljar: error: no language is called 'cobol'\n\nhint: use one of python, javascript, bash\n",
    ),
    (
        ["policy", "diff", "strict"],
        2,
        (
            "belljar: error: too few words; usage: belljar policy diff [OPTIONS] OLD NEW\n\n"
            "hint: `belljar policy diff --help` shows its options\n"
        ),
    ),
    (
        ["init", "--preset", "x"],
        2,
        (
            "belljar: error: there is no preset 'x'\n\nhint: use one of strict, production, aicode, testing, "
            "webscraping, docker, development, unrestricted\n"
        ),
    ),
]


@pytest.mark.parametrize(("words", "code", "text"), EXACT, ids=[" ".join(words) for words, _, _ in EXACT])
def test_exact(belljar: Callable[..., Ran], here: Path, words: list[str], code: int, text: str) -> None:
    """One thing wrong, one text."""
    (here / "notes.txt").write_text("just notes\n")
    assert belljar(*words) == Ran(code, "", text)


def test_every_problem_of_a_policy_at_once(belljar: Callable[..., Ran], here: Path) -> None:
    """With file, line and column each, and never a traceback."""
    (here / "bad.yaml").write_text("version: 1\nproc: {mem_mb: -3, foo: 2}\nfss: 2\n")
    ran = belljar("run", "--policy", "bad.yaml", "-c", "pass")
    assert (ran.code, ran.out) == (125, "")
    lines = ran.err.splitlines()
    assert lines[0] == "belljar: error: the policy has 3 problems"
    assert [line.partition(": ")[0] for line in lines[1:4]] == ["  bad.yaml:2:16", "  bad.yaml:2:20", "  bad.yaml:3:1"]


def test_a_policy_that_is_not_there(belljar: Callable[..., Ran]) -> None:
    """A name that is neither a preset nor a file."""
    ran = belljar("run", "--policy", "strct", "-c", "pass")
    assert ran.code == 125
    assert ran.err.startswith("belljar: error: wanted a preset (strict, ")
    assert "(did you mean 'strict'?)" in ran.err


def test_a_hostile_name_can_not_touch_the_terminal(belljar: Callable[..., Ran]) -> None:
    """What someone typed is shown, not acted on."""
    ran = belljar("run", "\x1b]0;owned\x07.py")
    assert ran.code == 2
    assert "\x1b" not in ran.err
    assert "\\x1b]0;owned\\x07.py" in ran.err


def test_output_that_nobody_reads(belljar: Callable[..., Ran], here: Path) -> None:
    """A reader that has gone away is no reason to complain."""
    import subprocess

    from cli_process import BELLJAR, environment

    readable, writable = os.pipe()
    os.close(readable)
    with os.fdopen(writable, "wb") as gone:
        done = subprocess.run(
            [*BELLJAR, "policy", "schema"],
            stdout=gone,
            stderr=subprocess.PIPE,
            cwd=here,
            env=environment(here.parent),
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_full_disk(belljar: Callable[..., Ran], here: Path) -> None:
    """Output that can't be written is a fault, not a traceback."""
    import subprocess

    from cli_process import BELLJAR, environment

    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*BELLJAR, "--help"],
            stdout=full,
            stderr=subprocess.PIPE,
            cwd=here,
            env=environment(here.parent),
            check=False,
        )
    assert (done.returncode, done.stderr) == (125, b"belljar: error: No space left on device\n")
