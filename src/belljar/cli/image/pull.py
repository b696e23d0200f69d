"""`belljar image pull`: an image from a registry."""

from __future__ import annotations

import sys

from belljar.cli.image.options import engines, megabytes
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible


def run(parsed: Parsed) -> int:
    """Pull it; the engine shows its own progress on standard error."""
    from belljar.backends.container.images.engine_images import pull

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    engine = engines(parsed)[0]
    image = pull(engine, name)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json({"engine": engine.name, "image": image})
    else:
        sys.stdout.write(f"{visible(name)}  {image.id}  {megabytes(image.size)}\n")
        sys.stderr.write(f"belljar: before you use it: belljar image scan --engine {engine.name} {visible(name)}\n")
    return 0


COMMAND = CliCommand(
    "image pull",
    "Get an image from a registry.",
    usage="image pull [OPTIONS] IMAGE",
    run=run,
    options=(
        Option("--engine", "NAME", "docker, podman or nerdctl (default: the first of them that works here)"),
        JSON,
    ),
    details="""
The base image is in no registry: `belljar image build` makes it.
""",
    examples=(("image pull python:3.12-slim", "then scan it before you use it"),),
)
