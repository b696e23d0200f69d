"""The sockets by which processes tell what they run: those of the killed go, and nobody else's."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.sandbox.record import remote
from belljar.sandbox.record.control import control_directory, living, started_at

pytestmark = pytest.mark.backend("bubblewrap")

KILLED = """
from belljar import Sandbox
with Sandbox() as jar:
    for _output in jar.stream("print('up', flush=True)\\nimport time\\ntime.sleep(100)"):
        print("up", flush=True)
"""


def listening(name: str, *, listens: bool = True) -> socket.socket:
    """A socket of that name, as a process makes one."""
    Path(control_directory()).mkdir(mode=0o700, exist_ok=True)
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    directory = os.open(control_directory(), os.O_RDONLY)
    one.bind(f"/proc/self/fd/{directory}/{name}")
    os.close(directory)
    if listens:
        one.listen()
    return one


def test_the_next_belljar_removes_what_a_killed_one_left() -> None:
    """Without anybody who lists what runs."""
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"up\n"
        host.kill()
    left = set(os.listdir(control_directory()))
    assert len(left) == 1
    with Sandbox() as jar:
        assert jar.run("print(1)").ok
        deadline = time.monotonic() + 10
        while left & set(os.listdir(control_directory())):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert len(os.listdir(control_directory())) == 1  # our own


def test_only_the_dead_lose_theirs() -> None:
    """One that starts and does not listen yet stays; so does one whose number says nothing here, and who answers."""
    mine = f"{os.getpid()}-{started_at(os.getpid())}.sock"
    dead = f"{os.getpid()}-1.sock"
    elsewhere = "1-1.sock"
    ends = [listening(mine, listens=False), listening(elsewhere), listening(dead)]
    ends[2].close()
    Path(control_directory(), "else").write_text("")
    Path(control_directory(), "directory").mkdir()
    try:
        assert living(control_directory()) == [mine]
        assert set(os.listdir(control_directory())) == {mine, elsewhere, "directory"}
        assert [pid for pid, _name in remote._owners()] == [os.getpid()]
    finally:
        for end in ends:
            end.close()
        os.unlink(Path(control_directory(), mine))


def test_one_that_starts_in_another_pid_namespace_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a socket already and listens a moment later. Its number says nothing here."""
    end = listening("1-1.sock", listens=False)
    monkeypatch.setattr(time, "sleep", lambda _seconds: end.listen())
    try:
        assert living(control_directory()) == []
        assert os.listdir(control_directory()) == ["1-1.sock"]
    finally:
        end.close()
        os.unlink(Path(control_directory(), "1-1.sock"))
