"""What the harness says while it works: one line a step, on stderr, with its seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

STARTED = time.monotonic()
HEARTBEAT_SECONDS = 15.0


class VmError(Exception):
    """The harness could not do its part; the command inside has no verdict."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message}\n\nhint: {hint}")


def say(text: str) -> None:
    print(f"vm: {text}", file=sys.stderr, flush=True)


@contextmanager
def step(what: str) -> Iterator[None]:
    """Says what begins, that it is still going on, and how long it took."""
    began = time.monotonic()
    over = threading.Event()

    def still_there() -> None:
        while not over.wait(HEARTBEAT_SECONDS):
            say(f"{what}: still at it after {time.monotonic() - began:.0f} s")

    say(f"{what} …")
    heartbeat = threading.Thread(target=still_there, daemon=True)
    heartbeat.start()
    try:
        yield
    finally:
        over.set()
        heartbeat.join()
    say(f"{what}: {time.monotonic() - began:.1f} s")
