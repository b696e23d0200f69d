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


_MOST_KNOWN = 100
_KNOWN: dict[tuple[str | None, ...], str] = {}
"""What the environment's words came to: it is asked several times in every run."""


def state_directory() -> str:
    """`BELLJAR_STATE_DIR`, or `belljar` in the XDG state directory. It may not exist yet."""
    get = os.environ.get
    words = (get("BELLJAR_STATE_DIR"), get("XDG_STATE_HOME"), get("HOME"))
    known = _KNOWN.get(words)
    if known is not None:
        return known
    chosen, base, _home = words
    if chosen:
        found = os.path.abspath(chosen)
    else:
        found = os.path.join(base or os.path.join(os.path.expanduser("~"), ".local", "state"), "belljar")
    if len(_KNOWN) < _MOST_KNOWN and found == (chosen or found):  # a relative one depends on where we are
        _KNOWN[words] = found
    return found
