"""Where belljar keeps its files: one directory of the user's own, closed to everyone else."""

from __future__ import annotations

import errno
import os

_MOST_KNOWN = 100
_VARIABLES = tuple(map(os.environ.encodekey, ("BELLJAR_STATE_DIR", "XDG_STATE_HOME", "HOME")))
_KNOWN: dict[tuple[bytes | None, ...], str] = {}
"""What the environment's words came to: it is asked several times in every run."""
_NAMES = (
    "allowed", "audit", "bytecode", "changes", "commits", "control", "digests", "egress", "homes", "hosts", "image",
    "inputs", "interpreters", "journals", "killswitch", "listings", "live", "mirrors", "opened", "outputs",
    "quarantine", "runs.sqlite", "seccomp-", "sessions", "snapshots",
)  # fmt: skip
"""How the names begin that belljar gives to what it keeps there."""
_OTHERS, _STICKY = 0o077, 0o1000


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


def private_directory(path: str) -> str:
    """Make a directory that is closed to everyone else, and those above it that are missing as well.

    The state directory, and what is in it, is closed if it was there already and open.
    """
    if os.path.isdir(path):
        _close(path)
    else:
        _make(path)
    return path


def _make(path: str) -> None:
    parent = os.path.dirname(path)
    if parent != path:
        if not os.path.isdir(parent):
            _make(parent)
        elif parent == state_directory():
            _close(parent)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _close(path: str) -> None:
    """If it is ours: the state directory, as long as nobody else keeps anything there, and what is in it."""
    state = state_directory()
    if path.startswith(f"{state}/"):
        _close(state)
    elif path != state:
        return
    status = os.stat(path) if path == state else os.lstat(path)  # a link in there may lead anywhere
    if status.st_mode & 0o170000 != 0o040000 or not status.st_mode & _OTHERS or status.st_mode & _STICKY:
        return
    if status.st_uid == os.geteuid() and (path != state or all(name.startswith(_NAMES) for name in os.listdir(path))):
        try:
            os.chmod(path, 0o700)
        except OSError:
            pass  # on a disk that can't be written, nothing is


def writing_hint(error: OSError) -> str:
    """Return what to do about a state directory that can't be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "nothing runs unrecorded: make room on that disk, or set BELLJAR_STATE_DIR to another place"
    return "nothing runs unrecorded: choose a directory of yours: export BELLJAR_STATE_DIR=$HOME/.belljar"
