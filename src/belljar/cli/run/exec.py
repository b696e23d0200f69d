"""`belljar exec`: a command, in a jar."""

from __future__ import annotations

from belljar.cli.jar_options import JAR, RUNNING
from belljar.cli.parsing import CliCommand, Parsed
from belljar.cli.run.request import of_command


def run(parsed: Parsed) -> int:
    """Do it."""
    request = of_command(parsed.all_words())
    from belljar.cli.run.launching import execute

    return execute(parsed, lambda _jar: request)


COMMAND = CliCommand(
    "exec",
    "Run a command in a jar.",
    usage="exec [OPTIONS] [--] COMMAND [ARGS…]",
    run=run,
    options=(*JAR, *RUNNING),
    options_first=True,
    details="""
The command is looked for inside the jar, on its own PATH. belljar's options come before it: from the first word that
is no option, everything is the command's.
""",
    examples=(
        ("exec -- ls -la /", "what a jar looks like"),
        ("exec --workspace . --diff -- make test", "on a copy of this directory; show what it changed"),
        ("exec --set proc.mem_mb=2g -- node build.js", "with more memory than the preset gives"),
    ),
)
