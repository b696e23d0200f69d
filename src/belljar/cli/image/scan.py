"""`belljar image scan`: what should not be in an image that runs untrusted code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from belljar.cli.image.options import FIRST_ENGINE, first_with, image_or_base
from belljar.cli.jar_options import JSON
from belljar.cli.parsing import CliCommand, Option, Parsed, expect_words
from belljar.cli.terminal.progress import Progress
from belljar.cli.terminal.safe_text import visible
from belljar.errors import UsageError

if TYPE_CHECKING:
    from belljar.backends.container.images.scan import Scan

SERIOUS = 1


def run(parsed: Parsed) -> int:
    """Scan it; 1 if something serious is found."""
    words = expect_words(COMMAND, parsed, 0, 1)
    file = parsed.text("--input")
    if file is not None and (words or parsed.text("--engine")):
        raise UsageError("--input names a file, so there is no image or engine to name as well")
    name, image, scan = _of_file(file) if file is not None else _of_engine(parsed, image_or_base(words))
    if parsed.flag("--json"):
        from belljar.cli.terminal.document import print_json

        found = {"findings": scan.findings, "files": scan.files, "packages": scan.packages}
        print_json({"image": name, "id": image, "serious": scan.serious, **found})
    else:
        sys.stdout.write(describe(name, scan))
    return SERIOUS if scan.serious else 0


def _of_engine(parsed: Parsed, name: str) -> tuple[str, str | None, Scan]:
    from belljar.backends.container.images.scan import scan_image

    engine, image = first_with(parsed, name)
    with Progress(name) as progress:
        progress("looking through its files")
        return name, image.id, scan_image(engine, name)


def _of_file(path: str) -> tuple[str, str | None, Scan]:
    from belljar.backends.container.images.scan import scan_stream

    with Progress(path) as progress, open(path, "rb") as file:
        progress("looking through its files")
        return path, None, scan_stream(file)


def describe(name: str, scan: Scan) -> str:
    """The findings as text, a line for each."""
    from belljar.cli.terminal.table import aligned

    rows = [
        ("serious" if finding.serious else "warning", finding.rule, visible(finding.place), visible(finding.reason))
        for finding in scan.findings
    ]
    serious = sum(finding.serious for finding in scan.findings)
    counted = f"{serious} serious, {len(rows) - serious} warnings, in {scan.files} files"
    return aligned(rows) + f"{visible(name)}: {counted}\n"


COMMAND = CliCommand(
    "image scan",
    "Look through an image for what should not be in it.",
    usage="image scan [OPTIONS] [IMAGE]",
    run=run,
    options=(FIRST_ENGINE, Option("--input", "FILE", "scan what `docker save` wrote into FILE"), JSON),
    details="""
Serious: setuid and setgid files, files that everyone may change, devices, root as its user, secrets in any layer or in
its environment, no python3. Warnings: package managers, and programs that are of use to an attacker. Nothing of the
image is run or unpacked. It does not compare versions of packages with lists of known holes; other scanners do.
IMAGE is belljar's base image if it is not given. Exit code: 0 if nothing serious is found, 1 if something is.
""",
    examples=(("image scan", "the base image"), ("image scan python:3.12-slim", "one that you want to use")),
)
