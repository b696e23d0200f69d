"""Standard input that is a descriptor of the host's: the code gets what comes through it, and never the descriptor."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from jars import OpenJar, told

from belljar import Pool

# Reads a line, then tries to reach back through the descriptor; says what worked.
REACH_BACK = """
import fcntl, os, socket, termios
print(os.read(0, 100).decode().strip())

def through_proc():
    with open("/proc/self/fd/0", "wb", buffering=0) as file:
        file.write(b"from the code")

def through_itself():
    os.write(0, b"from the code")

for attempt in (through_proc, through_itself):
    try:
        attempt()
    except OSError:
        pass
fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK)
"""

# Leaves the relay in the middle of writing: a page that was read has been filled again, and the pipe is full.
STOPS_READING = """
import array, fcntl, os, termios
held = array.array("i", [0])
for enough in (0, 4096):
    os.read(0, enough)
    while held[0] < 1 << 16:
        fcntl.ioctl(0, termios.FIONREAD, held)
    held[0] = 0
"""

# A program that SIGPIPE ends, as filters have it. It gives more input than the code reads.
FILTER = f"""
import fcntl, os, signal, threading
from belljar import Sandbox
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 18)
os.write(writer, bytes(1 << 18))
with Sandbox() as jar:
    print(jar.run({STOPS_READING!r}, stdin=reader).outcome.value, flush=True)
for thread in threading.enumerate():
    if thread.name == "belljar-stdin":
        thread.join()
print("alive")
"""


class Given(NamedTuple):
    """A descriptor for the code, who writes to it, and where an answer of the code's would be read."""

    descriptor: int
    writer: int
    back: int

    def was_touched(self) -> bool:
        """Whether the code wrote something to the host, or changed the host's flags."""
        readable, _, _ = select.select([self.back], [], [], 0)
        return bool(readable) or not os.get_blocking(self.descriptor)


def _pipe(_path: Path) -> Given:
    reader, writer = os.pipe()
    return Given(reader, writer, reader)


def _named_pipe(path: Path) -> Given:
    os.mkfifo(path / "fifo")
    both = os.open(path / "fifo", os.O_RDWR)
    return Given(both, both, both)


def _socket(_path: Path) -> Given:
    ours, theirs = socket.socketpair()
    descriptor = ours.detach()
    return Given(theirs.detach(), descriptor, descriptor)


KINDS = {"pipe": _pipe, "named pipe": _named_pipe, "socket": _socket}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Given]:
    made: Given = request.param(tmp_path)
    yield made
    for descriptor in set(made):
        os.close(descriptor)


def test_a_descriptor_is_relayed(open_jar: OpenJar, given: Given) -> None:
    os.write(given.writer, b"line\n")
    assert told(open_jar().run(REACH_BACK, stdin=given.descriptor)) == "line\n"
    assert not given.was_touched()


def test_a_descriptor_is_relayed_in_a_pool(need_backend: Callable[[str], None], given: Given) -> None:
    need_backend("bubblewrap")
    os.write(given.writer, b"line\n")
    with Pool(size=1) as pool:
        assert told(pool.run(REACH_BACK, stdin=given.descriptor)) == "line\n"
    assert not given.was_touched()


def test_the_control_reaches_back(given: Given) -> None:
    """A program that is given the descriptor itself does."""
    os.write(given.writer, b"line\n")
    done = subprocess.run([sys.executable, "-c", REACH_BACK], stdin=given.descriptor, capture_output=True, check=True)
    assert done.stdout == b"line\n"
    assert given.was_touched()


def test_what_comes_after_a_run_is_for_the_next(open_jar: OpenJar) -> None:
    """The relay of a run that is over takes nothing more."""
    jar = open_jar()
    reader, writer = os.pipe()
    try:
        for line in (b"first\n", b"second\n", b"third\n"):
            os.write(writer, line)
            assert told(jar.run("print(input())", stdin=reader)) == line.decode()
    finally:
        os.close(reader)
        os.close(writer)


def test_input_that_nobody_reads_ends_no_host(need_backend: Callable[[str], None]) -> None:
    need_backend("bubblewrap")
    done = subprocess.run([sys.executable, "-c", FILTER], capture_output=True, check=False)
    assert (done.stdout, done.returncode) == (b"ok\nalive\n", 0)
