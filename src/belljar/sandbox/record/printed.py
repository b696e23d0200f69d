"""What a run has printed so far, for others than its caller: with tokens, as everything that is logged.

Nothing is done for it while nobody asks. Used by the thread of `control.py` alone, which also ends runs: so little is
done at a time.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import TYPE_CHECKING, Any, Literal

from belljar.sandbox.record import redacting
from belljar.sandbox.record.stream import Handle

if TYPE_CHECKING:
    from belljar.policy.models import Policy
    from belljar.redaction import ByteStreamRedactor

STREAMS: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")
MOST_TOLD = 48 << 10
"""Bytes of one answer: packets of a socket have a bound."""
_MOST_READ = 256 << 10
"""Bytes that are looked through for secrets at a time: 20 ms."""


class _Cleaned:
    """One stream of one part, as far as it has been looked through."""

    def __init__(self, stream: ByteStreamRedactor) -> None:
        self._stream = stream
        self._seen = 0
        self._finished = False
        self.text = bytearray()

    def follow(self, raw: bytearray, *, over: bool) -> bool:
        """Look through the next piece. Whether that was all there is."""
        if piece := bytes(raw[self._seen : self._seen + _MOST_READ]):
            self._seen += len(piece)
            self.text += self._stream.feed(piece)
        if self._seen < len(raw):
            return False
        if over and not self._finished:
            self._finished = True
            self.text += self._stream.finish()
        return True


class Printed:
    """The output of one run. What is held back, because a secret might begin there, comes when more has come."""

    def __init__(self, run_id: str, handle: Handle, policy: Policy) -> None:
        self._handle = handle
        cleans = redacting.wanted(policy, "log") and not redacting.wanted(policy, "result")
        self._redactor = redacting.of_run(run_id, policy) if cleans else None
        self._cleaned: dict[tuple[int, str], _Cleaned] = {}

    def read(self, place: dict[str, list[int]], *, over: bool) -> dict[str, Any]:
        """What follows a place (part and byte of each stream), the place after it, and whether that was all.

        `over` says that the run has ended, so that no more will come.
        """
        parts = dict(self._handle.parts)
        told: dict[str, Any] = {"pieces": [], "place": {}, "more": False, "ended": over, "lost": False}
        room = MOST_TOLD
        for stream in STREAMS:
            part, offset = (int(number) for number in place[stream])
            told["lost"] |= bool(parts) and part < min(parts) and (part > 0 or min(parts) > 1)
            for number in sorted(number for number in parts if number >= part):
                offset = offset if number == part else 0
                last = number == max(parts)
                text, whole = self._text(number, stream, parts[number][stream], over=over or not last)
                piece = bytes(text[offset : offset + room])
                if piece:
                    told["pieces"].append([stream, number, b2a_base64(piece, newline=False).decode()])
                part, offset, room = number, offset + len(piece), room - len(piece)
                if not whole or offset < len(text):
                    told["more"] = True
                    break
            told["place"][stream] = [part, offset]
        told["ended"] = over and not told["more"]
        return told

    def _text(self, part: int, stream: str, raw: bytearray, *, over: bool) -> tuple[bytearray, bool]:
        """A part as it may be told, so far, and whether all of it has been looked through."""
        if self._redactor is None:
            return raw, True
        cleaned = self._cleaned.get((part, stream))
        if cleaned is None:
            for old in [key for key in self._cleaned if key[0] not in self._handle.parts]:
                del self._cleaned[old]
            cleaned = self._cleaned[part, stream] = _Cleaned(self._redactor.byte_stream())
        whole = cleaned.follow(raw, over=over)
        return cleaned.text, whole
