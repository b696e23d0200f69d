"""SIGKILL at any moment of the program that uses belljar: nothing of its runs is left.

Afterwards there is no process, no mount, no control group and no temporary directory. What is about the processes of
one backend is in its own directory.
"""

from __future__ import annotations

import signal
import time

import pytest
from attack_kill import Scene, command, descendants, wait_until_on

MOMENTS_MS = (0, 60, 100, 130, 160, 190, 220, 250, 290, 340, 400, 500, 650, 900)


def test_kill_at_any_moment_leaves_nothing(scene: Scene) -> None:
    """The program is killed while it imports, stages, waits at the gate, runs, cleans up: nothing is left."""
    for moment in MOMENTS_MS:
        victim, _marker = scene.start("main")
        with victim:
            time.sleep(moment / 1000)  # the moment itself is what is tried
            victim.kill()
        scene.nothing_is_left()
    scene.next_launcher_sweeps()


def test_kill_around_every_phase_leaves_nothing(scene: Scene) -> None:
    """The same, counted from the moment that code ran: its end, the second run, the clean-up, the next Sandbox."""
    for moment in (0, 20, 50, 70, 100, 130, 170, 220):
        victim, _marker = scene.start("main")
        with victim:
            wait_until_on(victim)
            time.sleep(moment / 1000)
            victim.kill()
        scene.nothing_is_left()
    scene.next_launcher_sweeps()


def test_interrupt_ends_the_tree(scene: Scene) -> None:
    """Ctrl-C in the program ends the run and all that is in it."""
    victim, marker = scene.start("hold")
    with victim:
        wait_until_on(victim)
        assert [pid for pid in descendants(victim.pid) if marker in command(pid)]
        victim.send_signal(signal.SIGINT)
        assert victim.wait(15) is not None
    scene.nothing_is_left()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_program_without_belljar_leaves_its_code(scene: Scene, number: signal.Signals) -> None:
    """The control: a program that starts the same code as a plain child leaves it running, and a directory behind."""
    victim, marker = scene.start("careless")
    with victim:
        wait_until_on(victim)
        victim.send_signal(number)
        assert victim.wait(15) is not None
    assert [pid for pid in scene.alive() if marker in command(pid)]
    assert list((scene.arena / "tmp").iterdir())
