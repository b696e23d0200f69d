"""Look for what tests left behind: processes, mounts, control groups, containers and volumes.

Each look counts only what its own tests can have made: descendants of this process, orphans of this interpreter's
directory, groups beneath this process's own, containers whose owner is a descendant of this process or dead.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

PATIENCE_SECONDS = 5.0
"""How long what a test ended may take to be gone: belljar verifies the end of a jar, not that of its launcher."""
ENGINE_PATIENCE_SECONDS = 30.0
"""The same for containers and volumes: an engine takes half a second for each, on a machine at rest."""

LAUNCHER, STAGE = "belljar-launch", "belljar-stage"
_OURS = (LAUNCHER, "belljar-egress", "belljar-keeper", "docker", "podman", "conmon")
"""What lives as long as the program that uses belljar, or ends in its own time: engines are asked, not waited for."""


def wait_until_empty(look: Callable[[], str], seconds: float = PATIENCE_SECONDS) -> str:
    """Return what `look` still finds after `seconds`; empty as soon as it finds nothing."""
    deadline = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@dataclass(frozen=True)
class Leftovers:
    """One look."""

    processes: frozenset[str] = frozenset()
    mounts: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    @classmethod
    def here(
        cls,
        *,
        groups: bool = False,
        lost: bool = False,
        launcher: bool = False,
        shared: frozenset[int] = frozenset(),
    ) -> Leftovers:
        """What is here now; `launcher` counts belljar's launcher too, `groups` control groups, `lost` orphans.

        What is beneath the stages `shared` is theirs: a stage keeps a jar ready for its next run.
        """
        own = [pid for pid in descendants(os.getpid(), but=shared) if launcher or name(pid) not in _OURS]
        alone = orphans() if lost else []
        return cls(
            frozenset(text for pid in {*own, *alone} if (text := _describe(pid))),
            frozenset(mounts()),
            frozenset(stale_groups() if groups else ()),
        )

    def beyond(self, before: Leftovers) -> str:
        """What is here and was not there `before`, in words; empty if nothing."""
        kinds = (
            ("processes", self.processes - before.processes),
            ("mounts", self.mounts - before.mounts),
            ("control groups", self.groups - before.groups),
        )
        return "; ".join(f"{kind}: {', '.join(sorted(found))}" for kind, found in kinds if found)


def descendants(pid: int, but: frozenset[int] = frozenset()) -> list[int]:
    """Every living process below `pid`, `but` not these and those below them; unburied dead do not count."""
    found = []
    for child in _children(pid):
        if child in but:
            continue
        if _state(child) not in ("Z", "X", ""):
            found.append(child)
        found += descendants(child, but)
    return found


def orphans() -> list[int]:
    """Processes of our belljar whose parent is gone: a launcher under pid 1, a stage without a launcher."""
    found = []
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        called, parent = name(pid), _parent(pid)
        lost = (called == LAUNCHER and parent == 1) or (called == STAGE and name(parent) not in (LAUNCHER, STAGE))
        if lost and os.path.dirname(_program(pid)) == os.path.dirname(sys.executable):
            found.append(pid)
    return found


def mounts() -> list[str]:
    """Mounts of belljar's in the namespace of the tests, where none belongs."""
    with open("/proc/self/mountinfo") as file:
        lines = [line.rstrip("\n") for line in file]
    return [line for line in lines if line.partition(" - ")[2].split(" ")[1:2] == ["belljar"]]


def stale_groups() -> list[str]:
    """Control groups of launchers that are dead."""
    from belljar.limits.detect import detect
    from belljar.limits.naming import is_stale

    found = []
    for directory in set(detect().directories.values()):
        with suppress(OSError):
            found += [f"{directory}/{group}" for group in os.listdir(directory) if is_stale(group)]
    return found


# --- containers ------------------------------------------------------------------------------------------------------


class Engines:
    """The container engines that tests asked for, and what each had of belljar's when the first test asked."""

    def __init__(self, *, dead: bool) -> None:
        """`dead`: what a dead process made counts too. A worker's neighbours kill processes: only all know whose."""
        self.before: dict[str, frozenset[str]] = {}
        self._dead = dead

    def look_at(self, engine: str) -> None:
        """Remember what the engine has now, unless that was done before."""
        if engine not in self.before:
            self.before[engine] = self._labelled(engine)

    def left(self) -> str:
        """Containers and volumes that have come since, in words."""
        found = [name for engine, before in self.before.items() for name in sorted(self._labelled(engine) - before)]
        return f"containers and volumes: {', '.join(found)}" if found else ""

    def _labelled(self, engine: str) -> frozenset[str]:
        """The names of the containers and volumes with belljar's label, as far as they are ours.

        None of an engine that does not answer.
        """
        found: set[str] = set()
        program = shutil.which(engine)
        for look in (
            ["ps", "--all", "--format", "{{.Names}} {{.Labels}}"],
            ["volume", "ls", "--format", "{{.Name}} {{.Labels}}"],
        ):
            if program is not None:
                command = [program, *look, "--filter", "label=belljar=1"]
                told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
                lines = [line for line in told.stdout.splitlines() if self._is_ours(line)]
                found.update(f"{engine} {look[0]} {line.partition(' ')[0]}" for line in lines)
        return frozenset(found)

    def _is_ours(self, line: str) -> bool:
        """Return True if the process that made it is one of ours, or dead where that counts."""
        from belljar.limits.naming import is_dead

        owner = re.search(r"belljar\.owner[=:]\d+-(\d+-(\d+)-\d+)", line)
        if owner is None or is_dead(owner[1]):
            return self._dead
        return int(owner[2]) in (os.getpid(), *descendants(os.getpid()))


# --- processes -------------------------------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    return found


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, parent, …, the start time at 19."""
    with suppress(OSError), open(f"/proc/{pid}/stat", errors="replace") as file:
        return file.read().rpartition(")")[2].split()
    return []


def _state(pid: int) -> str:
    return next(iter(_stat(pid)), "")


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def name(pid: int) -> str:
    """Return the process's name; empty if it is gone."""
    with suppress(OSError), open(f"/proc/{pid}/comm", errors="replace") as file:
        return file.read().rstrip("\n")
    return ""


def _program(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline", errors="replace") as file:
        return file.read().partition("\0")[0]
    return ""


def _describe(pid: int) -> str:
    """A text that names a process once and for all: a recycled pid has another start time."""
    fields = _stat(pid)
    return f"{name(pid)} (pid {pid}, started at tick {fields[19]})" if len(fields) > 19 else ""
