"""What the launcher and the stage wait on: descriptors, and what becomes of those that close."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from belljar.backends.bubblewrap.shared.loop import Loop


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_what_can_be_read(loop: Loop) -> None:
    """By its descriptor or as an object; each comes with what it stands for."""
    ours, theirs = socket.socketpair()
    reader, writer = os.pipe()
    with ours, theirs:
        loop.register(ours, "socket")
        loop.register(reader, "pipe")
        assert loop.wait(0) == []
        theirs.send(b"1")
        assert [(watched.what, watched.fd, watched.data) for watched in loop.wait()] == [
            (ours, ours.fileno(), "socket")
        ]
        os.close(writer)
        assert {watched.data for watched in loop.wait()} == {"socket", "pipe"}
    os.close(reader)


def test_what_is_forgotten(loop: Loop) -> None:
    """Even when it is closed already, and also if the same round has an event of it."""
    ours, theirs = socket.socketpair()
    loop.register(ours)
    theirs.close()
    (watched,) = loop.wait()
    assert loop.watches(watched)
    ours.close()
    loop.unregister(ours)
    assert not loop.watches(watched)
    assert loop.wait(0) == []
    with pytest.raises(KeyError):
        loop.unregister(ours)
    with pytest.raises(ValueError, match="it is closed"):
        loop.register(ours)


def test_once(loop: Loop) -> None:
    """A descriptor stands for one thing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop.register(ours)
        with pytest.raises(KeyError, match="is watched already"):
            loop.register(ours.fileno())


def test_time(loop: Loop) -> None:
    """It waits as long as it is told to, and not at all for a moment that is past."""
    started = time.monotonic()
    assert loop.wait(0.02) == []
    assert time.monotonic() - started >= 0.02
    assert loop.wait(-1.0) == []
