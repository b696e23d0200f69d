"""A pool that is asked for what is not so: one error that says what to give instead."""

from __future__ import annotations

from typing import Any

import pytest

from belljar import Pool
from belljar.errors import UsageError

pytestmark = pytest.mark.backend("bubblewrap")


@pytest.mark.parametrize(
    ("options", "why"),
    [({"size": 0}, "size is 0"), ({"size": "4"}, "size is '4'"), ({"preload": "json"}, "preload is a list of modules")],
)
def test_a_pool(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        Pool(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"codes": "pass"}, "a list of programs, not one"),
        ({"codes": ["pass"], "concurrency": -1}, "concurrency is -1"),
        ({"codes": ["pass"], "concurrency": "2"}, "concurrency is '2'"),
    ],
)
def test_a_map(options: dict[str, Any], why: str) -> None:
    """When it is asked for, not when the first result is."""
    with Pool(size=1) as pool, pytest.raises(UsageError, match=why):
        pool.map(**options)


@pytest.mark.parametrize("options", [{"code": None}, {"code": "1", "files": {"a": 3}}], ids=["code", "a file"])
def test_a_run(options: dict[str, Any]) -> None:
    with Pool(size=1) as pool:
        with pytest.raises(UsageError, match="are text or bytes"):
            pool.run(**options)
        assert pool.run("print(1)").stdout == "1\n"
