"""Whether a session is in use, and for how long it was not: what says when it ends by itself."""

from __future__ import annotations

import threading
import time


class Clock:
    """A session's, whether its interpreter runs or not. Any thread may ask."""

    def __init__(self, *, idle_seconds: float, age_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._age_seconds = age_seconds
        self._lock = threading.Lock()
        self._users = 0
        self.begin()

    def begin(self) -> None:
        """The session is new, or is taken up again."""
        self._begun = self._used = time.monotonic()

    def enter(self) -> None:
        """A step begins, or something beside it; `leave` follows."""
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        """It is over."""
        with self._lock:
            self._users -= 1
            self._used = time.monotonic()

    def touch(self) -> None:
        """It was used for a moment."""
        self._used = time.monotonic()

    @property
    def busy(self) -> bool:
        """Whether anyone uses it now."""
        return self._users > 0

    @property
    def used(self) -> float:
        """When it was used last."""
        return self._used

    def idle_left(self) -> float:
        """For how many seconds more nobody has to use it."""
        with self._lock:
            since = time.monotonic() if self._users else self._used
        return max(0.0, since + self._idle_seconds - time.monotonic())

    def age_left(self) -> float:
        """How many seconds it has left, however busy it is."""
        return max(0.0, self._begun + self._age_seconds - time.monotonic())

    def over(self) -> str:
        """`old` or `idle` if it is to end now."""
        return "old" if not self.age_left() else "idle" if not self.idle_left() else ""


__all__ = ["Clock"]
