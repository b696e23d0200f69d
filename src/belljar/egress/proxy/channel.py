"""One end of a connection: a socket that never blocks, plain or TLS; its user bounds what is queued for it.

Relays are callbacks, not coroutines: a small request passes in a handful of calls. Who writes looks whether it is
`full` and pauses the other end; `on_drained` says when to go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import struct
from collections.abc import Callable
from functools import cache

from belljar.egress.proxy.time_slices import READ, WRITE, TimeSlices
from belljar.guest.container.relay import break_off

CHUNK = 64 << 10
_HIGH_WATER = 16 << 10
"""More queued than this, and the other end is to be paused."""
_SMALL_CHUNK = 4 << 10
_MUCH = 2 << 20
"""When all channels together hold more than this for peers that do not read, only small chunks are read, and only for
who has read all before."""
_READS_AT_ONCE = 4
_LINGER_SECONDS = 3.0
_FLUSH_SECONDS = 600.0
"""How long a peer may take to read the last of what is queued for it."""
_FULL_RECORD = 16 << 10
"""What TLS carries in one record: less has been read to its end."""
_RESET = struct.pack("ii", 1, 0)


class _Held:
    """What all channels hold in their queues."""

    total = 0


def _ignore() -> None:
    pass


def _ignore_data(_data: bytes) -> None:
    pass


class Channel:
    """A connected socket. Its user sets the callbacks, then calls `start`."""

    __slots__ = (
        "_descriptor",
        "_ending",
        "_loop",
        "_queue",
        "_reading",
        "_timer",
        "_turns",
        "_watched",
        "_writing",
        "closed",
        "ended",
        "on_data",
        "on_drained",
        "on_end",
        "on_gone",
        "on_lost",
        "queued",
        "received",
        "sent",
        "sock",
        "tls",
    )

    def __init__(self, sock: socket.socket, turns: TimeSlices) -> None:
        self.sock = sock
        self._descriptor = sock.fileno()
        self._turns = turns
        self._loop = turns.loop
        self.tls = isinstance(sock, ssl.SSLSocket)
        self.on_data: Callable[[bytes], None] = _ignore_data
        self.on_end: Callable[[], None] = _ignore
        """The other side sends no more."""
        self.on_lost: Callable[[], None] = _ignore
        """Reset, or failed; the channel is closed already."""
        self.on_drained: Callable[[], None] = _ignore
        """All that was queued has been sent."""
        self.on_gone: Callable[[], None] = _ignore
        """The channel is closed, for whatever reason."""
        self.queued = 0
        self.received = 0
        self.sent = 0
        self.closed = False
        self.ended = False
        """Whether the other side has said that it sends no more."""
        self._queue: list[bytes] = []
        self._reading = False
        self._writing = False
        self._watched = 0
        """The events that the socket is watched for."""
        self._ending = ""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def full(self) -> bool:
        """Whether so much is queued that the other end is to be paused, until `on_drained`."""
        return self.queued > (_HIGH_WATER if _Held.total < _MUCH else 0)

    def start(self) -> None:
        """Begin, or go on, to read."""
        if self._reading or self.closed or self.ended:
            return
        self._reading = True
        self._watch()
        if self.tls and self.sock.pending():  # type: ignore[attr-defined]  # decrypted already: no event tells of it
            self._turns.soon(self._readable)

    def pause(self) -> None:
        """Read no more until `start`.

        The socket is watched on until it reports something: most pauses are over before it does.
        """
        self._reading = False

    def _watch(self) -> None:
        wanted = (READ if self._reading else 0) | (WRITE if self._writing else 0)
        if wanted == self._watched:
            return
        self._watched = wanted
        if wanted:
            self._turns.watch(self._descriptor, wanted, self._ready)
        else:
            self._turns.forget(self._descriptor)

    def _ready(self, events: int) -> None:
        if self._writing and events & ~READ:  # what is wrong with it is found by whoever tries
            self._writable()
        if self._reading and events & ~WRITE:
            self._readable()
        elif not self.closed:  # it was paused, and is now no longer watched for what nobody reads
            self._watch()

    def _readable(self) -> None:
        alone = self._turns.alone()
        small = _Held.total >= _MUCH or (self._turns.searches and not alone)
        size = _SMALL_CHUNK if small else CHUNK if alone else _FULL_RECORD
        for _read in range(_READS_AT_ONCE if self.tls and alone else 1):
            if not self._reading:
                return
            try:
                data = self.sock.recv(size)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except ssl.SSLEOFError:  # gone without a word: as the network would tell it
                data = b""
            except OSError:
                self._lose()
                return
            if not data:
                self._end()
                return
            self.received += len(data)
            try:
                self.on_data(data)
            except BaseException:  # a fault of ours: the connection ends, and the loop's handler tells of it
                self._lose()
                raise
            if len(data) < _FULL_RECORD:
                if self.tls and not self.closed and self.sock.pending():  # type: ignore[attr-defined]  # as in `start`
                    self._turns.soon(self._readable)
                return  # what follows, if anything does, wakes us again

    def _end(self) -> None:
        self.ended = True
        self.pause()
        if self._ending != "linger":
            self.on_end()
        elif not self._queue:
            self.close()

    def _lose(self) -> None:
        self.close()
        self.on_lost()

    def write(self, data: bytes) -> None:
        """Send this, at once as far as the socket takes it. After `finish` or `close` it is dropped."""
        if self.closed or self._ending or not data:
            return
        if not self._queue:
            data = self._send(data)
            if not data:
                return
        self._queue.append(data)
        self.queued += len(data)
        _Held.total += len(data)
        if not self._writing and not self.closed:
            self._writing = True
            self._watch()

    def _send(self, data: bytes) -> bytes:
        """Send what goes; what is left comes back (nothing when the channel broke: `on_lost` follows)."""
        view = data
        while view:
            try:
                count = self.sock.send(view)
            except (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return view
            except OSError:
                self._turns.soon(self._lose_if_open)
                return b""
            self.sent += count
            if count == len(view):
                return b""
            view = view[count:]
            if not self.tls:
                return view
        return b""

    def _lose_if_open(self) -> None:
        if not self.closed:
            self._lose()

    def _writable(self) -> None:
        data = self._queue[0] if len(self._queue) == 1 else b"".join(self._queue)
        rest = self._send(data)
        self._queue = [rest] if rest else []
        _Held.total -= self.queued - len(rest)
        self.queued = len(rest)
        if rest or self.closed:
            return
        self._writing = False
        self._watch()
        if self._ending:
            self._say_end()
        else:
            self.on_drained()

    def end(self) -> None:
        """Send no more: half-close, once all that is queued has gone."""
        self._begin_end("half")

    def finish(self) -> None:
        """Send what is queued, say the end, and close when the other side has read it (or is too slow)."""
        self._begin_end("linger")

    def _begin_end(self, how: str) -> None:
        if self.closed or self._ending in ("linger", how):
            return
        said = self._ending == "half" and not self._queue and not self.tls
        self._ending = how
        if how == "linger":
            self._timer = self._loop.call_later(_FLUSH_SECONDS, self.close)
            self.on_data, self.on_lost, self.on_drained = _ignore_data, _ignore, _ignore
        if not self._queue and not said:
            self._say_end()
        elif how == "linger" and said:
            self._linger()
        if how == "linger" and not self.closed:
            self.start()

    def _linger(self) -> None:
        """Wait for the other side's end, or it might lose what it has not read yet; but not for long."""
        if self.ended:
            self.close()
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self.close)

    def _say_end(self) -> None:
        if self.tls and self._ending == "half":  # OpenSSL has no half-closed connections: the end is said at the end
            return
        with contextlib.suppress(OSError, ValueError):
            if isinstance(self.sock, ssl.SSLSocket):
                _close_notify(self.sock)
            self.sock.shutdown(socket.SHUT_WR)
        if self._ending == "linger":
            self._linger()

    def reset(self) -> None:
        """Close so that the other side sees a reset."""
        if not self.closed:
            reset(self.sock)
            self.close()

    def close(self) -> None:
        """Close at once. No callback follows."""
        if self.closed:
            return
        self.closed = True
        self._reading = self._writing = False
        self._turns.forget(self._descriptor)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._queue = []
        _Held.total -= self.queued
        self.queued = 0
        self.sock.close()
        self.on_data, self.on_end, self.on_drained = _ignore_data, _ignore, _ignore
        gone, self.on_gone = self.on_gone, _ignore
        gone()


def _close_notify(sock: ssl.SSLSocket) -> None:
    """Tell the other side that this was all: without it a body without a length looks cut off."""
    held = sock._sslobj  # type: ignore[attr-defined]  # noqa: SLF001 `unwrap` of the socket forgets the session
    with contextlib.suppress(ssl.SSLError):
        held.shutdown()


def reset(sock: socket.socket) -> None:
    """Make the close that follows a reset."""
    with contextlib.suppress(OSError):
        if sock.family == socket.AF_UNIX:  # carried here: whoever did has to be told
            break_off(sock, _anything())
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)


@cache
def _anything() -> int:
    """A descriptor that means nothing to anybody."""
    return os.eventfd(0)
