"""How the tests know that a run's processes are gone, without asking belljar: a pipe whose other end only they hold."""

from __future__ import annotations

import os
import select
from types import TracebackType
from typing import Self

PATIENCE_SECONDS = 30.0


class Lifeline:
    """The guest gets the reading end as its stdin. When the last process that has it is gone, the writing end knows.

    In a shell, a child in the background loses its stdin unless it is told to keep it: `sleep 600 <&0 &`.
    """

    def __init__(self) -> None:
        self.stdin, self._writer = os.pipe()

    def handed_over(self) -> None:
        """Close our copy of the reading end: from here on, only the guest's hold it."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def is_cut(self, seconds: float = PATIENCE_SECONDS) -> bool:
        """Wait until nobody holds the reading end any more; False if somebody still does."""
        self.handed_over()
        poll = select.poll()
        poll.register(self._writer, 0)  # errors are always reported, and nothing else is wanted
        return bool(poll.poll(seconds * 1000))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.handed_over()
        os.close(self._writer)
