"""The files that a run made, in memory, up to a size: for whoever wants their content and no directory for it."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from belljar.backends.hostile_files import open_beneath


class KeptFiles:
    """What `artifacts=` takes instead of a directory. One for each run."""

    def __init__(self, most_bytes: int) -> None:
        self._room = most_bytes
        self.content: dict[str, bytes] = {}
        """By path. A file for which there was no room is not in it."""

    def take(self, changed: int, paths: Sequence[str]) -> list[str]:
        """Read the files at `paths` beneath the descriptor, through no link. The paths that were read."""
        for path in paths:
            data = _read(changed, path, self._room)
            if data is not None:
                self.content[path] = data
                self._room -= len(data)
        return list(self.content)


def _read(changed: int, path: str, most: int) -> bytes | None:
    """None if it is no plain file any more, or larger than that."""
    try:
        source = open_beneath(changed, path, os.O_RDONLY | os.O_NONBLOCK, own=True)
    except OSError:
        return None
    with os.fdopen(source, "rb") as file:
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        data = file.read(most + 1)
    return data if len(data) <= most else None
