"""Looking into WebSocket frames (RFC 6455): canary tokens in what leaves, reflected secrets in what comes back.

Frames from a client are masked, and a message may come in several, so neither is seen in the bytes of the connection.
No extension is offered to the server where this is used: compressed frames end the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from belljar.egress.decide.encodings import Reflected, Scrubber, scrub
from belljar.egress.proxy.channel import Channel
from belljar.egress.proxy.relay.passing import ByteMeter
from belljar.egress.proxy.relay.tunnel import Tunnel

_FINAL, _RESERVED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F
_CONTROL = 8
_KNOWN = frozenset((0, 1, 2, 8, 9, 10))
_MOST_CONTROL = 125
_LONGEST_HEAD = 14


class BadFrameError(Exception):
    """The bytes are no WebSocket frame, or need an extension that was not negotiated."""


class FramePart(NamedTuple):
    """Part of a frame, not masked."""

    opcode: int
    payload: bytes
    final: bool
    """Whether the message ends with the frame."""
    ends: bool
    """Whether the frame ends with this part."""

    @property
    def is_control(self) -> bool:
        """Whether it is a ping, a pong or the end, which may stand between the frames of a message."""
        return self.opcode >= _CONTROL


class WebSocketFrames:
    """Reads the frames of one direction, wherever its chunks are cut."""

    def __init__(self) -> None:
        self._unread = b""
        self._opcode = 0
        self._final = False
        self._mask = b""
        self._left: int | None = None
        """What is still to come of a frame's payload; None between two frames."""

    def take(self, data: bytes) -> Iterator[FramePart]:
        """The parts that have come. Raises BadFrameError."""
        unread, at = self._unread + data, 0
        self._unread = b""
        while True:
            if self._left is None:
                size = self._head(unread[at : at + _LONGEST_HEAD])
                if not size:
                    self._unread = unread[at:]
                    return
                at += size
            assert self._left is not None
            payload = unread[at : at + self._left]
            at += len(payload)
            self._left -= len(payload)
            ends = self._left == 0
            if payload or ends:
                yield FramePart(self._opcode, self._unmasked(payload), self._final, ends)
            if not ends:
                return
            self._left = None

    def _head(self, unread: bytes) -> int:
        """Read the head of a frame and return its size, or nothing if it is not all there."""
        if len(unread) < 2:
            return 0
        first, second = unread[0], unread[1]
        length = second & _LENGTH
        more = {126: 2, 127: 8}.get(length, 0)
        size = 2 + more + (4 if second & _MASKED else 0)
        if first & _RESERVED or first & _OPCODE not in _KNOWN:
            raise BadFrameError("a frame of an extension")
        if len(unread) < size:
            return 0
        if more:
            length = int.from_bytes(unread[2 : 2 + more], "big")
        if length >> 63 or ((first & _OPCODE) >= _CONTROL and (length > _MOST_CONTROL or not first & _FINAL)):
            raise BadFrameError("a length that no frame has")
        self._opcode, self._final = first & _OPCODE, bool(first & _FINAL)
        self._mask = unread[size - 4 : size] if second & _MASKED else b""
        self._left = length
        return size

    def _unmasked(self, payload: bytes) -> bytes:
        if not self._mask or not payload:
            return payload
        mask = (self._mask * (len(payload) // 4 + 1))[: len(payload)]
        turn = len(payload) % 4
        self._mask = self._mask[turn:] + self._mask[:turn]
        return (int.from_bytes(payload, "big") ^ int.from_bytes(mask, "big")).to_bytes(len(payload), "big")


def frame(opcode: int, payload: bytes, *, final: bool) -> bytes:
    """A frame as servers send it."""
    first = opcode | (_FINAL if final else 0)
    if len(payload) < 126:
        return bytes((first, len(payload))) + payload
    if len(payload) < 1 << 16:
        return bytes((first, 126)) + len(payload).to_bytes(2, "big") + payload
    return bytes((first, 127)) + len(payload).to_bytes(8, "big") + payload


class ClientSearch:
    """Searches what a client sends: the payload of its messages, and of pings, apart from each other."""

    def __init__(self, messages: ByteMeter, controls: ByteMeter) -> None:
        self._frames = WebSocketFrames()
        self._messages = messages
        self._controls = controls

    def passes(self, data: bytes) -> bool:
        """Return True if this may be sent on. Raises BadFrameError."""
        messages: list[bytes] = []
        controls: list[bytes] = []
        for part in self._frames.take(data):
            (controls if part.is_control else messages).append(part.payload)
        # Together, since a search costs the same for one byte as for a thousand, and frames may hold one.
        return self._messages.clean(b"".join(messages)) and self._controls.clean(b"".join(controls))


class FrameScrubber:
    """Blots secrets out of what a server sends. A message may leave in more frames than it came in."""

    def __init__(self, reflected: Reflected) -> None:
        self._frames = WebSocketFrames()
        self._reflected = reflected
        self._scrubber = Scrubber(reflected)
        self._control: list[bytes] = []
        """The payload of a ping that has not ended."""
        self._held = 0
        """How much of the message that has not ended is held back."""
        self._begun = False
        """Whether a frame of the message has been sent on."""
        self._kind = 0

    def feed(self, data: bytes) -> bytes:
        """The frames that may be sent on. Raises BadFrameError.

        What came is searched together, and then cut into its frames again: a search costs the same for one byte as for
        a thousand, and frames may hold one.
        """
        parts = list(self._frames.take(data))
        messages = [part for part in parts if not part.is_control]
        ended = 1 + max((at for at, part in enumerate(messages) if part.final and part.ends), default=-1)
        payload = b""
        if ended:
            payload = (
                self._scrubber.feed(b"".join([part.payload for part in messages[:ended]])) + self._scrubber.finish()
            )
        payload += self._scrubber.feed(b"".join([part.payload for part in messages[ended:]]))
        controls = scrub(
            b"".join([*self._control, *(part.payload for part in parts if part.is_control)]), self._reflected
        )
        sent: list[bytes] = []
        of_messages = of_controls = 0
        for part in parts:
            if part.is_control:
                of_controls += self._send_control(part, controls, of_controls, sent)
            else:
                of_messages += self._send(part, payload, of_messages, sent)
        return b"".join(sent)

    def _send_control(self, part: FramePart, scrubbed: bytes, at: int, sent: list[bytes]) -> int:
        """Send a ping, a pong or the end once it is whole, and return how much that is of what was scrubbed."""
        self._control.append(part.payload)
        if not part.ends:
            return 0
        size = sum(map(len, self._control))
        self._control = []
        sent.append(frame(part.opcode, scrubbed[at : at + size], final=True))
        return size

    def _send(self, part: FramePart, scrubbed: bytes, at: int, sent: list[bytes]) -> int:
        """Send as much of a message as was scrubbed, and return how much that is."""
        if part.opcode:
            self._kind = part.opcode
        self._held += len(part.payload)
        payload = scrubbed[at : at + self._held]
        self._held -= len(payload)
        last = part.final and part.ends
        if payload or last:
            sent.append(frame(0 if self._begun else self._kind, payload, final=last))
            self._begun = not last
        return len(payload)


class WebSocketTunnel(Tunnel):
    """A tunnel whose frames are looked into, as far as there is something to look for."""

    def __init__(
        self,
        client: Channel,
        server: Channel,
        *,
        on_closed: Callable[[], None],
        meter: ByteMeter | None = None,
        watch: ClientSearch | None = None,
        reflected: Reflected | tuple[bytes, ...] = (),
    ) -> None:
        super().__init__(client, server, on_closed=on_closed, meter=meter)
        self._watch = watch
        self._scrubber = FrameScrubber(Reflected(reflected)) if reflected else None

    def _from_client(self, data: bytes) -> None:
        try:
            if self._watch is not None and not self._watch.passes(data):
                self.close()
                return
        except BadFrameError:
            self.close()
            return
        super()._from_client(data)

    def _from_server(self, data: bytes) -> None:
        if self._scrubber is not None:
            try:
                data = self._scrubber.feed(data)
            except BadFrameError:
                self.close()
                return
        if data:
            super()._from_server(data)
