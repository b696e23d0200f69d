"""Where belljar keeps its files. `audit/state.py` makes the directory."""

from __future__ import annotations

import os

_MOST_KNOWN = 100
_VARIABLES = tuple(map(os.environ.encodekey, ("BELLJAR_STATE_DIR", "XDG_STATE_HOME", "HOME")))
_KNOWN: dict[tuple[bytes | None, ...], str] = {}
"""What the environment's words came to: it is asked several times in every run."""


def state_directory() -> str:
    """`BELLJAR_STATE_DIR`, or `belljar` in the XDG state directory. It may not exist yet."""
    environment = os.environ._data  # type: ignore[attr-defined]  # noqa: SLF001 - ten times as fast, in every run
    words = tuple(map(environment.get, _VARIABLES))
    known = _KNOWN.get(words)
    if known is not None:
        return known
    chosen, base = os.environ.get("BELLJAR_STATE_DIR"), os.environ.get("XDG_STATE_HOME")
    if chosen:
        found = os.path.abspath(chosen)
    else:
        found = os.path.join(base or os.path.join(os.path.expanduser("~"), ".local", "state"), "belljar")
    if len(_KNOWN) < _MOST_KNOWN and found == (chosen or found):  # a relative one depends on where we are
        _KNOWN[words] = found
    return found
