"""What a run gets as its standard input."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

MOST_KEPT = 1 << 20
"""So much of a run's input is stored, so that it can be run again; a run with more is told to have had some."""
_PIECE = 1 << 16


class Fed:
    """The readable end of a pipe that somebody feeds, and a copy of what went into it."""

    __slots__ = ("copy", "descriptor", "whole")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.copy = bytearray()
        self.whole = True
        """Whether the copy is; not if it would be too large."""

    def add(self, data: bytes) -> None:
        """Note what is about to go into the pipe."""
        self.whole = self.whole and len(self.copy) + len(data) <= MOST_KEPT
        if self.whole:
            self.copy += data


Input = bytes | str | int | Fed | None


def at_once(stdin: Input) -> Input:
    """The content of a file that is not too large, instead of its descriptor; anything else as it is."""
    if not isinstance(stdin, int):
        return stdin
    status = os.fstat(stdin)
    if not stat.S_ISREG(status.st_mode) or status.st_size - os.lseek(stdin, 0, os.SEEK_CUR) > MOST_KEPT:
        return stdin
    pieces = []
    while data := os.read(stdin, MOST_KEPT):
        pieces.append(data)
    return b"".join(pieces)


@contextlib.contextmanager
def opened_input(stdin: Input) -> Iterator[int | None]:
    """A descriptor that the code can read.

    Bytes go through a memory file, so that nobody has to feed a pipe. A descriptor of the host's, of whatever kind, is
    relayed through a pipe of the run's own. With the descriptor itself the code would share its flags and its position
    with the host, could write to a socket, and could open a pipe or a file for writing by its name in /proc.
    """
    if stdin is None:
        yield None
        return
    if isinstance(stdin, Fed):
        yield stdin.descriptor
        return
    if isinstance(stdin, int):
        with _relayed(stdin) as descriptor:
            yield descriptor
        return
    descriptor = os.memfd_create("belljar-input", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(stdin.encode() if isinstance(stdin, str) else stdin)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _relayed(stdin: int) -> Iterator[int]:
    source = os.dup(stdin)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    import threading

    # A daemon: it may wait for input as long as the run lasts, and must keep nobody from ending.
    threading.Thread(target=_relay, args=(source, writer), daemon=True, name="belljar-stdin").start()
    try:
        yield reader
    finally:
        os.close(reader)


def _relay(source: int, writer: int) -> None:
    """Pass on what comes, until there is no more or nobody reads it. Closes both descriptors.

    It takes nothing from the source once the run is over: what comes then is for whoever reads it next.
    """
    import select

    from belljar._startup import signals as signal

    # A program may have SIGPIPE end it, as filters do. Code that does not read its input must not cause that.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    poll = select.poll()
    poll.register(source, select.POLLIN)
    poll.register(writer, 0)  # it is told when the last reader has gone
    try:
        while True:
            events = dict(poll.poll())
            if writer in events:
                return
            try:
                data = os.read(source, _PIECE)
            except (BlockingIOError, InterruptedError):
                continue
            if not data:
                return
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(writer, rest) :]
    except OSError:  # nobody reads any more, or the source is broken: both are the end
        return
    finally:
        os.close(source)
        os.close(writer)
