"""`AsyncPool`, under asyncio and trio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import anyio
import pytest

from belljar import AsyncPool

pytestmark = [pytest.mark.backend("bubblewrap"), pytest.mark.anyio]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both event loops."""
    return str(request.param)


@pytest.fixture
async def pool(anyio_backend: str) -> AsyncIterator[AsyncPool]:
    async with AsyncPool(size=2) as made:
        yield made


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
    with anyio.fail_after(10):
        while (await pool.statistics()).running:
            await anyio.sleep(0.05)
