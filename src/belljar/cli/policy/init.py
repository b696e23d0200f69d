"""`belljar init`: a policy file to start from."""

from __future__ import annotations

import os
import sys

from belljar.cli.jar_options import JSON, PROJECT_FILE
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError


def run(parsed: Parsed) -> int:
    """Write it, and say how to use it."""
    from belljar.policy.load.resolve import DEFAULT_PRESET

    path = (expect_words(COMMAND, parsed, 0, 1) or [PROJECT_FILE])[0]
    preset = parsed.text("--preset") or DEFAULT_PRESET
    _write(path, _template(preset, path), force=parsed.flag("--force"))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"path": path, "preset": preset})
    else:
        name = visible(path)
        sys.stderr.write(f"belljar: wrote {name}; use it: belljar run --policy {name} script.py\n")
    return 0


def _template(preset: str, path: str) -> str:
    from belljar.policy.presets import PRESETS
    from belljar.policy.template import commented_template

    if preset not in PRESETS:
        raise UsageError(f"there is no preset {preset!r}", hint=f"use one of {', '.join(PRESETS)}")
    return commented_template(preset, file=path)


def _write(path: str, text: str, *, force: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        descriptor = os.open(path, flags, 0o644)
    except FileExistsError:
        raise UsageError(f"{path} exists already", hint=f"belljar init --force {path} overwrites it") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


COMMAND = CliCommand(
    "init",
    "Write a policy file with every key explained.",
    usage="init [OPTIONS] [FILE]",
    run=run,
    options=(
        Option("--preset", "NAME", "the preset that it extends (default: aicode)"),
        Option("--force", "", "overwrite FILE if it exists"),
        JSON,
    ),
    details=f"""
FILE is {PROJECT_FILE} if it is not given. belljar never uses a policy file that was not named with --policy or
BELLJAR_POLICY: one that lies in a directory may have come with it.
""",
    examples=(
        ("init", "in this directory"),
        ("init --preset strict ~/strict.policy.yaml", "elsewhere, from another preset"),
    ),
)
