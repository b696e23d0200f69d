"""What runs printed, for those of which it is stored: a file for each stream, in a directory for each day.

The day is that of the run's beginning, which its name tells. What a file has to be is in the audit log, as a digest.
"""

from __future__ import annotations

import os
import shutil
import time

from belljar.policy.digest import sha256
from belljar.state import private_directory, state_directory

_HEX = frozenset("0123456789abcdef")
_TIME, _RANDOM = 12, 8


def outputs() -> str:
    """Where they are."""
    return os.path.join(state_directory(), "outputs")


def is_run(name: str) -> bool:
    """Whether it is a run's name, as belljar makes them: `01a1e4e2ffbe-8c01c265`."""
    moment, dash, rest = name.partition("-")
    return bool(dash) and len(moment) == _TIME and len(rest) == _RANDOM and set(moment + rest) <= _HEX


def began(run_id: str) -> float:
    """When a run began, in seconds since the epoch: its name tells. Raises ValueError."""
    if not is_run(run_id):
        raise ValueError(run_id)
    return int(run_id[:_TIME], 16) / 1000


def path_of(run_id: str, part: int, stream: str) -> str:
    """Where one is, or would be."""
    day = time.strftime("%Y-%m-%d", time.gmtime(began(run_id)))
    return os.path.join(outputs(), day, f"{run_id}.{part}.{stream}")


def keep(run_id: str, part: int, stream: str, data: bytes) -> str:
    """Store one. Its digest. Raises OSError."""
    path = path_of(run_id, part, stream)
    private_directory(os.path.dirname(path))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
    except OSError:
        os.unlink(path)  # half of it, on a disk that is full
        raise
    return sha256(data)


def load(run_id: str, part: int, stream: str, digest: str) -> bytes | None:
    """One that was stored; None if it is gone, or is not what it was."""
    try:
        with open(os.open(path_of(run_id, part, stream), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW), "rb") as file:
            data = file.read()
    except OSError:
        return None
    return data if sha256(data) == digest else None


# --- what is old ---


def days() -> list[str]:
    """The days of which there are some, the first first."""
    try:
        return sorted(name for name in os.listdir(outputs()) if name[:4].isdigit())
    except FileNotFoundError:
        return []


def size_of(day: str) -> int:
    """How many bytes those of a day have."""
    try:
        with os.scandir(os.path.join(outputs(), day)) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except FileNotFoundError:
        return 0


def remove(day: str) -> tuple[str, int]:
    """Remove those of a day: its directory, and how large it was."""
    path, size = os.path.join(outputs(), day), size_of(day)
    shutil.rmtree(path, ignore_errors=True)
    return path, size
