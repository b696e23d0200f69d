"""One suite for every backend. A backend joins by its name in BACKENDS (tests/conftest.py); nothing here imports one.

What a host can't enforce, the backend's report says; a test of such a clause reads the report, and asks only for what
it promises. Time limits are far longer than anything takes on a slow machine: the suite also runs under emulation.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from belljar import Session

OpenSession = Callable[..., Session]
_SECONDS = float(os.environ.get("BELLJAR_TEST_SECONDS", "200"))


@pytest.fixture(autouse=True)
def no_test_waits_for_ever() -> Iterator[None]:
    """What hangs is a failure that says where, and the rest of the suite runs."""

    def give_up(_number: int, _frame: object) -> None:
        raise AssertionError(f"still not done after {_SECONDS:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty directory of the host's."""
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def as_root() -> bool:
    """Whether the tests were started by root."""
    return os.geteuid() == 0


@pytest.fixture
def open_session(backend: str) -> Iterator[OpenSession]:
    """Opens sessions on the backend under test, and closes each of them."""
    with ExitStack() as stack:

        def open_one(policy: Any = None, **options: Any) -> Session:
            options.setdefault("backend", backend)
            return stack.enter_context(Session(policy, **options))

        yield open_one


@pytest.fixture
def session(open_session: OpenSession) -> Session:
    """One with the default policy."""
    return open_session()
