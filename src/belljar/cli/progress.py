"""What belljar is doing while someone waits: one line that changes on a terminal, a line for each step elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from typing import Self

from belljar.cli.style import is_terminal
from belljar.cli.terminal import visible

_REFRESH_SECONDS = 0.5


class Progress:
    """Call it with each step as it begins. Everything goes to standard error."""

    def __init__(self, what: str, *, quiet: bool = False) -> None:
        self._what = what
        self._quiet = quiet
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
            if self._step:
                self._write(f"\r\x1b[K{self._line()}")

    def __exit__(self, *_exception: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            self._write("\r\x1b[K")

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began


def waiting(what: str, step: str) -> Progress:
    """For one step that may take seconds: told on a terminal only."""
    progress = Progress(what, quiet=not is_terminal(2))
    progress(step)
    return progress
