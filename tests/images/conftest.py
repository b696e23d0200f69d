"""The image commands as people run them, and for tests with an engine the base image, built once through the cache."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from image_process import Call, call


@pytest.fixture
def image() -> Call:
    """Run `belljar image WORDS…`."""
    return call


@pytest.fixture(scope="session", params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, need_backend: Callable[[str], None]) -> str:
    """An engine that works here."""
    need_backend(request.param)
    return str(request.param)


@pytest.fixture(scope="session")
def base(engine: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The base image in the engine: what `image build --json` says of it."""
    done = call("build", "--engine", engine, "--json", BELLJAR_STATE_DIR=str(tmp_path_factory.mktemp("state")))
    assert done.code == 0, done.err
    found: dict[str, Any] = done.json
    return found
