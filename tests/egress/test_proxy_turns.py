"""Turns: whose work is done next in the proxy's only thread, and the ledger of what the host is told."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from belljar.egress.ca import Issuer, new_authority
from belljar.egress.decide.rules import Rules
from belljar.egress.decide.synthetic import Names
from belljar.egress.proxy.ledger import Ledger
from belljar.egress.proxy.run import ProxiedRun
from belljar.egress.proxy.time_slices import READ, Errand, Signal, TimeSlices
from belljar.egress.proxy.waiting import until_readable

STEP_SECONDS = 0.0002


def spend(seconds: float) -> None:
    """Use the processor."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def played(scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(scene())


def test_a_run_without_end_of_work_waits_for_another() -> None:
    """Between two steps of the neighbour's there is one turn of the hostile run's: a handful of its small steps."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        hostile, neighbour = TimeSlices(loop), TimeSlices(loop)
        steps = {"hostile": 0, "neighbour": 0}
        between: list[int] = []
        over = asyncio.Event()

        def work() -> None:
            spend(STEP_SECONDS)
            steps["hostile"] += 1
            hostile.soon(work)

        def answer() -> None:
            steps["neighbour"] += 1
            between.append(steps["hostile"])
            neighbour.soon(answer) if len(between) < 50 else over.set()

        for _connection in range(1000):
            hostile.soon(work)
        neighbour.soon(answer)
        await over.wait()
        most = max(later - earlier for earlier, later in pairwise(between))
        assert most <= 20, between  # 4 ms; a thousand wait
        hostile.close()
        neighbour.close()

    played(scene)


def test_a_run_whose_steps_are_long_rests_as_long() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        hostile, neighbour = TimeSlices(loop), TimeSlices(loop)
        done: list[str] = []
        over = asyncio.Event()

        def work() -> None:
            spend(0.03)
            done.append("hostile")
            hostile.soon(work)

        def answer(left: int) -> None:
            done.append("neighbour")
            neighbour.soon(answer, left - 1) if left else over.set()

        hostile.soon(work)
        loop.call_later(0.001, neighbour.soon, answer, 20)
        await over.wait()
        assert done.count("hostile") <= 2, done
        hostile.close()
        neighbour.close()

    played(scene)


def test_sockets_that_are_not_served_in_a_turn_are_served_next() -> None:
    async def scene() -> None:
        turns = TimeSlices(asyncio.get_running_loop())
        pairs = [socket.socketpair() for _ in range(150)]
        served: list[int] = []

        def ready(number: int) -> None:
            spend(STEP_SECONDS)
            served.append(number)
            if len(served) >= 450:
                over.set()

        over = asyncio.Event()
        for number, (ours, theirs) in enumerate(pairs):
            theirs.send(b"x")
            turns.watch(ours.fileno(), READ, lambda _events, number=number: ready(number))  # type: ignore[misc]
        await over.wait()
        assert set(served) == set(range(150))
        turns.close()
        for ours, theirs in pairs:
            ours.close()
            theirs.close()

    played(scene)


@pytest.mark.parametrize("late", [False, True], ids=["before its first step", "while it waits"])
def test_an_errand_that_is_cancelled_ends(late: bool) -> None:
    async def scene() -> None:
        turns = TimeSlices(asyncio.get_running_loop())
        ours, theirs = socket.socketpair()
        over = asyncio.Event()
        told: list[str] = []

        async def wait() -> None:
            try:
                await until_readable(ours, seconds=100)
            except asyncio.CancelledError:
                told.append("cancelled")
                raise

        errand = Errand(turns, wait(), over.set)
        if late:
            await asyncio.sleep(0.01)
        errand.cancel()
        await over.wait()
        assert told == (["cancelled"] if late else [])
        turns.close()
        ours.close()
        theirs.close()

    played(scene)


def test_what_waits_when_a_run_ends_is_done_all_the_same() -> None:
    """An errand that was cancelled has sockets to close, and somebody waits to hear that the run has ended."""

    async def scene() -> None:
        turns = TimeSlices(asyncio.get_running_loop())
        ours, theirs = socket.socketpair()
        over, told = asyncio.Event(), asyncio.Event()

        async def wait() -> None:
            await until_readable(ours, seconds=100)

        errand = Errand(turns, wait(), over.set)
        await asyncio.sleep(0.01)
        errand.cancel()
        turns.soon(told.set)
        turns.close()
        async with asyncio.timeout(5):
            await over.wait()
            await told.wait()
        ours.close()
        theirs.close()

    played(scene)


class Slow:
    """A connection whose end takes long."""

    def __init__(self, run: ProxiedRun, ended: list[Slow]) -> None:
        self._run, self._ended = run, ended
        run.add(self)

    def check(self, now: float) -> None: ...

    def close(self) -> None:
        spend(0.002)
        self._ended.append(self)
        self._run.remove(self)


def test_the_end_of_a_run_does_not_hold_up_another() -> None:
    """Its connections end in its turns, and nothing else of it is done before they have."""

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        ended: list[Slow] = []
        seen: list[int] = []
        late: list[int] = []
        over = asyncio.Event()
        ledger = Ledger(loop, lambda _events: None)
        issuer = Issuer(new_authority())
        run = ProxiedRun("a", Rules(), ledger=ledger, issuer=issuer, secrets={}, canaries=(), roots="", names=Names())
        for _connection in range(50):
            Slow(run, ended)
        neighbour = TimeSlices(loop)

        def look() -> None:
            seen.append(len(ended))
            if not over.is_set():
                neighbour.soon(look)

        look()
        run.end()
        run.turns.soon(lambda: late.append(len(ended)))
        run.when_empty(over.set)
        async with asyncio.timeout(30):
            await over.wait()
            run.let_go()
        await asyncio.sleep(0)
        assert len(ended) == 50
        assert max(after - before for before, after in pairwise(seen)) <= 2
        assert late in ([], [50])
        neighbour.close()

    played(scene)


def test_an_errand_waits_for_signals_and_futures() -> None:
    async def scene() -> None:
        loop = asyncio.get_running_loop()
        turns = TimeSlices(loop)
        signal, future, over = Signal(), loop.create_future(), asyncio.Event()
        got: list[object] = []

        async def wait() -> None:
            got.append(await signal)
            got.append(await future)
            got.append(await loop.create_task(asyncio.sleep(0, "task")))

        errand = Errand(turns, wait(), over.set)
        loop.call_later(0.01, signal.set, "signal")
        loop.call_later(0.02, future.set_result, "future")
        await over.wait()
        assert got == ["signal", "future", "task"]
        assert errand.over
        turns.close()

    played(scene)


def test_a_run_that_tells_very_much_delays_itself_alone() -> None:
    """At most 500 decisions are on their way, and the neighbour's is the next message but one."""

    async def scene() -> None:
        sent: list[list[list[Any]]] = []
        ledger = Ledger(asyncio.get_running_loop(), sent.append)
        hostile, neighbour = ledger.account(), ledger.account()
        for number in range(5000):
            hostile.tell(["hostile", number])
        assert hostile.crowded
        assert not neighbour.crowded
        written: list[str] = []
        hostile.when_written(1, lambda: written.append("hostile"))
        await asyncio.sleep(0)
        assert sum(map(len, sent)) == 500
        number = neighbour.tell(["neighbour", 0])
        neighbour.when_written(number, lambda: written.append("neighbour"))
        await asyncio.sleep(0)
        while "neighbour" not in written:
            ledger.answered()
        place = next(at for at, message in enumerate(sent) if message[0][0] == "neighbour")
        assert sum(map(len, sent[:place])) <= 750
        assert written == ["hostile", "neighbour"]
        hostile.flush()
        told = [event[1] for message in sent for event in message if event[0] == "hostile"]
        assert told == list(range(5000))

    played(scene)
