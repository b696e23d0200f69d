"""At a real terminal (a pty): the filter is on, colours obey NO_COLOR, Ctrl-C leaves nothing behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cli_process import BELLJAR, Ran, environment

pytestmark = pytest.mark.host


class Terminal:
    """belljar with a terminal of its own for all three descriptors."""

    def __init__(self, here: Path, words: tuple[str, ...], variables: dict[str, str]) -> None:
        self.ours, theirs = pty.openpty()
        self.seen = b""
        self.process = subprocess.Popen(
            [*BELLJAR, *words],
            cwd=here,
            env=environment(here.parent, TERM="xterm", **variables),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def until(self, wanted: bytes) -> None:
        deadline = time.monotonic() + 30
        while wanted not in self.seen:
            assert self._more(deadline - time.monotonic()), self.seen

    def end(self) -> int:
        while self._more(30):
            pass
        return self.process.wait(30)

    def _more(self, seconds: float) -> bool:
        ready, _, _ = select.select([self.ours], [], [], max(0, seconds))
        if not ready:
            return False
        try:
            data = os.read(self.ours, 4096)
        except OSError:  # EIO: nobody holds the other side any more
            return False
        self.seen += data
        return bool(data)


@pytest.fixture
def terminal(jar: Callable[..., Ran], here: Path) -> Iterator[Callable[..., Terminal]]:
    """Start belljar at a terminal."""
    started: list[Terminal] = []

    def start(*words: str, **variables: str) -> Terminal:
        started.append(Terminal(here, words, variables))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()
        os.close(one.ours)


ESCAPES = r"import sys; sys.stdout.write('\x1b]0;owned\x07\u202e done'); sys.stderr.write('\x1b[31m')"


def test_escape_sequences_are_shown(terminal: Callable[..., Terminal]) -> None:
    """What would act on the terminal is made visible, on both streams."""
    at = terminal("run", "-q", "-c", ESCAPES)
    assert at.end() == 0
    assert b"\x1b" not in at.seen
    assert rb"\x1b]0;owned\x07\u202e done" in at.seen
    assert rb"\x1b[31m" in at.seen


def test_raw(terminal: Callable[..., Terminal]) -> None:
    """The control: with --raw the same bytes arrive."""
    at = terminal("run", "--raw", "-c", ESCAPES)
    assert at.end() == 0
    assert b"\x1b]0;owned\x07" in at.seen


def test_the_jar_does_not_get_the_terminal(terminal: Callable[..., Terminal]) -> None:
    """Standard input is a pipe inside: a terminal could be written to through it, past the filter."""
    code = "import os, sys; print(os.isatty(0), os.isatty(1), os.isatty(2)); os.write(0, b'\\x1b[2J')"
    at = terminal("run", "-q", "-c", code)
    assert at.end() == 1
    assert b"False False False" in at.seen
    assert b"\x1b" not in at.seen


def test_a_file_on_standard_input_can_not_be_written(jar: Callable[..., Ran], here: Path) -> None:
    """Nor opened again for writing through /proc."""
    data = here / "data"
    data.write_text("mine")
    with open(data, "rb") as stdin:
        subprocess.run(
            [*BELLJAR, "run", "-c", "open('/proc/self/fd/0', 'w').write('owned')"],
            stdin=stdin,
            cwd=here,
            env=environment(here.parent),
            capture_output=True,
            check=False,
            timeout=30,
        )
    assert data.read_text() == "mine"


def test_typing_reaches_the_code(terminal: Callable[..., Terminal]) -> None:
    """What someone types arrives when they type it."""
    at = terminal("run", "-c", "print('name?', flush=True); print('hello', input())")
    at.until(b"name?")
    os.write(at.ours, b"jar\n")
    assert at.end() == 0
    assert b"hello jar" in at.seen


def test_own_words_begin_on_a_line_of_their_own(terminal: Callable[..., Terminal]) -> None:
    """Not at the end of the code's last line, where they could be taken for its own."""
    at = terminal("run", "-c", "print('Permission denied', end=''); raise SystemExit(1)", NO_COLOR="1")
    assert at.end() == 1
    assert b"Permission denied\r\nbelljar: " in at.seen
    assert b"\x1b" not in at.seen


def test_colours(terminal: Callable[..., Terminal]) -> None:
    """On a terminal, for belljar's own words only."""
    at = terminal("run", "missing.py")
    assert at.end() == 2
    assert at.seen.startswith(b"\x1b[31mbelljar: error:\x1b[0m missing.py")


def alive(marker: str) -> list[str]:
    """Processes on this host with `marker` in their command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if marker.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c(terminal: Callable[..., Terminal], times: int) -> None:
    """Typed at the terminal, it ends the tree before belljar, however often someone presses it; 130."""
    marker = f"marker-{os.getpid()}-{times}"
    code = "echo ready; trap '' INT TERM; setsid sleep 300 & exec -a $0 sleep 301"
    at = terminal("exec", "--", "bash", "-c", code, marker)
    at.until(b"ready")
    assert alive(marker)
    os.write(at.ours, b"\x03" * times)
    assert at.end() == 130
    assert alive(marker) == []
    assert b"Traceback" not in at.seen


def test_a_reader_that_leaves_ends_the_run(jar: Callable[..., Ran], here: Path) -> None:
    """`belljar run … | head -1`: nobody reads any more, so nothing runs any more."""
    marker = f"marker-{os.getpid()}-pipe"
    words = ["exec", "-q", "--", "bash", "-c", "while :; do echo line; done", marker]
    with subprocess.Popen(
        [*BELLJAR, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=here, env=environment(here.parent)
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.wait(30) == 141
        assert process.stderr.read() == b""
    assert alive(marker) == []


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_closed_descriptors(jar: Callable[..., Ran], here: Path, closed: int) -> None:
    """A descriptor that the caller closed does not become one of belljar's own files."""
    words = [*BELLJAR, "run", "-q", "-c", "print('out' * 1000); import sys; sys.stderr.write('err' * 1000)"]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        preexec_fn=lambda: os.close(closed),
        cwd=here,
        env=environment(here.parent),
        check=False,
        timeout=30,
    )
    assert done.returncode == 0
    assert (len(done.stdout), len(done.stderr)) == (0 if closed == 1 else 3001, 0 if closed == 2 else 3000)
