"""What a run of any belljar process of this user prints, read from any other."""

from __future__ import annotations

import time
from binascii import a2b_base64
from collections.abc import Iterator
from typing import NamedTuple

from belljar.sandbox.record import remote

_PAUSE_SECONDS = 0.1


class Piece(NamedTuple):
    """Some of what a run printed: with tokens for secrets, else as it came, from an untrusted source."""

    stream: str
    """`stdout` or `stderr`."""
    part: int
    """The step of a session; 0 for any other run."""
    data: bytes


class LiveOutput:
    """The output of a run in progress, from its beginning."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.ended = False
        """Whether the run has ended, and all of its output has been read."""
        self.gone = False
        """Whether its process is gone, or has forgotten it: there may have been more."""
        self.forgotten = False
        """Whether some steps of a session are not there any more."""
        self._place: dict[str, list[int]] = {"stdout": [0, 0], "stderr": [0, 0]}

    def now(self, *, follows: bool = False) -> Iterator[Piece]:
        """What there is now and has not been read yet."""
        while True:
            answer = remote.output(self.run_id, self._place, follows=follows)
            if answer is None:
                self.gone = True
                return
            self._place, self.ended = answer["place"], answer["ended"]
            self.forgotten |= answer["lost"]
            for stream, part, data in answer["pieces"]:
                yield Piece(stream, part, a2b_base64(data))
            if not answer["more"]:
                return

    def follow(self) -> Iterator[Piece]:
        """The same, and what comes, until the run ends."""
        while True:
            yield from self.now(follows=True)
            if self.ended or self.gone:
                return
            time.sleep(_PAUSE_SECONDS)

    def offset(self, stream: str) -> tuple[int, int]:
        """How far a stream has been read: part, and byte in it."""
        part, offset = self._place[stream]
        return part, offset
