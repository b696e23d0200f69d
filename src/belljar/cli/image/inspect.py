"""`belljar image inspect`: what an image is, and what is in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from belljar.cli.image.options import FIRST_ENGINE, first_with, image_or_base, megabytes
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Parsed, expect_words
from belljar.cli.terminal.progress import Progress
from belljar.cli.terminal.safe_text import visible

if TYPE_CHECKING:
    from belljar.backends.container.engine.engine import Engine
    from belljar.backends.container.images.engine_images import Image


def run(parsed: Parsed) -> int:
    """Show it."""
    name = image_or_base(expect_words(COMMAND, parsed, 0, 1))
    engine, image = first_with(parsed, name)
    document = describe(engine, image)
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        print_json(document)
    else:
        sys.stdout.write(_text(document))
    return 0


def describe(engine: Engine, image: Image) -> dict[str, Any]:
    """All that is known: what the engine says, and what was written down when it was built, or else is read from it."""
    from belljar.backends.container.images.engine_images import RECIPE_LABEL
    from belljar.backends.container.images.store import recall

    record = recall(image.id)
    return {
        "engine": engine.name,
        "image": image.name,
        "id": image.id,
        "size": image.size,
        "user": image.user,
        "architecture": image.architecture,
        "created": image.created,
        "recipe": image.labels.get(RECIPE_LABEL),
        "recorded": record.id if record else None,
        "release": record.release if record else None,
        "requirements": list(record.requirements) if record else [],
        "packages": list(record.packages) if record else _packages_inside(engine, image),
    }


def _packages_inside(engine: Engine, image: Image) -> list[str]:
    from belljar.backends.container.images.scan import scan_image

    with Progress(image.name) as progress:
        progress("reading what is in it")
        return list(scan_image(engine, image.id).packages)


def _text(document: dict[str, Any]) -> str:
    from belljar.cli.terminal.table import aligned

    packages = document["packages"]
    recorded = "this image, when it was built here" if document["recorded"] else "not built here"
    rows = [
        ("image", visible(document["image"])),
        ("engine", document["engine"]),
        ("id", document["id"]),
        ("recorded", recorded),
        ("size", megabytes(document["size"])),
        ("user", visible(document["user"]) or "root"),
        ("recipe", visible(document["recipe"] or "not belljar's")),
        *((("python", ", ".join(map(visible, document["requirements"]))),) if document["requirements"] else ()),
        ("packages", str(len(packages))),
    ]
    columns = [tuple(visible(package).partition(" ")[::2]) for package in packages]
    return aligned(rows) + aligned(columns, indent="  ")


COMMAND = CliCommand(
    "image inspect",
    "Show what an image is and what is in it.",
    usage="image inspect [OPTIONS] [IMAGE]",
    run=run,
    options=(FIRST_ENGINE, JSON),
    details="""
IMAGE is belljar's base image if it is not given. The packages are those that were written down when the image was built
here; those of another image are read from the image itself, which takes a moment.
""",
    examples=(("image inspect", "the base image"), ("image inspect --json data:1", "another, for a program")),
)
