"""What a run gets as its standard input."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

Input = bytes | str | int | None


@contextlib.contextmanager
def opened_input(stdin: Input) -> Iterator[int | None]:
    """A descriptor that the code can read.

    Bytes go through a memory file, so that nobody has to feed a pipe. A file or a terminal of the host's goes through a
    pipe: the code could open the descriptor itself anew, for writing, by its name in /proc.
    """
    if stdin is None:
        yield None
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
