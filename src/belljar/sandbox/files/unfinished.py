"""Files of snapshots and bundles that are being written, and those that a process which was killed left behind."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time

_NAME = re.compile(r"[A-Za-z0-9_-]+\.tar(\.files)?\.[0-9]+-[0-9a-f]{8}")
_OLD_SECONDS = 24 * 3600.0
"""Nobody writes it any more. Numbers of processes tell less: others may be in a container, with the same directory."""


def beside(path: str) -> str:
    """What a file is called until it is whole."""
    return f"{path}.{os.getpid()}-{os.urandom(4).hex()}"


def sweep(directory: str) -> None:
    """Remove those of a directory of belljar's own that nobody has written to for a day."""
    before = time.time() - _OLD_SECONDS
    for name in os.listdir(directory):
        if _NAME.fullmatch(name):
            path = os.path.join(directory, name)
            with contextlib.suppress(OSError):
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < before:
                    os.unlink(path)


__all__ = ["beside", "sweep"]
