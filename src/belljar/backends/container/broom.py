"""Removing containers and volumes in the background: nobody has to wait until an engine has taken one down.

What is not done when this process ends, the keeper does.
"""

from __future__ import annotations

import queue
import threading

from belljar.backends.container.attached import Attached
from belljar.backends.container.engine import Engine
from belljar.backends.container.keeper import KEEPER
from belljar.errors import BelljarError


class Broom:
    """One thread, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[tuple[Engine, list[Attached], str]] | None = None

    def remove(self, engine: Engine, containers: list[Attached], volume: str = "") -> None:
        """Have these removed, the volume after them."""
        with self._lock:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=_sweep, args=(self._jobs,), name="belljar broom", daemon=True).start()
            self._jobs.put((engine, containers, volume))

    def abandon_after_fork(self) -> None:
        """In a forked child of the user's program there is no such thread."""
        self._lock, self._jobs = threading.Lock(), None


def _sweep(jobs: queue.SimpleQueue[tuple[Engine, list[Attached], str]]) -> None:
    while True:
        engine, containers, volume = jobs.get()
        try:
            _remove(engine, containers, volume)
        except (BelljarError, OSError):
            continue  # the engine is away: the keeper, or the next belljar's sweep, finds them


def _remove(engine: Engine, containers: list[Attached], volume: str) -> None:
    for container in containers:
        container.let_go()
    if containers:
        code, _stdout, _stderr = engine.attempt("rm", "--force", *(container.name for container in containers))
        for container in containers:
            container.bury()
            if code == 0:
                KEEPER.done(container.name)
    if volume:
        code, _stdout, _stderr = engine.attempt("volume", "rm", "--force", volume)
        if code == 0:
            KEEPER.done(volume)


BROOM = Broom()
