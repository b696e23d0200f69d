"""Frames between belljar and the program in a container: one byte of kind, four of length, then the payload.

Used on both sides. A frame never grows beyond MAX_FRAME, so neither side can be made to keep more than that.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

JSON, DATA, STDIN, STDOUT, STDERR = b"J", b"D", b"I", b"O", b"E"
MAX_FRAME = 1 << 20
CHUNK = 1 << 16
_HEADER = struct.Struct("!cI")

Frame = "tuple[bytes, bytes]"


class FrameError(Exception):
    """What arrived is no frame."""


def encode(kind: bytes, payload: bytes) -> bytes:
    """One frame."""
    return _HEADER.pack(kind, len(payload)) + payload


def message(value: dict[str, Any]) -> bytes:
    """One frame with a JSON value. Names that are no text travel as lone surrogates, escaped."""
    return encode(JSON, json.dumps(value).encode("ascii"))


class Parser:
    """Bytes in, frames out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that are complete now."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if length > MAX_FRAME or kind not in (JSON, DATA, STDIN, STDOUT, STDERR):
                raise FrameError(f"kind {kind!r}, {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            frames.append((kind, bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:end]
        return frames


class Channel:
    """The guest's end: reads frames from one descriptor and writes them to another, without ever waiting to write."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self._parser = Parser()
        self._waiting = bytearray()
        self.frames: list[tuple[bytes, bytes]] = []
        self.ended = False
        """Whether the other side is gone."""
        os.set_blocking(outgoing, False)

    @property
    def backlog(self) -> int:
        """Bytes that are still to be written."""
        return len(self._waiting)

    def read(self) -> None:
        """Take what is there; waits if nothing is."""
        try:
            data = os.read(self.incoming, CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        if not data:
            self.ended = True
        self.frames += self._parser.feed(data)

    def next(self) -> tuple[bytes, bytes] | None:
        """Wait for the next frame; None when the other side is gone."""
        while not self.frames:
            if self.ended:
                return None
            self.read()
        return self.frames.pop(0)

    def send(self, frame: bytes) -> None:
        """Queue a frame, and write what can be written now."""
        self._waiting += frame
        self.flush()

    def flush(self) -> None:
        """Write as much as the other side takes."""
        while self._waiting:
            try:
                written = os.write(self.outgoing, self._waiting[:CHUNK])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self.ended = True
                self._waiting.clear()
                return
            del self._waiting[:written]

    def drain(self) -> None:
        """Write everything, however long it takes."""
        import select

        poll = select.poll()
        poll.register(self.outgoing, select.POLLOUT)
        while self._waiting:
            poll.poll()
            self.flush()
