"""`belljar image build`: the image that containers run, made of this host's packages."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from belljar.cli.image.options import ALL_ENGINES, engines, megabytes
from belljar.cli.jar_options import JSON, QUIET
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.progress import Progress
from belljar.errors import InternalError, UsageError

if TYPE_CHECKING:
    from belljar.backends.container.engine.engine import Engine
    from belljar.backends.container.images.store import Record


def run(parsed: Parsed) -> int:
    """Build it if the cache has none, and give it to the engines."""
    from belljar.backends.container.images.build import build, export
    from belljar.backends.container.images.recipe import make_recipe

    expect_words(COMMAND, parsed, 0, 0)
    recipe = make_recipe(parsed.text("--name"), parsed.texts("--with"), parsed.texts("--pip"))
    output = _writable(parsed.text("--output"))
    targets = engines(parsed) if output is None or parsed.text("--engine") else []
    with Progress(recipe.name, quiet=parsed.flag("--quiet")) as progress:
        record = build(recipe, tell=progress, fresh=parsed.flag("--no-cache"))
        if output is not None:
            progress(f"writing {output}")
            export(record, output)
        loaded = [engine.name for engine in targets if _give(engine, record, progress)]
    _report(parsed, record, [engine.name for engine in targets], loaded, progress.seconds)
    return 0


def _writable(path: str | None) -> str | None:
    """The path, if a file can be made there: told before the build, not a minute later. Raises UsageError."""
    if path is not None and (os.path.isdir(path) or not os.access(os.path.dirname(os.path.abspath(path)), os.W_OK)):
        raise UsageError(f"{path} can't be written", hint="--output names a file, in a directory that exists")
    return path


def _give(engine: Engine, record: Record, progress: Progress) -> bool:
    """Load it unless the engine has exactly this one; whether it was loaded."""
    from dataclasses import replace

    from belljar.backends.container.images.engine_images import RECIPE_LABEL, load, look
    from belljar.backends.container.images.store import archive_path, remember

    there = look(engine, record.name)
    # Not by the ID: an engine that keeps its images in containerd takes another digest for it.
    missing = there is None or (there.layers, there.labels.get(RECIPE_LABEL)) != ((record.layer,), record.recipe)
    if there is None or missing:
        progress(f"loading it into {engine.name}")
        there = load(engine, archive_path(record.recipe), record.name)
    if there.layers != (record.layer,):
        raise InternalError(f"{engine.name} has other layers under the name {record.name}: {', '.join(there.layers)}")
    remember(replace(record, id=there.id))
    return missing


def _report(parsed: Parsed, record: Record, targets: list[str], loaded: list[str], seconds: float) -> None:
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        names = {"image": record.name, "id": record.id, "recipe": record.recipe, "size": record.size}
        print_json(
            {
                **names,
                "engines": targets,
                "loaded": loaded,
                "output": parsed.text("--output"),
                "seconds": round(seconds, 1),
            }
        )
        return
    sys.stdout.write(f"{record.name}  {record.id}  {megabytes(record.size)}\n")
    if not parsed.flag("--quiet"):
        where = f"in {' and '.join(targets)}" if targets else f"in {parsed.text('--output')}"
        already = "" if loaded or not targets else ", as it was before"
        sys.stderr.write(f"belljar: {where}{already} ({seconds:.0f} s)\n")


COMMAND = CliCommand(
    "image build",
    "Build the image that containers run, with no registry.",
    usage="image build [OPTIONS]",
    run=run,
    options=(
        ALL_ENGINES,
        Option("--with", "PACKAGE", "put this Debian package into it as well; repeatable, needs --name", repeats=True),
        Option(
            "--pip", "REQUIREMENT", "put this Python package into it as well; repeatable, needs --name", repeats=True
        ),
        Option("--name", "NAME[:TAG]", "the image's name (default: that of belljar's base image)"),
        Option("--no-cache", "", "build it anew, with the packages of today"),
        Option("--output", "FILE", "write the image to FILE; without --engine, load it nowhere"),
        JSON,
        QUIET,
    ),
    details="""
Debian packages are fetched from the mirror of this host's apt, by mmdebstrap, as root or as an ordinary user. The same
packages give the same image, down to its ID, on every machine. What was built is kept in BELLJAR_IMAGE_CACHE, or in the
state directory, so that a second engine or a second clone does not build it again.
""",
    examples=(
        ("image build", "the base image, in every engine that works here"),
        ("image build --engine podman", "in podman alone"),
        ("image build --name data:1 --pip numpy --pip pandas", "an image with Python packages"),
        ("image build --name repo:1 --with git --with make", "an image with Debian packages"),
        ("image build --output base.tar", "for another machine: docker load --input base.tar"),
    ),
)
