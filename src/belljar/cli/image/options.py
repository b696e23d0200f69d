"""What the `image` commands share: which engine is meant, and how sizes and digests are written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.parsing import Option, Parsed
from belljar.cli.terminal.safe_text import visible
from belljar.errors import PrerequisiteError

if TYPE_CHECKING:
    from belljar.backends.container.engine.engine import Engine
    from belljar.backends.container.images.engine_images import Image

ALL_ENGINES = Option("--engine", "NAME", "docker, podman or nerdctl (default: every one that works here)")
FIRST_ENGINE = Option("--engine", "NAME", "docker, podman or nerdctl (default: the first of them that has the image)")


def engines(parsed: Parsed) -> list[Engine]:
    """The engine that was named, or all that work. Raises PrerequisiteError."""
    from belljar.backends.container.images.engine_images import engines as working

    return working(parsed.text("--engine"), left_out=_note)


def _note(reason: str) -> None:
    sys.stderr.write(f"belljar: one engine is left out: {visible(reason)}\n")


def image_or_base(words: list[str]) -> str:
    """The image that was named, or the base image."""
    from belljar.backends.container.images.engine_images import BASE_IMAGE

    return words[0] if words else BASE_IMAGE


def first_with(parsed: Parsed, name: str) -> tuple[Engine, Image]:
    """The first engine that has the image. Raises PrerequisiteError with the command that gets it."""
    return all_with(parsed, name)[0]


def all_with(parsed: Parsed, name: str) -> list[tuple[Engine, Image]]:
    """Every engine that has the image. Raises PrerequisiteError if none does."""
    from belljar.backends.container.images.engine_images import how_to_get, look

    asked = engines(parsed)
    having = [(engine, image) for engine in asked if (image := look(engine, name))]
    if not having:
        names = " nor ".join(engine.name for engine in asked)
        raise PrerequisiteError(
            f"{'neither ' if len(asked) > 1 else ''}{names} has {'an' if len(asked) > 1 else 'no'} image {name!r}",
            hint=how_to_get(asked[0], name),
        )
    return having


def megabytes(size: int) -> str:
    """A size for people."""
    return f"{size / 1e6:.0f} MB"
