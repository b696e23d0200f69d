"""One request and its response in HTTP/2, as they pass from one connection to the other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from h2.connection import H2Connection
from h2.events import Event

from belljar.egress.decide.credentials import Scrubber
from belljar.egress.protocols.http1_messages import Header
from belljar.egress.proxy.channel import Channel
from belljar.egress.proxy.relay.passing import ByteMeter
from belljar.egress.proxy.relay.request_check import Passage
from belljar.egress.proxy.time_slices import TimeSlices

Headers = list[Header]
_TURN_SECONDS = 0.001
_SMALLEST, _LARGE, _LARGEST = 128, 2 << 10, 16 << 10
"""Bytes that are parsed at once. They may hold a frame for each nine of them, while another run waits."""


class Http2Side:
    """One of the two connections: its channel and its protocol state."""

    __slots__ = ("_events", "_size", "channel", "h2", "unread")

    def __init__(self, channel: Channel, h2: H2Connection) -> None:
        self.channel = channel
        self.h2 = h2
        self.unread = b""
        """What has come, and was not looked at yet."""
        self._events: deque[Event] = deque()
        """What was parsed, and not handled yet: a header block of some bytes can name 64 KiB that are then searched."""
        self._size = _SMALLEST

    @property
    def has_more(self) -> bool:
        """Return True if something has come that was not handled yet."""
        return bool(self._events or self.unread)

    def take(self, handle: Callable[[Event], None]) -> None:
        """Handle what has come, for at most some milliseconds, and while what this side is to be sent goes out.

        Raises:
            ProtocolError: it is not HTTP/2.
        """
        largest = _LARGEST if TimeSlices.alone() else _LARGE
        self._size = min(self._size, largest)
        began = now = time.monotonic()
        while self.has_more and not self.channel.full and now - began < _TURN_SECONDS:
            if not self._events:
                piece, self.unread = self.unread[: self._size], self.unread[self._size :]
                self._events.extend(self.h2.receive_data(piece))
            while self._events and time.monotonic() - began < _TURN_SECONDS:
                handle(self._events.popleft())
            self.flush()
            before, now = now, time.monotonic()
            slow = now - before > _TURN_SECONDS / 2
            self._size = max(_SMALLEST, self._size // 4) if slow else min(largest, self._size * 2)

    def flush(self) -> None:
        """Send what the protocol has made ready."""
        data = self.h2.data_to_send()
        if data:
            self.channel.write(data)


class Half:
    """One direction of a stream: what has been received there and not been sent on here.

    What is received is acknowledged when it is sent on, so the sender's window bounds what is held.
    """

    __slots__ = ("_held", "_into", "_into_id", "_origin", "_origin_id", "_trailers", "done", "ended")

    def __init__(self, origin: Http2Side, origin_id: int, into: Http2Side, into_id: int) -> None:
        self._origin = origin
        self._origin_id = origin_id
        self._into = into
        self._into_id = into_id
        self._held: deque[tuple[bytes, int]] = deque()
        self._trailers: Headers | None = None
        self.ended = False
        self.done = False
        """Whether its end has been sent on."""

    def add(self, data: bytes, acknowledged: int) -> None:
        """Hold this, for which the sender is owed so much window."""
        self._held.append((data, acknowledged))

    def end(self, trailers: Headers | None = None) -> None:
        """Nothing more comes."""
        self.ended = True
        self._trailers = trailers

    def pump(self) -> None:
        """Send on as much as the other side's windows and its socket take."""
        into, h2 = self._into, self._into.h2
        while self._held and not into.channel.full:
            data, owed = self._held[0]
            room = min(h2.local_flow_control_window(self._into_id), h2.max_outbound_frame_size)
            if data and room <= 0:
                return
            if len(data) > room:
                self._held[0] = (data[room:], owed - room)
                h2.send_data(self._into_id, data[:room])
                self._acknowledge(room)
            else:
                self._held.popleft()
                last = not self._held and self.ended and self._trailers is None
                if data or last:
                    h2.send_data(self._into_id, data, end_stream=last)
                self.done = last
                self._acknowledge(owed)
            into.flush()
        if self._held or not self.ended or self.done:
            return
        self.done = True
        if self._trailers is not None:
            h2.send_headers(self._into_id, self._trailers, end_stream=True)
        else:
            h2.end_stream(self._into_id)

    def _acknowledge(self, count: int) -> None:
        if count > 0:
            self._origin.h2.acknowledge_received_data(count, self._origin_id)

    def drop(self) -> None:
        """Hold no more; the connection's window is given back."""
        for _data, owed in self._held:
            self._acknowledge(owed)
        self._held.clear()
        self.done = True


class Http2Stream:
    """A request that was sent on, and its response."""

    __slots__ = ("client_id", "passage", "request", "response", "scanner", "scrubber", "server_id")

    def __init__(self, client_id: int, server_id: int, passage: Passage, client: Http2Side, server: Http2Side) -> None:
        self.client_id = client_id
        self.server_id = server_id
        self.passage = passage
        self.request = Half(client, client_id, server, server_id)
        self.response = Half(server, server_id, client, client_id)
        self.scanner: ByteMeter | None = None
        self.scrubber = Scrubber(passage.reflected) if passage.reflected else None

    @property
    def done(self) -> bool:
        """Whether both directions have ended."""
        return self.request.done and self.response.done
