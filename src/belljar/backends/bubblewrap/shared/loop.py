"""What a launcher and a stage wait for: descriptors that can be read, each with what it stands for.

As `selectors` has it, which takes a millisecond to import, here with what those two need and on Linux alone.
"""

from __future__ import annotations

import select

from belljar._startup.records import NamedTuple

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any


class Watched(NamedTuple):
    """One of them: what was given, its descriptor, and what it stands for."""

    what: Any
    fd: int
    data: Any


class Loop:
    """All that is waited for."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._watched: dict[int, Watched] = {}

    def register(self, what: Any, data: Any = None, events: int = select.EPOLLIN) -> None:
        """Wait for it, too. Raises KeyError if its descriptor is watched already, ValueError if it is closed."""
        descriptor = _descriptor(what)
        if descriptor < 0:
            raise ValueError("it is closed")
        if descriptor in self._watched:
            raise KeyError(f"{descriptor} is watched already")
        self._epoll.register(descriptor, events)
        self._watched[descriptor] = Watched(what, descriptor, data)

    def unregister(self, what: Any) -> None:
        """Wait for it no more, even if it is closed by now. Raises KeyError if it is not watched."""
        descriptor = _descriptor(what)
        if descriptor < 0:
            descriptor = next((fd for fd, watched in self._watched.items() if watched.what is what), -1)
        del self._watched[descriptor]
        try:
            self._epoll.unregister(descriptor)
        except OSError:
            pass  # closed: the kernel has forgotten it by itself

    def watches(self, watched: Watched) -> bool:
        """Whether it is still waited for: an earlier event of the same round may have ended that."""
        return self._watched.get(watched.fd) is watched

    def wait(self, seconds: float | None = None) -> list[Watched]:
        """Those of which there is something to read, or nothing left to come; none if the time is over first."""
        ready = self._epoll.poll(-1 if seconds is None else max(0.0, seconds), max(1, len(self._watched)))
        return [self._watched[descriptor] for descriptor, _events in ready if descriptor in self._watched]

    def close(self) -> None:
        """Wait for nothing more."""
        self._epoll.close()
        self._watched.clear()


def _descriptor(what: Any) -> int:
    descriptor: int = what if isinstance(what, int) else what.fileno()
    return descriptor
