"""Where belljar keeps its state: one directory of the user's own, closed to everyone else."""

from __future__ import annotations

import os


def state_directory() -> str:
    """`BELLJAR_STATE_DIR`, or `belljar` in the XDG state directory. It may not exist yet."""
    chosen = os.environ.get("BELLJAR_STATE_DIR")
    if chosen:
        return os.path.abspath(chosen)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(base, "belljar")
