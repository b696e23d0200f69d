"""What takes more than two seconds says so on a terminal, and is silent in a pipe."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.audit.log import directory

COMMANDS = {
    "audit verify": "reading it",
    "audit export": "writing it",
    "audit query": "looking through it",
    "audit tail": "looking for its end",
    "ps --all": "bringing its index up to date",
    "inspect 01a1e4e2": "bringing its index up to date",
    "prune --older 1d": "looking whether it is in order",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_a_log_that_takes_long(words: str, tmp_path: Path) -> None:
    """Here it is a pipe that nobody writes into until the terminal shows that somebody waits."""
    os.makedirs(directory(), mode=0o700)
    day = Path(directory()) / "2026-01-31.jsonl"
    os.mkfifo(day)
    command = [sys.executable, "-m", "belljar", *words.split()]
    ours, theirs = os.openpty()
    # What one writes, the other may read first: each has a database of its own.
    elsewhere = {**os.environ, "BELLJAR_STATE_DIR": str(tmp_path)}
    os.symlink(directory(), tmp_path / "audit")
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with (
        subprocess.Popen(command, **pipes, stderr=subprocess.PIPE, env=elsewhere) as silent,
        subprocess.Popen(command, **pipes, stderr=theirs) as seen,
    ):
        os.close(theirs)
        shown = b""
        while COMMANDS[words].encode() not in shown:
            shown += os.read(ours, 4096)
        assert b"\r\x1b[Kbelljar: the audit log: " in shown
        os.close(os.open(day, os.O_WRONLY))
        with contextlib.suppress(OSError):  # that nobody has the terminal any more
            while data := os.read(ours, 4096):
                shown += data
        assert b"s)\r\x1b[K" in shown, "the line is gone at the end"
        _out, told = silent.communicate(timeout=30)
        seen.communicate(timeout=30)
    os.close(ours)
    assert b"\r" not in told
    assert COMMANDS[words].encode() not in told


SHORT = """
from belljar.cli.terminal.progress import counted, waiting
with waiting("x", "one") as progress:
    assert list(counted(range(30000), progress, "items")) == list(range(30000))
    assert progress._step == "20,000 items"
"""


def test_nothing_is_said_of_what_is_over_at_once() -> None:
    """Not even that there was nothing to say."""
    ours, theirs = os.openpty()
    subprocess.run([sys.executable, "-c", SHORT], stderr=theirs, check=True)
    os.write(theirs, b"end")
    os.close(theirs)
    assert os.read(ours, 4096) == b"end"
    os.close(ours)
