"""Attacks on pid 1 of a container, which tells the host how a run ended, and on the channel that it has for that."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from attack_batch import Row, escapes, run_all
from attack_control import python_control
from attack_probe import escaped, python_probe

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]

FORGE = r"""
import json, os, struct, time
end = {"status": 0, "ended_by": "", "cpu_seconds": 0, "peak_memory_bytes": 0, "oom_kills": 0, "pids_refused": 0,
       "observations": []}
frames = b"".join(struct.pack("!cI", kind, len(data)) + data
                  for kind, data in ((b"O", b"FORGED\n"), (b"J", json.dumps({"end": end}).encode())))
written = 0
for number in range(16):
    try:
        written += os.write(os.open(f"/proc/1/fd/{number}", os.O_WRONLY | os.O_NONBLOCK), frames)
    except OSError:
        pass
print("written", written, flush=True)
time.sleep(1)
os._exit(7)
"""


def test_end_can_not_be_forged(open_jar: OpenJar, backend: str) -> None:
    """Code that writes an end of its own to the host is told of by its real one, or as killed; and it is over.

    Linux closes the gate's descriptors. gVisor of 2022 does not: there the missing seal gives the code away. The
    control: the same frames without a seal are what the host would believe.
    """
    from belljar.guest.container import wire

    result = open_jar(overrides=["proc.timeout_ms=10s"]).run(FORGE)
    assert (result.outcome, result.exit_code) in (("failed", 7), ("killed", 137)), result
    assert "FORGED" not in result.stdout
    if backend != "gvisor":
        assert result.stdout == "written 0\n"
    believed = wire.Parser().feed(wire.encode(wire.STDOUT, b"FORGED\n"))
    assert believed == [(wire.STDOUT, b"FORGED\n")]


SEARCH = """
import sys
turned = bytes(255 - number for number in range(256))
planted = bytes(range(60, 92))
def found(first):  # what is looked for is nowhere in this program: its complement is, and all that is read is turned
    what = bytes(255 - number for number in range(first, first + 32))
    for line in open("/proc/self/maps"):
        ends, mode = line.split()[:2]
        start, end = (int(number, 16) for number in ends.split("-"))
        if mode.startswith("rw"):
            with open("/proc/self/mem", "rb", 0) as memory:
                memory.seek(start)
                try: data = memory.read(min(end - start, 1 << 26))
                except (OSError, ValueError): continue
            if what in data.translate(turned): return True
    return False
print(found(100), found(60), flush=True)
"""


def test_key_of_the_seal_is_not_in_the_codes_memory(open_jar: OpenJar, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code's process is a fork of the gate, and has nothing of its key; the control: what is there is found."""
    key, real = bytes(range(100, 132)), os.urandom
    monkeypatch.setattr("os.urandom", lambda size: key if size == len(key) else real(size))
    assert open_jar().run(SEARCH).stdout == "False True\n"


TOUCH = {
    "its descriptors": "def attack(who): return os.listdir(f'/proc/{victim(who)}/fd')",
    "its memory": "def attack(who): return open(f'/proc/{victim(who)}/mem', 'r+b')",
    "its root": "def attack(who): return os.listdir(f'/proc/{victim(who)}/root')",
    "its working directory": "def attack(who): return os.listdir(f'/proc/{victim(who)}/cwd')",
    "its environment": "def attack(who): return open(f'/proc/{victim(who)}/environ', 'rb').read(4)",
    "trace it": "def attack(who): return call(101, 0x4206, victim(who), 0, 0)",
    "take a descriptor": "def attack(who): return call(438, os.pidfd_open(victim(who)), 0, 0)",
    "read it": """
        def attack(who):
            pid = victim(who)
            time.sleep(0.3)
            start = int(open(f"/proc/{pid}/maps").readline().split("-")[0], 16)
            buffer = ctypes.create_string_buffer(4)
            call(310, pid, struct.pack("QQ", ctypes.addressof(buffer), 4), 1, struct.pack("QQ", start, 4), 1, 0)
            return buffer.raw
        """,
    "its open files": "def attack(who): return call(302, victim(who), 7, struct.pack('QQ', 9, 9), 0)",
    "its processor time": "def attack(who): return call(302, victim(who), 0, struct.pack('QQ', 1, 1), 0)",
    "its memory limit": "def attack(who): return call(302, victim(who), 9, struct.pack('QQ', 1 << 20, 1 << 20), 0)",
    "its part in the next shortage": """
        def attack(who):
            return os.write(os.open(f"/proc/{victim(who)}/oom_score_adj", os.O_WRONLY), b"1000")
        """,
}
OPEN_IN_GVISOR = {"its descriptors", "its environment"}
"""What gVisor of 2022 shows of everyone: the frames are sealed, and there is nothing in the environment."""


def test_gate_is_out_of_reach(roomy: Sandbox, backend: str) -> None:
    """It can't be read, traced, robbed or given other limits; any other process of the same user can."""
    found = escapes(run_all(roomy, [Row(name, python_probe(body), ["1"]) for name, body in TOUCH.items()]))
    assert not set(found) - (OPEN_IN_GVISOR if backend == "gvisor" else set()), found


@pytest.mark.parametrize("name", TOUCH)
def test_probe_of_the_gate_works(name: str) -> None:
    """The control: a process beside it, of the same user."""
    assert escaped(python_control(python_probe(TOUCH[name]), "spawn"))


SIGNALS = """
import os, signal, sys, time
for number in map(int, sys.argv[1:]):
    os.kill(1, number)
time.sleep(0.3)
print("alive", flush=True)
os._exit(3)
"""


@pytest.mark.parametrize("numbers", [["1", "2", "10", "15", "11", "34", "64", "19", "9"], ["19"]], ids=["all", "stop"])
def test_gate_can_not_be_ended_or_stopped(open_jar: OpenJar, backend: str, numbers: list[str]) -> None:
    """No signal of the code's reaches pid 1. In gVisor it does: then the run is over, as killed or at its time."""
    jar = open_jar(overrides=["proc.timeout_ms=3s"])
    started = time.monotonic()
    result = jar.run(SIGNALS, args=numbers, stdin="x" * 1_000_000)
    if backend == "gvisor":
        assert result.outcome in ("killed", "timeout"), result
        assert time.monotonic() - started < 90
        assert jar.run("print('next')").stdout == "next\n"
    else:
        assert (result.outcome, result.exit_code, result.stdout) == ("failed", 3, "alive\n")


FLOOD = """
import os, sys
for _ in range(200):  # orphans for the gate to bury, signals to take, and acknowledgements of one byte
    if os.fork() == 0:
        os.fork()
        os._exit(0)
    os.wait()
    try: os.kill(1, 17)
    except OSError: pass
    os.read(0, 1)
print(len(os.read(0, 10)), flush=True)
"""


NAMES = """
for i in range(700):
    try: open("/usr/" + chr(0x1F600) * 60 + str(i), "w")
    except OSError: pass
"""


def test_gate_is_not_exhausted(open_jar: OpenJar, backend: str) -> None:
    """Orphans, signals, input in single bytes and hundreds of long refused names: the end is told, and all of it."""
    jar = open_jar(overrides=["proc.timeout_ms=60s"])
    assert jar.run(FLOOD, stdin="x" * 100_000).stdout == "10\n"
    result = jar.run(NAMES, explain_denials=True)
    assert result.ok
    assert backend == "gvisor" or result.denials
