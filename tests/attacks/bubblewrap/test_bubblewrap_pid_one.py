"""Attacks on the jar's own pid 1, which is bubblewrap: whoever ended or read it would have the jar."""

from __future__ import annotations

import pytest
from attack_control import python_control
from attack_probe import escaped, held, python_probe

from belljar import Sandbox

KILL = """
def attack(who):
    pid = victim(who)
    os.kill(pid, 9)
    if who == "spawn":
        return os.waitpid(pid, 0)
    time.sleep(0.1)
    os.kill(pid, 0)
    raise OSError(errno.EPERM, "it lives")
"""
STOP = """
def attack(who):
    pid = victim(who)
    os.kill(pid, 19)
    if who == "spawn":
        return os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]), os.kill(pid, 9)
    reader, writer = os.pipe()
    if os.fork() == 0:
        orphan = os.fork()
        if orphan:
            os.write(writer, b"%d" % orphan)
        os._exit(0)
    os.wait()
    orphan = int(os.read(reader, 10))
    for _ in range(100):
        try:
            os.kill(orphan, 0)
        except ProcessLookupError:
            raise OSError(errno.EPERM, "it goes on: it buries its children")
        time.sleep(0.02)
    return "it stands still"
"""
ACTS = (
    ("kill", KILL),
    ("stop", STOP),
    ("trace", "def attack(who): return call(101, 0x4206, victim(who), 0, 0)"),
    ("take its descriptors", "def attack(who): return call(438, os.pidfd_open(victim(who)), 0, 0)"),
)
FILES = (
    ("its memory", "def attack(): return open('/proc/1/mem', 'rb')"),
    ("its root", "def attack(): return os.listdir('/proc/1/root')"),
    ("around the cover", "def attack(): return os.listdir('/proc/self/root/proc/1/root')"),
    ("its only thread", "def attack(): return os.listdir('/proc/1/task/1/root')"),
    ("anything", "def attack(): return os.listdir('/proc/1')[0] if os.listdir('/proc/1') else os.open('/proc/1/x', 0)"),
)


@pytest.mark.parametrize(("name", "body"), ACTS, ids=[name for name, _body in ACTS])
def test_pid_one_is_safe(jar: Sandbox, name: str, body: str) -> None:
    """It can't be ended, stopped, traced or robbed; any other process of the same user can."""
    assert held(jar.run(python_probe(body), args=["1"]))
    assert escaped(python_control(python_probe(body), "spawn"))


@pytest.mark.parametrize(("name", "body"), FILES, ids=[name for name, _body in FILES])
def test_files_of_pid_one_are_covered(jar: Sandbox, name: str, body: str) -> None:
    """Nothing of it can be read in /proc; the control has a pid 1 that can be."""
    assert held(jar.run(python_probe(body)))
    assert escaped(python_control(python_probe(body), root=True))
