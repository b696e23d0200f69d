"""What belljar is doing while someone waits.

`Progress` is for what takes long by its nature: one line that changes on a terminal, a line for each step elsewhere.
`waiting` is for what is mostly over at once: it says nothing for two seconds, and nothing at all in a pipe.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

from belljar.cli.terminal.safe_text import visible
from belljar.cli.terminal.style import is_terminal

_REFRESH_SECONDS = 0.5
_PATIENCE_SECONDS = 2.0
_COUNTED_AT_ONCE = 10_000
_Item = TypeVar("_Item")


class Progress:
    """Call it with each step as it begins. Everything goes to standard error."""

    def __init__(self, what: str, *, quiet: bool = False, after_seconds: float = 0.0) -> None:
        self._what = what
        self._quiet = quiet
        self._after = after_seconds
        self._terminal = is_terminal(2)
        self._step = ""
        self._began = time.monotonic()
        self._done = threading.Event()
        self._writing = threading.Lock()
        self._thread: threading.Thread | None = None

    def __call__(self, step: str) -> None:
        """A step begins."""
        if step == self._step:
            return
        self._step = step
        if not self._quiet and not self._terminal:
            self._write(f"{self._line()}\n")

    def _line(self) -> str:
        return f"belljar: {visible(self._what)}: {visible(self._step)} ({time.monotonic() - self._began:.0f} s)"

    def _write(self, text: str) -> None:
        with self._writing:
            sys.stderr.write(text)
            sys.stderr.flush()

    def __enter__(self) -> Self:
        if self._terminal and not self._quiet:
            self._thread = threading.Thread(target=self._refresh, daemon=True)
            self._thread.start()
        return self

    def _refresh(self) -> None:
        while not self._done.wait(_REFRESH_SECONDS):
            if self._step and self.seconds >= self._after:
                self._write(f"\r\x1b[K{self._line()}")

    def __exit__(self, *_exception: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            if self.seconds >= self._after:
                self._write("\r\x1b[K")

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began


def waiting(what: str, step: str, *, shows: bool = False) -> Progress:
    """For a command that may take more than two seconds; `shows` if what it prints meanwhile tells that it goes on."""
    quiet = not is_terminal(2) or (shows and is_terminal(1))
    progress = Progress(what, quiet=quiet, after_seconds=_PATIENCE_SECONDS)
    progress(step)
    return progress


def counted(items: Iterable[_Item], progress: Progress, name: str) -> Iterator[_Item]:
    """The items, and how many there have been."""
    for number, item in enumerate(items):
        if number % _COUNTED_AT_ONCE == 0 and number:
            progress(f"{number:,} {name}")
        yield item
