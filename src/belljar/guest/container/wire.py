"""Frames between belljar and the program in a container: one byte of kind, four of length, then the payload.

Used on both sides. A frame for the host never grows beyond MAX_FRAME, so it can't be made to keep more than that.

While code runs, each frame of the gate's has a seal behind it: in gVisor, whoever is the same user can open the gate's
descriptors in /proc and write to the host. The gate alone has the key; the code's process is born without it.
"""

from __future__ import annotations

import json
import os
import struct
from typing import Any

try:  # at once, where hashlib first loads OpenSSL: the guest is not up before
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

JSON, DATA, STDIN, STDOUT, STDERR, NET = b"J", b"D", b"I", b"O", b"E", b"N"
MAX_FRAME = 1 << 20
_MAX_ORDER = 1 << 28
"""The same for the guest, which has no reason to mistrust the host: a command may have megabytes of arguments."""
CHUNK = 1 << 16
KEY_SIZE = 32
_SEAL_SIZE = 16
_HEADER = struct.Struct("!cI")

Frame = "tuple[bytes, bytes]"


class FrameError(Exception):
    """What arrived is no frame, or not the gate's."""

    def __init__(self, what: str, before: list[tuple[bytes, bytes]]) -> None:
        super().__init__(what)
        self.before = before
        """The frames that came before it."""


class Seal:
    """Tells one side's frames, in their order, from anyone else's."""

    def __init__(self, key: bytes | bytearray) -> None:
        self._key = key
        self._count = 0

    def of(self, frame: bytes) -> bytes:
        """The seal of the next frame."""
        self._count += 1
        return blake2b(self._count.to_bytes(8, "big") + frame, key=self._key, digest_size=_SEAL_SIZE).digest()


def encode(kind: bytes, payload: bytes) -> bytes:
    """One frame."""
    return _HEADER.pack(kind, len(payload)) + payload


def message(value: dict[str, Any]) -> bytes:
    """One frame with a JSON value. Names that are no text travel as lone surrogates, escaped."""
    return encode(JSON, json.dumps(value).encode("ascii"))


class Parser:
    """Bytes in, frames out."""

    def __init__(self, most: int = MAX_FRAME) -> None:
        self._buffer = bytearray()
        self._most = most
        self._seal: Seal | None = None

    def expect(self, seal: Seal) -> None:
        """From the next frame on, each has to be sealed."""
        self._seal = seal

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """The frames that are complete now."""
        self._buffer += data
        frames: list[tuple[bytes, bytes]] = []
        while len(self._buffer) >= _HEADER.size:
            kind, length = _HEADER.unpack_from(self._buffer)
            if length > self._most or kind not in (JSON, DATA, STDIN, STDOUT, STDERR, NET):
                raise FrameError(f"kind {kind!r}, {length} bytes", frames)
            end = _HEADER.size + length
            sealed = end + (_SEAL_SIZE if self._seal else 0)
            if len(self._buffer) < sealed:
                break
            if self._seal and self._seal.of(bytes(self._buffer[:end])) != self._buffer[end:sealed]:
                raise FrameError("a frame that the gate did not send", frames)
            frames.append((kind, bytes(self._buffer[_HEADER.size : end])))
            del self._buffer[:sealed]
        return frames


class FrameChannel:
    """The guest's end: reads frames from one descriptor and writes them to another, without ever waiting to write."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self.incoming = incoming
        self.outgoing = outgoing
        self._parser = Parser(_MAX_ORDER)
        self._waiting = bytearray()
        self.frames: list[tuple[bytes, bytes]] = []
        self.ended = False
        """Whether the other side is gone."""
        self._seal: Seal | None = None
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

    def has_news(self) -> bool:
        """Whether something is to be read, or the other side is gone."""
        import select

        poll = select.poll()
        poll.register(self.incoming, select.POLLIN)
        return bool(self.frames or poll.poll(0))

    def next(self) -> tuple[bytes, bytes] | None:
        """Wait for the next frame; None when the other side is gone."""
        while not self.frames:
            if self.ended:
                return None
            self.read()
        return self.frames.pop(0)

    def seal(self, seal: Seal) -> None:
        """From the next frame on, each is sealed."""
        self._seal = seal

    def send(self, frame: bytes) -> None:
        """Queue a frame, and write what can be written now."""
        self._waiting += frame + self._seal.of(frame) if self._seal else frame
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
