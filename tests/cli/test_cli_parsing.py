"""The words of a command line, as tables."""

from __future__ import annotations

import pytest

from belljar.cli.commands import COMMANDS
from belljar.cli.helptext import of_command, top_level
from belljar.cli.main import find
from belljar.cli.parsing import CliCommand, Parsed, parse
from belljar.cli.run.exec import COMMAND as EXEC
from belljar.cli.run.run import COMMAND as RUN
from belljar.errors import UsageError


def seen(parsed: Parsed) -> tuple[dict[str, list[str]], list[str], list[str] | None]:
    return parsed.options, parsed.words, parsed.after


@pytest.mark.parametrize(
    ("command", "words", "expected"),
    [
        (RUN, "x.py", ({}, ["x.py"], None)),
        (RUN, "x.py a b", ({}, ["x.py", "a", "b"], None)),
        (RUN, "x.py --json a", ({"--json": [""]}, ["x.py", "a"], None)),
        (RUN, "x.py -- --json", ({}, ["x.py"], ["--json"])),
        (RUN, "--policy strict x.py", ({"--policy": ["strict"]}, ["x.py"], None)),
        (RUN, "--policy=strict x.py", ({"--policy": ["strict"]}, ["x.py"], None)),
        (RUN, "--set a=1 --set=b=2 -", ({"--set": ["a=1", "b=2"]}, ["-"], None)),
        (RUN, "--diff-file=--workspace x.py", ({"--diff-file": ["--workspace"]}, ["x.py"], None)),
        (RUN, "-c -x -q", ({"-c": ["-x"], "--quiet": [""]}, [], None)),
        (EXEC, "ls -l --json", ({}, ["ls", "-l", "--json"], None)),
        (EXEC, "--json -- ls -l", ({"--json": [""]}, [], ["ls", "-l"])),
        (EXEC, "-- -- x", ({}, [], ["--", "x"])),
        (EXEC, "env -- x", ({}, ["env", "--", "x"], None)),
    ],
)
def test_words(command: CliCommand, words: str, expected: object) -> None:
    """What is an option, what is a word, what comes after `--`."""
    assert seen(parse(command, words.split())) == expected


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (
            "--to",
            "`belljar run` has no option '--to'",
            "what the code itself shall get comes after `--`; `belljar run --help` shows its options",
        ),
        (
            "--diff-file --workspace .",
            "--diff-file needs a value, found '--workspace', which looks like an option",
            "--diff-file FILE; if the value is meant so: --diff-file=--workspace",
        ),
        (
            "-c -- x",
            "-c needs a value, found '--', which looks like an option",
            "-c CODE; if the value is meant so: -c=--",
        ),
        ("--polcy x", "`belljar run` has no option '--polcy'", "did you mean --policy?"),
        (
            "x.py -v",
            "`belljar run` has no option '-v'",
            "what the code itself shall get comes after `--`; `belljar run --help` shows its options",
        ),
        ("--policy", "--policy needs a value: --policy FILE|PRESET", "`belljar run --help` shows its options"),
        ("--json=1", "--json takes no value", "`belljar run --help` shows its options"),
    ],
)
def test_wrong_words(words: str, message: str, hint: str) -> None:
    """What is wrong, and what to type instead."""
    with pytest.raises(UsageError) as caught:
        parse(RUN, words.split())
    assert (caught.value.message, caught.value.hint) == (message, hint)


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_is_what_the_table_says(name: str) -> None:
    """The top-level help is made of a table of its own; it says what the commands themselves say."""
    command = find(name)
    assert (command.name, command.summary) == (name, COMMANDS[name][1])
    assert command.usage.startswith(name)
    assert [name, *command.summary.split()] in [
        [line[2:].partition("  ")[0], *line[2:].partition("  ")[2].split()] for line in top_level().splitlines()
    ]


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_examples_and_every_option(name: str) -> None:
    """Each example parses, each option is named, no line is too wide, `--json` is everywhere."""
    command = find(name)
    text = of_command(command)
    assert command.examples
    assert "--json" in text
    assert all(option.name in text for option in command.options)
    assert all(len(line) <= 120 for line in text.splitlines())


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name: str) -> None:
    """An example that does not parse is worse than none."""
    import shlex

    for line, _text in find(name).examples:
        words = shlex.split(line.partition(" > ")[0])
        length = 2 if " ".join(words[:2]) in COMMANDS else 1
        parse(find(" ".join(words[:length])), words[length:])
