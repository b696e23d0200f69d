"""`belljar image rm`: an image is removed, unless something uses it."""

from __future__ import annotations

import sys

from belljar.cli.image.options import ALL_ENGINES, all_with
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.safe_text import visible


def run(parsed: Parsed) -> int:
    """Remove it from each engine that has it."""
    from belljar.backends.container.images.engine_images import remove
    from belljar.backends.container.images.store import forget

    (name,) = expect_words(COMMAND, parsed, 1, 1)
    removed = []
    for engine, _image in all_with(parsed, name):
        image = remove(engine, name)
        removed.append({"engine": engine.name, "image": name, "id": image.id})
        forget(image.id, archive=parsed.flag("--cache"))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(removed)
    else:
        sys.stdout.write("".join(f"{entry['engine']}: removed {visible(name)}  {entry['id']}\n" for entry in removed))
    return 0


COMMAND = CliCommand(
    "image rm",
    "Remove an image.",
    usage="image rm [OPTIONS] IMAGE",
    run=run,
    options=(ALL_ENGINES, Option("--cache", "", "remove the archive that belljar keeps of it as well"), JSON),
    details="""
An image that a container was made of, running or not, is not removed; the error names the containers.
""",
    examples=(
        ("image rm data:1", "from every engine that has it"),
        ("image rm --engine podman belljar-base:1", "from one"),
    ),
)
