"""`belljar shell`: a session at a terminal."""

from __future__ import annotations

from belljar.cli.jar_options import JAR
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli import jar_options
    from belljar.cli.run.launching import end_in_order, start_launcher

    expect_words(COMMAND, parsed, 0, 0)
    jar_options.check(parsed)
    start_launcher(parsed.text("--backend"))
    end_in_order()
    jar_options.note_project_file(parsed)
    jar_options.note_home(parsed)
    from belljar.cli.run.shell_loop import converse

    return converse(parsed)


COMMAND = CliCommand(
    "shell",
    "A Python prompt in a jar, with variables that stay.",
    usage="shell [OPTIONS]",
    run=run,
    options=(
        *JAR,
        Option("--files", "SNAPSHOT", "begin with the files of a snapshot"),
        Option("--artifacts", "DIR", "write figures and the files that the code makes into DIR"),
        Option("--overwrite", "", "with --artifacts: replace files that are in DIR already"),
        Option("--raw", "", "let the code's escape sequences reach the terminal"),
        Option("--json", "", "print one JSON document for each step, one a line"),
        Option("-q --quiet", "", "no greeting, and nothing about files and figures"),
    ),
    details="""
Ctrl-C interrupts what runs, and variables stay. The third one in a step gives it up: if the code does not let itself be
interrupted, it is killed, and variables are gone. Ctrl-D leaves. Lines that begin with `%` or `!` are for belljar:

    !COMMAND          run a command of the shell's in the same workspace
    %files            list the workspace
    %restart          start a new interpreter, without variables; files stay
    %snapshot [NAME]  keep the files as they are now
    %restore NAME     have the files of a snapshot, in a jar made anew
    %help, %exit

When standard input is not a terminal, its statements are run one after the other, each as a step, until one fails.
""",
    examples=(
        ("shell", "a prompt"),
        ("shell --workspace . --policy strict", "on a copy of this directory"),
        ("shell --artifacts plots", "every figure becomes a file"),
        ("shell --json <steps.py", "a script's statements as steps, for programs"),
    ),
)
