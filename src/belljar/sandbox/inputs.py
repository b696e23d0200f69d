"""What a run gets as its standard input."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

MOST_KEPT = 1 << 20
"""So much of a run's input is stored, so that it can be run again; a run with more is told to have had some."""


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

    Bytes go through a memory file, so that nobody has to feed a pipe. A file or a terminal of the host's goes through a
    pipe: the code could open the descriptor itself anew, for writing, by its name in /proc.
    """
    if stdin is None:
        yield None
        return
    if isinstance(stdin, Fed):
        yield stdin.descriptor
        return
    if isinstance(stdin, int):
        with _piped(stdin) as descriptor:
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
def _piped(stdin: int) -> Iterator[int]:
    if stat.S_ISFIFO(os.fstat(stdin).st_mode):
        yield stdin
        return
    reader, writer = os.pipe2(os.O_CLOEXEC)
    own = os.dup(stdin)

    def pump() -> None:
        ends = os.fdopen(own, "rb", buffering=0), os.fdopen(writer, "wb", buffering=0)
        with contextlib.suppress(OSError), ends[0] as source, ends[1] as target:
            while chunk := source.read(1 << 16):
                target.write(chunk)

    import threading

    threading.Thread(target=pump, daemon=True, name="belljar-stdin").start()
    try:
        yield reader
    finally:
        os.close(reader)
