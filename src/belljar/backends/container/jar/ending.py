"""The processes of a container as the host sees them, to end them from outside when the gate inside does not.

Runs in the host's own process, as root or as the owner of a rootless engine. The gate shares its processor with the
code. Code that spins in many processes keeps it waiting, and an engine's `kill` only signals the gate.
"""

from __future__ import annotations

import contextlib
import os
import select

from belljar.backends.container.jar.attached import Attached
from belljar.errors import BelljarError
from belljar.limits import stopping
from belljar.limits.killing import kill_once


class FirstProcess:
    """A container's first process, held by a pidfd: its number can't become another process's unnoticed."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self._pid = pid
        self._pidfd = pidfd

    @classmethod
    def of(cls, container: Attached) -> FirstProcess | None:
        """Find a container's first process; None if there is none, or the engine does not say.

        The engine is asked before and after the process is pinned: the number was the container's all the time. It is
        also the engine's number. Where belljar is in a container itself, that number may be another process's here.
        """
        found = None
        with contextlib.suppress(BelljarError, OSError, KeyError, ValueError):
            pid = int(container.state()["Pid"])
            if pid <= 1:
                return None
            found = cls(pid, os.pidfd_open(pid))
            elsewhere = os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino
            if elsewhere and int(container.state()["Pid"]) == pid and not found.has_ended():
                return found
        if found is not None:
            found.close()
        return None

    def kill_code(self) -> None:
        """SIGKILL everything but the gate, which then tells of the end."""
        with contextlib.suppress(OSError):
            kill_once(lambda: self._members() - {self._pid})

    def kill_all(self) -> None:
        """SIGKILL everything."""
        with contextlib.suppress(OSError):
            kill_once(self._members)

    def has_ended(self, seconds: float = 0.0) -> bool:
        """Wait for so long; whether the first process has ended, and with it all others."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def close(self) -> None:
        """Close the pidfd."""
        os.close(self._pidfd)

    def _members(self) -> set[int]:
        found = stopping.tree(self._pid)
        return set() if self.has_ended() else found
