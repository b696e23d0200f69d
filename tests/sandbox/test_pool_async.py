"""`AsyncPool`, under asyncio and trio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing

import anyio
import pytest

from belljar import AsyncPool
from belljar.errors import UsageError
from belljar.sandbox.record.events import Finished, Output

pytestmark = [pytest.mark.backend("bubblewrap"), pytest.mark.anyio]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops."""
    return str(request.param)


@pytest.fixture
async def pool(anyio_backend: str) -> AsyncIterator[AsyncPool]:
    async with AsyncPool(size=2) as made:
        yield made


async def nothing_runs(pool: AsyncPool) -> None:
    """Wait until it is so."""
    with anyio.fail_after(10):
        while (await pool.statistics()).running:
            await anyio.sleep(0.05)


async def test_many_at_once(pool: AsyncPool) -> None:
    """Each its own answer."""
    said: dict[int, str] = {}

    async def run(number: int) -> None:
        said[number] = (await pool.run(f"print({number})")).stdout

    async with anyio.create_task_group() as group:
        for number in range(8):
            group.start_soon(run, number)
    assert said == {number: f"{number}\n" for number in range(8)}
    assert (await pool.statistics()).runs == 8


async def test_cancelling_ends_the_run(pool: AsyncPool) -> None:
    """At once, and the pool goes on."""
    before = time.monotonic()
    with anyio.move_on_after(0.5) as scope:
        await pool.run("import time; time.sleep(60)")
    assert scope.cancelled_caught
    assert time.monotonic() - before < 10
    assert (await pool.run("print('on')")).stdout == "on\n"
    await nothing_runs(pool)


def ten() -> Iterator[str]:
    """The first of them takes longer than all others."""
    yield "import time; time.sleep(0.5); print(0)"
    yield from (f"print({number})" for number in range(1, 10))


async def ten_later() -> AsyncIterator[str]:
    """The same, one at a time."""
    for code in ten():
        await anyio.sleep(0)
        yield code


@pytest.mark.parametrize("codes", [ten, ten_later])
async def test_a_map_in_order(pool: AsyncPool, codes: Callable[[], Iterator[str] | AsyncIterator[str]]) -> None:
    """However long each takes, and wherever they come from."""
    said = [int(result.stdout) async for result in pool.map(codes(), concurrency=4)]
    assert said == list(range(10))


async def test_a_map_as_they_finish(pool: AsyncPool) -> None:
    """And no more is taken than twice as many as run at a time."""
    taken: list[str] = []
    codes = (taken.append(code) or code for code in ten())  # type: ignore[func-returns-value]
    async with aclosing(pool.map(codes, concurrency=2, ordered=False)) as results:
        said = [int((await anext(results)).stdout)]
        assert (said[0] != 0, len(taken)) == (True, 4)
        said += [int(result.stdout) async for result in results]
    assert sorted(said) == list(range(10))


@pytest.mark.parametrize("how", ["left", "cancelled"])
async def test_a_map_that_is_left_ends_its_runs(pool: AsyncPool, how: str) -> None:
    """Those that run, and those that wait."""
    before = time.monotonic()
    with anyio.move_on_after(10 if how == "left" else 0.5):
        async with aclosing(pool.map(["print(1)", *["import time; time.sleep(60)"] * 9], concurrency=3)) as results:
            async for result in results:
                assert result.stdout == "1\n"
                if how == "left":
                    break
    assert time.monotonic() - before < 10
    await nothing_runs(pool)


async def test_a_map_of_one_program(pool: AsyncPool) -> None:
    """Is a mistake, told at once."""
    with pytest.raises(UsageError, match="a list of programs"):
        pool.map("pass")


async def test_output_as_it_is_made(pool: AsyncPool) -> None:
    """To its end, or until the loop is left."""
    events = [event async for event in pool.stream("print('on')")]
    assert b"".join(event.data for event in events if isinstance(event, Output)) == b"on\n"
    assert isinstance(events[-1], Finished)
    async with aclosing(pool.stream("import time; print('on', flush=True); time.sleep(60)")) as running:
        async for _event in running:
            break
    await nothing_runs(pool)
