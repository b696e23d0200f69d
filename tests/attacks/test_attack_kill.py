"""SIGKILL at any moment: of the program that uses belljar, of the launcher, of the stage, of bubblewrap.

Afterwards there is no process, no mount, no control group and no temporary directory of the run. The tests' own process
is the reaper of what loses its parent, so nothing of it can hide from them.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import belljar
from belljar import Sandbox
from belljar.backends.bubblewrap.client import LAUNCHER

PACKAGE = str(Path(belljar.__file__).parent.parent)
VICTIM = str(Path(__file__).with_name("attack_victim.py"))
PATIENCE_SECONDS = 8.0
_PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def reaper() -> Iterator[Callable[[], list[int]]]:
    """Makes this process the reaper of all its descendants. What it gives lists those that are alive and new."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    before = set(_descendants(os.getpid()))

    def alive() -> list[int]:
        for pid in set(_children(os.getpid())) - before - {LAUNCHER._pid}:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        spared = {*before, LAUNCHER._pid}  # the launcher of the tests themselves
        return [pid for pid in _descendants(os.getpid()) if pid not in spared and _state(pid) not in ("Z", "X", "")]

    yield alive
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
    for pid in alive():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _descendants(pid: int) -> list[int]:
    return [found for child in _children(pid) for found in (child, *_descendants(child))]


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _groups() -> set[str]:
    """Control groups whose launcher is dead, beneath the ones that we are in: those of the living may be anyone's."""
    from belljar.limits.detect import detect
    from belljar.limits.naming import is_stale

    found = set()
    for directory in set(detect().directories.values()):
        with suppress(OSError):
            found |= {f"{directory}/{name}" for name in os.listdir(directory) if is_stale(name)}
    return found


def _mounts() -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if "belljar" in line]


def _start(how: str, arena: Path, project: Path) -> tuple[subprocess.Popen[str], str]:
    marker = f"victim-{secrets.token_hex(8)}"
    (arena / "tmp").mkdir(exist_ok=True)
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(arena),
        "TMPDIR": str(arena / "tmp"),
        "BELLJAR_STATE_DIR": str(arena / "state"),
    }
    command = [sys.executable, "-I", VICTIM, how, PACKAGE, marker, str(project)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True), marker


def _wait_until_on(victim: subprocess.Popen[str]) -> None:
    assert victim.stdout is not None
    assert select.select([victim.stdout], [], [], 30)[0]
    assert "on" in victim.stdout.readline()


def _wait(look: Callable[[], object]) -> object:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def _nothing_is_left(
    alive: Callable[[], list[int]], groups: set[str], mounts: list[str], arena: Path, project: Path
) -> None:
    left = _wait(alive)
    assert not left, [(pid, _name(pid), Path(f"/proc/{pid}/cmdline").read_bytes()[:200]) for pid in left]  # type: ignore[attr-defined]
    assert not _wait(lambda: _groups() - groups)
    assert _mounts() == mounts
    assert os.listdir(arena / "tmp") == []
    assert list(project.iterdir()) == []


MOMENTS_MS = (0, 60, 100, 130, 160, 190, 220, 250, 290, 340, 400, 500, 650, 900)


def test_kill_at_any_moment_leaves_nothing(reaper: Callable[[], list[int]], arena: Path, project: Path) -> None:
    """The program is killed while it imports, stages, waits at the gate, runs, cleans up: nothing is left."""
    groups, mounts = _groups(), _mounts()
    for moment in MOMENTS_MS:
        victim, _marker = _start("main", arena, project)
        with victim:
            time.sleep(moment / 1000)  # the moment itself is what is tried
            victim.kill()
        _nothing_is_left(reaper, groups, mounts, arena, project)


def test_kill_around_every_phase_leaves_nothing(reaper: Callable[[], list[int]], arena: Path, project: Path) -> None:
    """The same, counted from the moment that code ran: its end, the second run, the clean-up, the next Sandbox."""
    groups, mounts = _groups(), _mounts()
    for moment in (0, 20, 50, 70, 100, 130, 170, 220):
        victim, _marker = _start("main", arena, project)
        with victim:
            _wait_until_on(victim)
            time.sleep(moment / 1000)
            victim.kill()
        _nothing_is_left(reaper, groups, mounts, arena, project)


def _who(victim: int) -> dict[str, int]:
    """The processes between the program and its code, by what they are."""
    found = {}
    for pid in _descendants(victim):
        name = _name(pid)
        if name in ("belljar-launch", "belljar-stage"):
            found.setdefault(name, pid)  # a fork that is about to become another still has its name
        elif name == "bwrap":
            found.setdefault("bwrap", pid)
            found["init"] = pid
    return {"victim": victim, **found}


@pytest.mark.parametrize("who", ["victim", "belljar-launch", "belljar-stage", "bwrap", "init"])
def test_killed_part_takes_the_rest_with_it(
    reaper: Callable[[], list[int]], arena: Path, project: Path, who: str
) -> None:
    """Whichever process of belljar's own is killed while code runs: the program is told, and nothing is left."""
    groups, mounts = _groups(), _mounts()
    victim, marker = _start("hold", arena, project)
    with victim:
        _wait_until_on(victim)
        parts = _who(victim.pid)
        assert who in parts, parts
        assert [pid for pid in _descendants(victim.pid) if marker in _command(pid)]  # the control: the code is there
        os.kill(parts[who], signal.SIGKILL)
        assert victim.wait(15) is not None
    left = _wait(reaper)
    assert not left, [(pid, _name(pid), _command(pid)) for pid in left]  # type: ignore[attr-defined]
    assert not [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if marker in _command(pid) and pid != os.getpid()
    ]
    assert not _wait(lambda: _groups() - groups)
    assert _mounts() == mounts
    assert os.listdir(arena / "tmp") == []


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return ""


@pytest.mark.parametrize("who", ["belljar-stage", "belljar-launch"])
def test_program_goes_on_after_a_part_was_killed(reaper: Callable[[], list[int]], who: str) -> None:
    """A stage or launcher that was killed from outside is an error with a name, and the next Sandbox works."""
    with Sandbox(backend="bubblewrap") as jar:
        assert jar.run("pass").ok
        os.kill(_who(os.getpid())[who], signal.SIGKILL)
        with pytest.raises(belljar.SandboxUnavailableError):
            jar.run("pass")
    _works()


def _works() -> None:
    with Sandbox(backend="bubblewrap") as jar:
        assert jar.run("print('alive')").stdout == "alive\n"


def test_interrupt_ends_the_tree(reaper: Callable[[], list[int]], arena: Path, project: Path) -> None:
    """Ctrl-C in the program ends the run and all that is in it."""
    groups, mounts = _groups(), _mounts()
    victim, _marker = _start("hold", arena, project)
    with victim:
        _wait_until_on(victim)
        victim.send_signal(signal.SIGINT)
        assert victim.wait(15) is not None
    _nothing_is_left(reaper, groups, mounts, arena, project)
