"""Watches host directories that a jar shows, and has what appears in them denied as the policy says.

Overlayfs looks a name up when it is first asked for, in every layer. So a whiteout that is laid down before that
counts, also when the jar is already open. Between the host's making a directory and our covering it lie moments.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.backends.bubblewrap.stage.whiteout import Whiteouts

_CREATE, _MOVED_TO, _OVERFLOW, _IGNORED = 0x100, 0x80, 0x4000, 0x8000
_ONLY_DIRECTORIES, _NO_FOLLOW, _EXCLUDE_UNLINKED = 0x01000000, 0x02000000, 0x04000000
_WATCHED = _CREATE | _MOVED_TO | _ONLY_DIRECTORIES | _NO_FOLLOW | _EXCLUDE_UNLINKED
_IS_DIRECTORY = 0x40000000
_HEAD = struct.Struct("iIII")
_BUFFER = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class DenyWatch:
    """An inotify instance over the directories of some layers. Runs in the stage's event loop."""

    def __init__(self, layers: list[tuple[Whiteouts, str]]) -> None:
        self._fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._watched: dict[int, tuple[Whiteouts, str, str]] = {}
        self.complete = self._fd >= 0
        """Whether every directory is watched; false when the kernel's limits are reached."""
        self._layers = layers
        for whiteouts, root in layers:
            self._watch(whiteouts, root, list(whiteouts.directories))

    def fileno(self) -> int:
        """For the event loop."""
        return self._fd

    def _watch(self, whiteouts: Whiteouts, root: str, directories: list[str]) -> None:
        for directory in directories:
            path = os.fsencode(os.path.join(root, directory))
            watch = _libc.inotify_add_watch(self._fd, path, ctypes.c_uint32(_WATCHED)) if self._fd >= 0 else -1
            if watch >= 0:
                self._watched[watch] = (whiteouts, root, directory)
                if not whiteouts.is_unchanged(directory):
                    self._look_again(whiteouts, root, directory)
            elif os.path.isdir(path):
                self.complete = False

    def _look_again(self, whiteouts: Whiteouts, root: str, directory: str) -> None:
        """What appeared between the walk and the watch has no event."""
        with contextlib.suppress(OSError):
            for name in os.listdir(os.path.join(root, directory)):
                self._watch(whiteouts, root, whiteouts.appeared(f"{directory}/{name}" if directory else name))

    def covers_everything(self) -> bool:
        """Whether nothing that the host made can have been missed."""
        return self.complete and all(whiteouts.complete for whiteouts, _root in self._layers)

    def look(self) -> None:
        """Deny what has appeared since the last look. Never waits."""
        if self._fd < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._fd, _BUFFER):
                self._handle(events)

    def _handle(self, events: bytes) -> None:
        position = 0
        while position < len(events):
            watch, mask, _cookie, length = _HEAD.unpack_from(events, position)
            position += _HEAD.size
            name = os.fsdecode(events[position : position + length].rstrip(b"\0"))
            position += length
            if mask & _OVERFLOW:
                self.complete = False
            elif mask & _IGNORED:
                self._watched.pop(watch, None)
            elif watch in self._watched:
                whiteouts, root, directory = self._watched[watch]
                path = f"{directory}/{name}" if directory else name
                if mask & _IS_DIRECTORY:
                    whiteouts.forget(path)  # one of this name may have been there, and been covered
                with contextlib.suppress(FileNotFoundError):  # gone again
                    self._watch(whiteouts, root, whiteouts.appeared(path))
