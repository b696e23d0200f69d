"""`belljar policy schema`: the JSON Schema of a policy file."""

from __future__ import annotations

from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words


def run(parsed: Parsed) -> int:
    """Print it; it is JSON with or without `--json`."""
    from belljar.cli.terminal.document import print_json
    from belljar.policy.jsonschema import json_schema

    expect_words(COMMAND, parsed, 0, 0)
    print_json(json_schema())
    return 0


COMMAND = CliCommand(
    "policy schema",
    "Print the JSON Schema of a policy file, for editors.",
    usage="policy schema",
    run=run,
    options=(JSON,),
    details="""
An editor with a YAML language server checks a policy while you write it: put
`# yaml-language-server: $schema=belljar.schema.json` on its first line.
""",
    examples=(("policy schema > belljar.schema.json", "for an editor"),),
)
