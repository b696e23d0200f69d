"""How many sessions are open, in every process of this user; and the files of those that were ended for being idle.

A session holds a lock on a file of its own in the state directory: the kernel lets go of it, however the process ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator

from belljar.errors import SandboxUnavailableError
from belljar.state import state_directory

_LOCK, _FILES, _FORK = ".lock", ".tar", ".tar.fork"
_FORKING_SECONDS = 3600.0
"""After so long nobody makes a fork of them any more: whoever did was killed."""


def directory() -> str:
    """Where they are."""
    return os.path.join(state_directory(), "sessions")


def kept_path(session_id: str) -> str:
    """Where the files of a session lie that was ended."""
    return os.path.join(directory(), session_id + _FILES)


class SessionPlace:
    """One of the sessions that there may be; held until `leave`."""

    def __init__(self, session_id: str, most: int, make_room: Callable[[], bool]) -> None:
        """Take a place; `make_room` ends a session of this process that is idle, and says whether there was one.

        Raises:
            SandboxUnavailableError: as many as may be are open, and none of them is idle here.
        """
        os.makedirs(directory(), mode=0o700, exist_ok=True)
        self._path = os.path.join(directory(), session_id + _LOCK)
        while True:
            with _alone():
                if _count() < most:
                    self._descriptor = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX)
                    return
            if not make_room():
                raise SandboxUnavailableError(
                    f"{most} sessions are open, and none of them is idle in this process",
                    hint="close one, or raise session.max_sessions in the policy",
                )

    def leave(self) -> None:
        """Let another have it."""
        if self._descriptor >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._descriptor)
            self._descriptor = -1


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    descriptor = os.open(os.path.join(directory(), "counting"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _count() -> int:
    """The sessions that are alive; the locks of those that are not are removed."""
    alive = 0
    for name in os.listdir(directory()):
        if not name.endswith(_LOCK):
            continue
        path = os.path.join(directory(), name)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
        except BlockingIOError:
            alive += 1
        finally:
            os.close(descriptor)
    return alive


def sweep() -> None:
    """Remove the files that were kept long enough: a file's time of change is when."""
    with contextlib.suppress(FileNotFoundError):
        for name in os.listdir(directory()):
            path = os.path.join(directory(), name)
            with contextlib.suppress(FileNotFoundError):
                until = os.stat(path).st_mtime + (_FORKING_SECONDS if name.endswith(_FORK) else 0)
                if name.endswith((_FILES, _FORK)) and until < time.time():
                    os.unlink(path)


def keep_until(path: str, moment: float) -> None:
    """Say how long a file of kept files stays."""
    os.utime(path, (moment, moment))
