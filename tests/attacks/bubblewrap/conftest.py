"""What is about bubblewrap's own processes and mounts, and about no other backend."""

from __future__ import annotations

from collections.abc import Callable

import pytest


@pytest.fixture(scope="session")
def backend(need_backend: Callable[[str], None]) -> str:
    """Bubblewrap, whichever backends the other suites run on."""
    need_backend("bubblewrap")
    return "bubblewrap"
