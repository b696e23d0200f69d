"""Events of many sockets: an epoll of our own beneath the loop's, which sees it as one descriptor.

uvloop ends the watch of a socket that was reset, even when there is still something to read from it; here a socket is
reported until it has been read to its end. And one turn of the loop serves many sockets.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_AT_ONCE = 64


class Poller:
    """Watches sockets for their channels."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[int], None]] = {}
        loop.add_reader(self._epoll.fileno(), self._ready)

    def watch(self, descriptor: int, wanted: int, ready: Callable[[int], None]) -> None:
        """Call `ready` with the events of this descriptor: those wanted, errors and its end always."""
        if descriptor in self._watched:
            self._epoll.modify(descriptor, wanted)
        else:
            self._epoll.register(descriptor, wanted)
        self._watched[descriptor] = ready

    def forget(self, descriptor: int) -> None:
        """Watch it no more; before it is closed."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _ready(self) -> None:
        watched = self._watched
        for descriptor, events in self._epoll.poll(0, _AT_ONCE):
            ready = watched.get(descriptor)
            if ready is not None:
                try:
                    ready(events)
                except Exception as error:  # noqa: BLE001 the other sockets of this turn are served all the same
                    self.loop.call_exception_handler({"message": "a connection", "exception": error})

    def close(self) -> None:
        """End."""
        self.loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
