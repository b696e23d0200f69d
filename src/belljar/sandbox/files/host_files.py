"""Inode, ctime and size of each file in a directory of the host, taken before a jar sees it.

A later look tells which files were changed in between, without comparing any clocks.
"""

from __future__ import annotations

import os
from _thread import allocate_lock, start_new_thread
from typing import Any, Protocol

_MOST = 200_000
"""Files that are remembered. For others the caller compares the ctime with the time of the jar."""


class Known(Protocol):
    """Files of the host at an earlier time."""

    def changed(self, path: str, status: os.stat_result) -> bool | None:
        """Return True if the file at `path` has changed; `status` is its status now. None if it was not remembered."""

    def before(self, path: str) -> tuple[int, ...] | None:
        """Inode, ctime and size that a file had; None if there was none."""

    def content(self, path: str) -> tuple[bytes, int] | None:
        """Content and mode that a file had; None if they were not remembered."""


class HostFiles:
    """The files of a directory as they are now. A thread looks while the caller goes on."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._found: dict[str, tuple[int, int, int]] = {}
        self._whole = False
        self._contents: dict[str, tuple[bytes, int]] = {}
        self._reading: Any = None
        self._looking = allocate_lock()
        self._looking.acquire()
        start_new_thread(self._look, ())

    def wait(self) -> None:
        """Wait until the thread is done."""
        with self._looking:
            pass

    def read_contents(self) -> None:
        """Read what git could not tell later of files that are being worked on. A thread does; see `content`."""
        if self._reading is None:
            self._reading = allocate_lock()
            self._reading.acquire()
            start_new_thread(self._read_contents, ())

    def _read_contents(self) -> None:
        from belljar.sandbox.files.start_contents import read_contents

        try:
            self.wait()
            self._contents = read_contents(self._directory, self._found)
        finally:
            self._reading.release()

    def content(self, path: str) -> tuple[bytes, int] | None:
        """Content and mode that a file had; None if they were not remembered."""
        if self._reading is not None:
            with self._reading:
                pass
        return self._contents.get(path)

    def changed(self, path: str, status: os.stat_result) -> bool | None:
        """Return True if the file at `path` has changed; `status` is its status now. None if it was not remembered."""
        self.wait()
        if path == ".git" or path.startswith(".git/"):
            return None
        before = self._found.get(path)
        if before is None:
            return True if self._whole else None
        return before != _identity(status)

    def before(self, path: str) -> tuple[int, int, int] | None:
        """Inode, ctime and size that a file had; None if there was none."""
        self.wait()
        return self._found.get(path)

    def _look(self) -> None:
        try:
            waiting = [""]
            while waiting and len(self._found) < _MOST:
                prefix = waiting.pop()
                self._look_into(prefix, waiting)
            self._whole = not waiting
        finally:
            self._looking.release()

    def _look_into(self, prefix: str, waiting: list[str]) -> None:
        try:
            entries = os.scandir(f"{self._directory}/{prefix}")
        except OSError:
            return  # closed to us, so that the jar has nothing of it either
        with entries:
            for entry in entries:
                path = prefix + entry.name
                try:
                    if not entry.is_dir(follow_symlinks=False):
                        self._found[path] = _identity(entry.stat(follow_symlinks=False))
                    elif path != ".git":  # its files never come back by name
                        waiting.append(f"{path}/")
                except OSError:
                    continue  # removed since


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_ctime_ns, status.st_size


__all__ = ["HostFiles", "Known"]
