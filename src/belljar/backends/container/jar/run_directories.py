"""The directories of runs in a Sandbox's volume: each run has some of its own, and the next one has them after it."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping

from belljar.backends.container.jar.process import ContainerProcess, not_started
from belljar.backends.container.jar.volume import Volume

_SECONDS = 5.0
_PAUSE_SECONDS = 0.002


class RunDirectories:
    """Numbers of runs' directories. Two are there from the start, before any code can have filled the volume."""

    def __init__(self, volume: Volume, own: Mapping[str, int]) -> None:
        self._volume = volume
        self._own = own
        self._lock = threading.Lock()
        self._new, self._free = itertools.count(3), ["2", "1"]
        self._returning: dict[str, ContainerProcess] = {}
        """Those that a run has, until they are emptied."""
        self._bare: set[str] = set()
        """Those that have no reserve of room."""

    def make_first(self) -> None:
        """Make those that are there from the start."""
        for slot in reversed(self._free):
            self._make(slot)

    def take(self) -> str:
        """Directories for a run: those of one that has ended, which are emptied at this moment, or new ones.

        In a volume that the code has filled no new ones can be made, so the old are waited for; and best are those that
        still have their reserve of room.
        """
        deadline = time.monotonic() + _SECONDS
        while True:
            with self._lock:
                returning = any(process.has_ended for process in self._returning.values())
                if self._free and (self._free[-1] not in self._bare or not returning):
                    return self._free.pop()
                slot = "" if returning and time.monotonic() < deadline else str(next(self._new))
            if slot:
                self._make_or_tell(slot)
                return slot
            time.sleep(_PAUSE_SECONDS)

    def give_back(self, slot: str) -> None:
        """No code ran there: they are as they were."""
        with self._lock:
            self._free.append(slot)

    def lend(self, slot: str, process: ContainerProcess) -> None:
        """A run has them now."""
        with self._lock:
            self._returning[slot] = process

    def lost(self, slot: str) -> None:
        """The run never began, and nobody knows what became of its container."""
        with self._lock:
            self._returning.pop(slot, None)

    def ended(self, slot: str, *, in_order: bool) -> None:
        """The run has ended; if not in order, something of it may be alive, and its directories serve nobody again."""
        try:
            if in_order:
                self._reset(slot)
            else:
                self._volume.ask("wipe", names=[*self._directories(slot)])
        finally:
            self.lost(slot)

    def _reset(self, slot: str) -> None:
        answer = self._volume.ask("reset", directories=self._directories(slot), reserves=[f"code-{slot}"])
        with self._lock:
            if answer["reserved"]:
                self._bare.discard(slot)
                self._free.append(slot)
            else:
                self._bare.add(slot)
                self._free.insert(0, slot)

    def _make_or_tell(self, slot: str) -> None:
        try:
            self._make(slot)
        except OSError as error:
            self._volume.ask("wipe", names=[*self._directories(slot)])
            raise not_started(error.errno, error.strerror) from error

    def _make(self, slot: str) -> None:
        self._volume.ask("make", directories=self._directories(slot), reserves=[f"code-{slot}"])

    def _directories(self, slot: str) -> dict[str, int]:
        """Their names and modes."""
        return {name.format(slot=slot): mode for name, mode in self._own.items()}
