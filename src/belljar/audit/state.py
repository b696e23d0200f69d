"""Where belljar keeps its state: one directory of the user's own, closed to everyone else."""

from __future__ import annotations

import os


def private_directory(path: str) -> str:
    """Make a directory that is closed to everyone else, and those above it that are missing as well."""
    if not os.path.isdir(path):
        parent = os.path.dirname(path)
        if parent != path:
            private_directory(parent)
        try:
            os.mkdir(path, 0o700)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
    return path


def state_directory() -> str:
    """`BELLJAR_STATE_DIR`, or `belljar` in the XDG state directory. It may not exist yet."""
    chosen = os.environ.get("BELLJAR_STATE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "belljar")
