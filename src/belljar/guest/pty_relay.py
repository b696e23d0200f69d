"""A terminal of the jar's own for a program that talks with a person. Runs in the jar; standard library only.

    python -I pty_relay.py ROWS COLUMNS COMMAND…

Its standard input carries frames from the host: a letter, the length as two bytes, and that many bytes. `d` is what was
typed, `w` the size of the window: rows and columns, two bytes each. Its standard output is what the program shows. The
end of the input is the end of the terminal: the program gets a hangup, as when a window is closed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import struct
import sys
import termios

_PIECE = 1 << 16


def main(words: list[str]) -> int:
    """Start the command at a new terminal, and carry what is typed and shown; returns its exit code."""
    rows, columns, *command = words
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execvp(command[0], command)  # noqa: S606 - the command that the jar is for
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\r\n".encode())
        os._exit(127)
    _resize(terminal, int(rows), int(columns))
    _relay(terminal)
    return _code(os.waitpid(pid, 0)[1])


def _resize(terminal: int, rows: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _relay(terminal: int) -> None:
    """Until the program has closed its terminal, or the host has closed ours."""
    frames = b""
    while True:
        ready, _, _ = select.select([0, terminal], [], [])
        if terminal in ready:
            try:
                shown = os.read(terminal, _PIECE)
            except OSError:  # EIO: nobody holds the other side any more
                break
            if not shown:
                break
            _write(1, shown)
        if 0 in ready:
            data = os.read(0, _PIECE)
            if not data:
                break
            frames = _carry_out(frames + data, terminal)
    os.close(terminal)


def _carry_out(frames: bytes, terminal: int) -> bytes:
    """Do what the whole frames say; what is left is the beginning of the next."""
    while len(frames) >= 3:
        kind, length = frames[:1], int.from_bytes(frames[1:3], "big")
        if len(frames) < 3 + length:
            break
        body, frames = frames[3 : 3 + length], frames[3 + length :]
        with contextlib.suppress(OSError):  # the program has just gone
            if kind == b"w" and length == 4:
                _resize(terminal, *struct.unpack(">HH", body))
            elif kind == b"d":
                _write(terminal, body)
    return frames


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
