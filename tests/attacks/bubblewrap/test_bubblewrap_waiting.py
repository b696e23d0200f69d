"""Attacks on the next run through the jar that waits for it while another goes on."""

from __future__ import annotations

from collections.abc import Callable

from attack_control import own_tmp, python, python_control

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]

FRESH = """
import os, signal
processes = [name for name in os.listdir("/proc") if name.isdigit()]
print(sorted(os.listdir("/tmp")), os.listdir("/dev/shm"), len(processes), flush=True)
open("/tmp/x", "w")
open("/dev/shm/x", "w")
for _ in range(3):
    if os.fork() == 0: signal.pause()
"""
TWICE = """
import subprocess, sys
for _ in range(2): subprocess.run(sys.argv[1:], timeout=10)
"""


def test_waiting_jar_has_nothing_of_the_last_run(open_jar: OpenJar) -> None:
    """A jar that was made ready while another run went on is as fresh as the first: no file, process, limit spent."""
    jar = open_jar(overrides=["proc.pids=8"])
    for _ in range(4):
        assert jar.run(FRESH).stdout == "['home'] [] 2\n"
    said = python_control(TWICE, python(), "-I", "-c", FRESH, setup=own_tmp())
    assert said.splitlines() == ["[] [] 2", "['x'] ['x'] 5"]  # the control: twice in one place
