"""Killing a program that uses belljar, and looking for what it left: processes, groups, mounts, files."""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import belljar
from belljar import Sandbox
from belljar.backends.bubblewrap.host.client import LAUNCHER

PACKAGE = str(Path(belljar.__file__).parent.parent)
VICTIM = str(Path(__file__).with_name("attack_victim.py"))
PATIENCE_SECONDS = 8.0
_PR_SET_CHILD_SUBREAPER = 36
T = TypeVar("T")


def children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]


def state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


class Scene:
    """Where a program is killed. This process is the reaper of what loses its parent: nothing of it can hide."""

    def __init__(self, backend: str, arena: Path, project: Path) -> None:
        self.backend, self.arena, self.project = backend, arena, project
        (arena / "tmp").mkdir()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._before = set(descendants(os.getpid()))
        self._groups, self._mounts = _groups(), _mounts()

    def close(self) -> None:
        """End what is left, and be nobody's reaper any more."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, how: str) -> tuple[subprocess.Popen[str], str]:
        """Start the program; it, and the marker that its code carries."""
        marker = f"victim-{secrets.token_hex(8)}"
        env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.arena),
            "TMPDIR": str(self.arena / "tmp"),
            "BELLJAR_STATE_DIR": str(self.arena / "state"),
        }
        words = [sys.executable, "-I", VICTIM, how, PACKAGE, self.backend, marker, str(self.project)]
        return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True), marker

    def alive(self) -> list[int]:
        """Our descendants that are new; the launcher of the tests themselves does not count."""
        for pid in set(children(os.getpid())) - self._before - {LAUNCHER._pid}:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        spared = {*self._before, LAUNCHER._pid}
        return [pid for pid in descendants(os.getpid()) if pid not in spared and state(pid) not in ("Z", "X", "")]

    def nobody_is_left(self) -> None:
        """No process, after a little patience."""
        left = wait_until_empty(self.alive)
        assert not left, [(pid, name(pid), command(pid)[:200]) for pid in left]

    def nothing_is_left(self) -> None:
        """No process, control group, mount or temporary directory, and the workspace is untouched.

        An empty group that the program made to see whether it can, and was killed before it removed it, is left to the
        next launcher: `next_launcher_sweeps`.
        """
        self.nobody_is_left()
        left = wait_until_empty(lambda: [path for path in _groups() - self._groups if not path.endswith("-probe")])
        assert not left, left
        assert _mounts() == self._mounts
        assert os.listdir(self.arena / "tmp") == []
        assert list(self.project.iterdir()) == []

    def next_launcher_sweeps(self) -> None:
        """Start a new launcher; then no control group at all is left."""
        LAUNCHER.stop()
        with Sandbox(backend=self.backend) as jar:
            assert jar.run("pass").ok
        assert not _groups() - self._groups


def wait_until_on(victim: subprocess.Popen[str]) -> None:
    """Wait until the victim says that its code runs."""
    assert victim.stdout is not None
    assert select.select([victim.stdout], [], [], 30)[0]
    assert "on" in victim.stdout.readline()


def wait_until_empty(look: Callable[[], list[T]]) -> list[T]:
    """Look until there is nothing, or patience ends; what was there at last."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _groups() -> set[str]:
    """Control groups whose launcher is dead, beneath the ones that we are in: those of the living may be anyone's."""
    from belljar.limits.detect import detect
    from belljar.limits.naming import is_stale

    found = set()
    for directory in set(detect().directories.values()):
        with suppress(OSError):
            found |= {f"{directory}/{each}" for each in os.listdir(directory) if is_stale(each)}
    return found


def _mounts() -> list[str]:
    """Mounts that belljar made, known by their source: others on this machine may have its name in a path."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.partition(" - ")[2].split(" ")[1:2] == ["belljar"]]
