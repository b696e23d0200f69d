"""`belljar image ls`: the images that belljar built."""

from __future__ import annotations

import sys

from belljar.cli.image.options import ALL_ENGINES, engines, megabytes
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible

_HEAD = ("engine", "image", "id", "size", "recipe")


def run(parsed: Parsed) -> int:
    """List them."""
    from belljar.backends.container.images.engine_images import RECIPE_LABEL, list_images

    expect_words(COMMAND, parsed, 0, 0)
    found = [(engine.name, image) for engine in engines(parsed) for image in list_images(engine)]
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json([{"engine": engine, "image": image} for engine, image in found])
        return 0
    from belljar.cli.terminal.table import aligned

    rows = [
        (engine, visible(image.name), image.id[:19], megabytes(image.size), visible(image.labels.get(RECIPE_LABEL, "")))
        for engine, image in found
    ]
    sys.stdout.write(aligned([_HEAD, *rows]))
    if not found:
        sys.stderr.write("belljar: there are none yet; this makes one: belljar image build\n")
    return 0


COMMAND = CliCommand(
    "image ls",
    "List the images that belljar built, on each engine.",
    usage="image ls [OPTIONS]",
    run=run,
    options=(ALL_ENGINES, JSON),
    details="""
Those with the label belljar.image=1. Other images can be used as well: `container.image` in a policy names one.
""",
    examples=(("image ls", "on every engine"), ("image ls --engine podman --json", "on one, for a program")),
)
