"""SIGKILL of a part of belljar's own: the launcher, the stage, bubblewrap, the jar's pid 1."""

from __future__ import annotations

import os
import signal

import pytest
from attack_kill import Scene, command, descendants, name, wait_until_on

import belljar
from belljar import Sandbox


def _who(victim: int) -> dict[str, int]:
    """The processes between the program and its code, by what they are."""
    found = {}
    for pid in descendants(victim):
        what = name(pid)
        if what in ("belljar-launch", "belljar-stage"):
            found.setdefault(what, pid)  # a fork that is about to become another still has its name
        elif what == "bwrap":
            found.setdefault("bwrap", pid)
            found["init"] = pid
    return {"victim": victim, **found}


@pytest.mark.parametrize("who", ["victim", "belljar-launch", "belljar-stage", "bwrap", "init"])
def test_killed_part_takes_the_rest_with_it(scene: Scene, who: str) -> None:
    """Whichever process of belljar's own is killed while code runs: the program is told, and nothing is left."""
    victim, marker = scene.start("hold")
    with victim:
        wait_until_on(victim)
        parts = _who(victim.pid)
        assert who in parts, parts
        assert [pid for pid in descendants(victim.pid) if marker in command(pid)]  # the control: the code is there
        os.kill(parts[who], signal.SIGKILL)
        assert victim.wait(15) is not None
    scene.nobody_is_left()
    everyone = map(int, filter(str.isdigit, os.listdir("/proc")))
    assert not [pid for pid in everyone if marker in command(pid) and pid != os.getpid()]
    scene.nothing_is_left()


@pytest.mark.parametrize("who", ["belljar-stage", "belljar-launch"])
def test_program_goes_on_after_a_part_was_killed(scene: Scene, who: str) -> None:
    """A stage or launcher that was killed from outside is an error with a name, and the next Sandbox works."""
    with Sandbox(backend="bubblewrap") as jar:
        assert jar.run("pass").ok  # the control: before the kill it works
        os.kill(_who(os.getpid())[who], signal.SIGKILL)
        with pytest.raises(belljar.SandboxUnavailableError):
            jar.run("pass")
    with Sandbox(backend="bubblewrap") as jar:
        assert jar.run("print('alive')").stdout == "alive\n"
