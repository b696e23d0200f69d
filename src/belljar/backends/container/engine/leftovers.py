"""Removing containers, volumes and mounts of a belljar that is gone, by name or by the label that says whose they are.

Runs in the cleanup process, a bare interpreter, and in belljar itself, with the privilege of whoever started belljar.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from belljar.limits.naming import is_dead, process_name

LABEL = "belljar=1"
OWNER = "belljar.owner"
_JAR = re.compile(r"(?:^|[\s,\[])belljar\.jar[=:]([0-9a-f]+)(?=[\s,\]]|$)")
_OWNER = re.compile(rf"(?:^|[\s,\[]){re.escape(OWNER)}[=:](\d+)-(\d+-\d+-\d+)(?=[\s,\]]|$)")
_SECONDS, _REMOVING_SECONDS = 15.0, 60.0
"""For one command of the engine, and for one that removes: podman that is killed in the middle leaves half of it."""
_AT_ONCE = 4
_FIRST_PAUSE, _LAST_PAUSE = 0.05, 2.0


class Caller(NamedTuple):
    """An engine as a plain command and its environment."""

    command: tuple[str, ...]
    environment: Mapping[str, str]

    def ask(self, *args: str, seconds: float = _SECONDS) -> str | None:
        """What a command prints; None if it fails or hangs."""
        process = self.start(*args)
        return None if process is None else _finish(process, seconds)

    def start(self, *args: str) -> subprocess.Popen[str] | None:
        """A command, started."""
        try:
            return subprocess.Popen(
                [*self.command, *args],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=dict(self.environment),
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except OSError:
            return None


def owner() -> str:
    """The value of the label `belljar.owner` for what this process makes: the user, and which process it is."""
    return f"{os.getuid()}-{process_name(os.getpid())}"


def remove(
    caller: Caller, containers: Iterable[str], volumes: Iterable[str], *, grace_seconds: float, seconds: float
) -> bool:
    """Remove these, containers first; try again until none is there. Whether that was reached within `seconds`.

    For `grace_seconds` they may still come: an engine that was asked to make one before its caller died, makes it. So
    they may while the engine's client lives, which on a busy machine takes longer.
    """
    started, pause, at_once = time.monotonic(), _FIRST_PAUSE, _AT_ONCE
    names, stores = list(containers), list(volumes)
    while True:
        _remove_containers(caller, names, at_once)
        at_once = max(1, len(names))  # podman 4.3 told of several, of which one is gone, removes none: now one by one
        if stores:
            # Without -f: podman's takes the locks of the volume's containers, too, and waits for ever for one that
            # another `rm -f` has, which waits for the volume's. A sweep and the cleanup process may remove the same.
            caller.ask("volume", "rm", *stores, seconds=_REMOVING_SECONDS)
        age = time.monotonic() - started
        if age >= grace_seconds and not (_are_coming({*names, *stores}) or _are_there(caller, names, stores)):
            return True
        if age >= seconds:
            return False
        time.sleep(pause)
        pause = min(pause * 2, _LAST_PAUSE)


def unmount(target: str) -> None:
    """Unmount a live directory of the host's (see `live`), and remove the place that it was mounted on."""
    from belljar.backends import kernel

    with contextlib.suppress(OSError):
        kernel.unmount(target)
    with contextlib.suppress(OSError):  # fails, and changes nothing, where it is still mounted
        os.rmdir(target)


def sweep(caller: Caller) -> list[str]:
    """Remove the containers and volumes of this user's dead belljars; the ids and names of what was removed.

    A container's volume goes by its name: an engine that was told to start a container after the volume was removed
    has made another, which has no label.
    """
    listed = _of_the_dead(caller, "ps", "-a", "--no-trunc")
    containers = [line.split(" ", 1)[0] for line in listed]
    volumes = [line.split(" ", 1)[0] for line in _of_the_dead(caller, "volume", "ls")]
    theirs = {f"belljar-{found.group(1)}" for line in listed if (found := _JAR.search(line))}
    volumes += sorted(theirs.difference(volumes).intersection(_names_of_volumes(caller) if theirs else ()))
    if containers or volumes:
        remove(caller, containers, volumes, grace_seconds=0, seconds=_SECONDS)
    return [*containers, *volumes]


def _of_the_dead(caller: Caller, *listing: str) -> list[str]:
    """The lines of a listing that tell of what dead belljars made; the id or name comes first."""
    shown = "{{.Name}}" if listing[0] == "volume" else "{{.ID}}"
    told = caller.ask(*listing, "--filter", f"label={LABEL}", "--format", shown + " {{.Labels}}") or ""
    return [line for line in told.splitlines() if _is_abandoned(line)]


def _names_of_volumes(caller: Caller) -> list[str]:
    return (caller.ask("volume", "ls", "--format", "{{.Name}}") or "").split()


def _is_abandoned(line: str) -> bool:
    """Whether what this line tells of was made by this user, in a process that is dead."""
    found = _OWNER.search(line)
    return found is not None and int(found.group(1)) == os.getuid() and is_dead(found.group(2))


def _remove_containers(caller: Caller, names: list[str], parts: int) -> None:
    """In so many commands, several at once: an engine takes half a second for each. With their anonymous volumes."""
    slices = [some for start in range(parts) if (some := names[start::parts])]
    for first in range(0, len(slices), _AT_ONCE):
        for process in [caller.start("rm", "-f", "-v", *some) for some in slices[first : first + _AT_ONCE]]:
            if process is not None:
                _finish(process, _REMOVING_SECONDS)


def _are_coming(names: set[str]) -> bool:
    """Whether a client lives that was told to make one of them: `run --name NAME`, or `volume create NAME`."""
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            words = os.fsdecode(file.read()).split("\0")
            if not names.isdisjoint(words) and ("--name" in words or "create" in words):
                return True
    return False


def _are_there(caller: Caller, names: list[str], stores: list[str]) -> bool:
    """Whether one of them is there, for all that is known: of an engine that does not answer, nothing is."""
    containers: str | None = ""
    volumes: str | None = ""
    if names:
        shown = ("--filter", f"label={LABEL}", "--format", "{{.ID}} {{.Names}}")
        containers = caller.ask("ps", "-a", "--no-trunc", *shown)
    if stores:
        volumes = caller.ask("volume", "ls", "--format", "{{.Name}}")
    if containers is None or volumes is None:
        return True
    there = {*containers.replace(",", " ").split(), *volumes.split()}
    return not there.isdisjoint((*names, *stores))


def _finish(process: subprocess.Popen[str], seconds: float) -> str | None:
    try:
        stdout, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None
    return stdout if process.returncode == 0 else None
