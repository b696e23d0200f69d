"""Looking for a secret in a workspace, at once and after the host has changed it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]
SECRET = "BEGIN-BELLJAR-SECRET"
SEARCH = f"grep -rsl {SECRET} . | sort; true"
"""A script that prints the files that hold the secret."""


def search_later(open_jar: OpenJar, project: Path, change: Callable[[], object], *, patience: float) -> list[str]:
    """What a jar finds after the host made a change while it was there, as soon as that is nothing new."""
    jar = open_jar(workspace=project)
    before = jar.run(SEARCH, language="bash").stdout.split()
    change()
    deadline = time.monotonic() + patience
    while (found := jar.run(SEARCH, language="bash").stdout.split()) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    return [path for path in found if path not in before]
