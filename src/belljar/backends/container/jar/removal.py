"""Removing containers and volumes in the background: nobody has to wait until an engine has taken one down.

What an engine that is away has not removed, it is asked for again until it is back. What is not done when this process
ends, the cleanup process does.
"""

from __future__ import annotations

import queue
import threading
from typing import NamedTuple

from belljar.backends.container.engine.cleanup_process import CLEANUP_PROCESS
from belljar.backends.container.engine.engine import Engine
from belljar.backends.container.jar.attached import Attached

_SECONDS = 30.0
"""For one command of the engine."""
_FIRST_PAUSE, _LAST_PAUSE = 0.25, 30.0


class _Job(NamedTuple):
    engine: Engine
    containers: list[Attached]
    volumes: list[str]


class Removal:
    """One thread, started when first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job] | None = None

    def remove(self, engine: Engine, containers: list[Attached], volume: str = "") -> None:
        """Have these removed, the volume after them."""
        with self._lock:
            if self._jobs is None:
                self._jobs = queue.SimpleQueue()
                threading.Thread(target=_sweep, args=(self._jobs,), name="belljar broom", daemon=True).start()
            self._jobs.put(_Job(engine, containers, [volume] if volume else []))

    def abandon_after_fork(self) -> None:
        """In a forked child of the user's program there is no such thread."""
        self._lock, self._jobs = threading.Lock(), None


def _sweep(jobs: queue.SimpleQueue[_Job]) -> None:
    undone: list[_Job] = []
    pause = _FIRST_PAUSE
    while True:
        try:
            undone.append(jobs.get(timeout=pause if undone else None))
            while True:
                undone.append(jobs.get_nowait())  # what has come meanwhile goes in one command of the engine
        except queue.Empty:
            pause = min(2 * pause, _LAST_PAUSE) if undone else pause
        undone = [job for job in _together(undone) if not _is_done(job)]
        pause = pause if undone else _FIRST_PAUSE


def _together(jobs: list[_Job]) -> list[_Job]:
    """One job for each engine."""
    return [
        _Job(
            engine,
            [container for job in jobs if job.engine == engine for container in job.containers],
            [volume for job in jobs if job.engine == engine for volume in job.volumes],
        )
        for engine in dict.fromkeys(job.engine for job in jobs)
    ]


def _is_done(job: _Job) -> bool:
    try:
        return _remove(job)
    except Exception:  # noqa: BLE001 - the engine is away; or whatever it is, the next try may do, and others wait
        return False


def _remove(job: _Job) -> bool:
    """Whether everything is gone. May be called again."""
    for container in job.containers:
        container.let_go()
    settled = [container.settle() for container in job.containers]
    if not _remove_containers(job.engine, [container.name for container in job.containers]):
        return False
    if not all(settled):
        return False  # some may come yet
    for container in job.containers:
        container.bury()
        CLEANUP_PROCESS.done(container.name)
    if job.volumes and not _succeeds(job.engine, "volume", "rm", "--force", *job.volumes):
        return False
    for volume in job.volumes:
        CLEANUP_PROCESS.done(volume)
    return True


def _remove_containers(engine: Engine, names: list[str]) -> bool:
    """All in one command; then one by one those it has not named as removed.

    Podman 4.3 that is told of several, of which one is gone already, removes none of them and reports success.
    """
    if not names:
        return True
    _code, stdout, _stderr = engine.attempt("rm", "--force", "--volumes", *names, timeout=_SECONDS)
    removed = set(stdout.split())
    left = [name for name in names if name not in removed]
    failed = [name for name in left if not _succeeds(engine, "rm", "--force", "--volumes", name)]
    return not failed


def _succeeds(engine: Engine, *args: str) -> bool:
    """Whether the command does; of what is not there, engines say nothing when they are told to `--force`."""
    return engine.attempt(*args, timeout=_SECONDS)[0] == 0


REMOVAL = Removal()
