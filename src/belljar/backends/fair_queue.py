"""Who waits, by caller: each has a queue of its own, and they are served in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """A caller who waits for one thing is not behind the hundred of another. Its user holds a lock."""

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[T]] = {}
        """In the order of their turns."""
        self._many = 0

    def __len__(self) -> int:
        return self._many

    def add(self, caller: Hashable, waiter: T) -> None:
        """Behind what the caller waits for already; a caller who does not wait yet has its turn last."""
        self._queues.setdefault(caller, deque()).append(waiter)
        self._many += 1

    def next(self) -> T:
        """Whose turn it is; that caller's next one comes after all others'."""
        caller = next(iter(self._queues))
        queue = self._queues.pop(caller)
        waiter = queue.popleft()
        if queue:
            self._queues[caller] = queue
        self._many -= 1
        return waiter

    def remove(self, caller: Hashable, waiter: T) -> bool:
        """It waits no more; whether it did."""
        queue = self._queues.get(caller, deque())
        if waiter not in queue:
            return False
        queue.remove(waiter)
        if not queue:
            del self._queues[caller]
        self._many -= 1
        return True
