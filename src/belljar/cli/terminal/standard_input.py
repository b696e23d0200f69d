"""The caller's standard input, handed to a jar through a pipe and never as the descriptor itself.

A terminal can be written to through the descriptor that it is read from, past every filter; and a file can be opened
again, for writing, through /proc/self/fd/0. So a jar only ever holds the end of a pipe.
"""

from __future__ import annotations

import os
import stat
import sys

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.sandbox.record.inputs import Fed, Input

_PIECE = 1 << 16


def give() -> Input:
    """What is in the file that standard input is, or a pipe that it is pumped into; None if there is none."""
    if not _has_input(0):
        return None
    from belljar.sandbox.record.inputs import Fed, at_once

    if (content := at_once(0)) != 0:
        return content
    readable, writable = os.pipe2(os.O_CLOEXEC)
    fed = Fed(readable)
    import threading

    # A daemon: it may sit in a read of a terminal for ever, and must keep nobody from ending.
    threading.Thread(target=_pump, args=(0, writable, fed), name="belljar-stdin", daemon=True).start()
    return fed


def _has_input(descriptor: int) -> bool:
    try:
        status = os.fstat(descriptor)
    except OSError:
        return False
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.stat(os.devnull).st_rdev:
        return False
    return not os.isatty(descriptor) or _in_foreground(descriptor)


def _in_foreground(descriptor: int) -> bool:
    """A job in the background that reads its terminal is stopped by the kernel; it gets no input instead."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:  # not the terminal that controls us: nobody stops us for reading it
        return True


def _pump(source: int, writable: int, fed: Fed) -> None:
    try:
        while data := os.read(source, _PIECE):
            fed.add(data)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(writable, rest) :]
    except BrokenPipeError:
        pass  # the code has ended, or does not want any more
    except OSError as error:
        sys.stderr.write(f"belljar: standard input: {error.strerror}\n")
    finally:
        os.close(writable)
