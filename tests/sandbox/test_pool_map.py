"""The threads of `Pool.map`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from belljar.sandbox.pool.pool_map import Batch
from belljar.sandbox.record.stream import Event, Handle, Stream

pytestmark = pytest.mark.backend("bubblewrap")

SECONDS = 20.0


def broken(message: str) -> Stream:
    """A run that comes to nothing."""

    def events() -> Iterator[Event]:
        raise ValueError(message)
        yield

    return Stream(Handle(), events())


def held(until: threading.Event) -> Stream:
    """A run that ends when it is told to; without a result."""

    def events() -> Iterator[Event]:
        assert until.wait(SECONDS)
        raise ValueError("held")
        yield

    return Stream(Handle(), events())


def threads() -> list[threading.Thread]:
    """Those of all maps."""
    return [thread for thread in threading.enumerate() if thread.name == "belljar-pool"]


def until(true: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_an_error_comes_in_its_turn() -> None:
    """And is the run's own."""
    batch = Batch([], 2, ordered=True)
    for number in range(3):
        batch.add(broken(str(number)))
    for number in range(3):
        batch.wait()
        with pytest.raises(ValueError, match=str(number)):
            batch.take()
    assert not batch
    batch.end()


def test_no_more_run_at_a_time_than_wanted() -> None:
    """However many there are; and those that nobody waits for any more are not begun."""
    go = threading.Event()
    batch = Batch([], 3, ordered=True)
    for _ in range(6):
        batch.add(held(go))
    until(lambda: len(threads()) == 3)
    assert batch.is_full
    go.set()
    batch.end()
    assert not threads()


def test_who_waits_when_the_rest_is_called_off_waits_no_more() -> None:
    """In another thread, as an asynchronous pool does: the run that it waits for is never begun."""
    batch = Batch([], 1, ordered=True)
    batch._workers = 0
    batch.add(broken("never"))
    waiter = threading.Thread(target=batch.wait)
    waiter.start()
    batch.end()
    waiter.join(SECONDS)
    assert not waiter.is_alive()


def test_threads_for_which_nothing_comes_end_by_themselves() -> None:
    """Nobody has to say that there is nothing more."""
    batch = Batch([], 2, ordered=False)
    batch.add(broken("one"))
    batch.wait()
    until(lambda: not threads())
    batch.add(broken("two"))  # and there is another when something comes
    until(lambda: sum(run.is_done for run in batch._pending) == 2)
    batch.end()


def test_a_program_that_leaves_a_map_where_it_is_ends() -> None:
    """Its threads do not keep it."""
    program = """
from belljar import Pool
pool = Pool(size=1)
results = pool.map(["print(1)"] * 9, concurrency=2)
print(next(results).stdout, end="", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
