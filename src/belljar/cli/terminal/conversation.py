"""A program in a jar that talks with the person at this terminal: keys go in, its screen comes out.

The jar never holds our terminal. It has one of its own (`guest/pty_relay.py`), and ours is read and written from here.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import struct
import termios
import threading
import tty
from collections.abc import Iterator, Sequence

import belljar.guest
from belljar.backends.runtimes import find_runtime
from belljar.cli.terminal.screen_filter import RESTORED, ScreenFilter
from belljar.cli.terminal.stopping import Stopping
from belljar.errors import InternalError
from belljar.sandbox.record.events import Finished
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.run.sandbox import Sandbox

_PIECE = 1 << 12
_MOST_WAITING = 1 << 16


def converse(jar: Sandbox, argv: Sequence[str], stopping: Stopping, *, name: str = "") -> RunResult:
    """Run the command at a terminal of the jar's own, joined to ours until it ends, or we are told to."""
    keys, into_jar = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(into_jar, False)
    screen = ScreenFilter()
    try:
        stream = jar.stream(argv=_relayed(jar, argv), name=name, stdin=keys)
        with _raw_terminal(), _typed(into_jar), stopping.following(stream) as events:
            for event in events:
                if isinstance(event, Finished):
                    return event.result
                _write(1, screen.feed(event.data))
    finally:
        os.close(keys)
    raise InternalError("the run ended without a result")


def _relayed(jar: Sandbox, argv: Sequence[str]) -> list[str]:
    path = os.path.join(os.path.dirname(os.path.abspath(belljar.guest.__file__)), "pty_relay.py")
    with open(path, encoding="utf-8") as file:
        program = file.read()
    rows, columns = _size()
    return [find_runtime("python", jar.policy).path, "-I", "-c", program, str(rows), str(columns), *argv]


def _size() -> tuple[int, int]:
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))
    return rows or 24, columns or 80


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Every key is the program's; afterwards the terminal is as it was."""
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, termios.error):  # it may have gone
            _write(1, RESTORED)
            termios.tcsetattr(0, termios.TCSAFLUSH, before)


@contextlib.contextmanager
def _typed(into_jar: int) -> Iterator[None]:
    """What is typed goes into the jar, and so does each new size of the window, from a thread that ends with this."""
    asleep, awake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)

    def resized(_signal: int, _frame: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(awake, b"w")

    before = signal.signal(signal.SIGWINCH, resized)
    thread = threading.Thread(target=_pump, args=(into_jar, asleep), name="belljar-keys", daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
        os.close(awake)
        thread.join()
        os.close(asleep)


def _pump(into_jar: int, asleep: int) -> None:
    """Until `asleep` is closed. A jar that reads nothing more must not keep us from ending."""
    waiting = b""
    try:
        while True:
            full = len(waiting) >= _MOST_WAITING
            ready, writable, _ = select.select([asleep] if full else [0, asleep], [into_jar] if waiting else [], [])
            if asleep in ready:
                if not os.read(asleep, _PIECE):
                    return
                waiting += _frame(b"w", struct.pack(">HH", *_size()))
            if 0 in ready:
                typed = os.read(0, _PIECE)
                if not typed:
                    return
                waiting += _frame(b"d", typed)
            if writable:
                waiting = waiting[os.write(into_jar, waiting) :]
    except OSError:
        return  # the program has ended, or our terminal has gone
    finally:
        os.close(into_jar)


def _frame(kind: bytes, body: bytes) -> bytes:
    return kind + len(body).to_bytes(2, "big") + body


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
