"""`belljar run`: a file or a piece of code, in a jar."""

from __future__ import annotations

from belljar.cli.jar_options import JAR, RUNNING
from belljar.cli.parsing import CliCommand, Parsed
from belljar.cli.run.request import CODE, LANG, of_code


def run(parsed: Parsed) -> int:
    """Do it."""
    from belljar.cli.run.launching import execute

    return execute(parsed, lambda jar: of_code(parsed, jar))


COMMAND = CliCommand(
    "run",
    "Run a file or a piece of code in a jar.",
    usage="run [OPTIONS] FILE|-|-c CODE [WORDS…] [-- ARGS…]",
    run=run,
    options=(CODE, LANG, *JAR, *RUNNING),
    details="""
The code sees no home directory, no keys and no network unless the policy says so. Options may stand before and after
FILE; what the code itself shall get as arguments comes after FILE, and after `--` if it begins with a dash. `-` reads
the code from standard input. A FILE inside of --workspace runs in its place, as /workspace/….
""",
    examples=(
        ("run script.py 10 20", "a file, with arguments"),
        ("run --workspace . script.py input.csv", "with the files of this directory, as a copy"),
        ("run -c 'import sys; print(sys.argv)' -- --verbose", "a line of code, with an option for the code"),
        ("run --policy strict --timeout 5s script.py", "less of everything"),
        ("run --workspace . --diff fix.py", "on a copy of this directory; show what it changed"),
        ("run --workspace . --apply fix.py", "the same, and bring the changes back"),
        ("run --explain-denials script.py", "name every file that was refused"),
    ),
)
