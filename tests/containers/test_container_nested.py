"""A mount inside a directory that the code may write: the engine must not follow what the code puts in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from belljar import Sandbox
from belljar.errors import SandboxUnavailableError

REPLACE = {
    "the mount point's parent": "mv a old && mkdir a && ln -s /usr/bin a/b",
    "with a link to a directory of its own": "mv a old && ln -s old a",
    "with a file": "mv a old && mkdir a && echo > a/b",
}


@pytest.fixture(params=["docker", "podman"])
def jar(request: pytest.FixtureRequest, need_backend: Callable[[str], None], tmp_path: Path) -> Iterator[Sandbox]:
    need_backend(request.param)
    (tmp_path / "python3").write_text("#!/bin/sh\necho fake\n")
    (tmp_path / "python3").chmod(0o755)
    mounts = [{"path": "/workspace/a/b", "source": str(tmp_path), "rw": True, "cow": True}]
    with Sandbox({"fs": {"mounts": mounts}}, backend=request.param) as opened:
        yield opened


@pytest.mark.parametrize("script", REPLACE.values(), ids=REPLACE.keys())
def test_a_place_that_was_replaced_is_an_error(jar: Sandbox, script: str) -> None:
    """The next run does not start; once the place is free again, it does."""
    assert jar.exec(["sh", "-c", "test -e a/b/python3"]).ok
    moved = jar.exec(["sh", "-c", script])
    if not moved.ok:  # a directory with a mount in it can't be moved: that will do
        assert jar.exec(["test", "-e", "a/b/python3"]).ok
        return
    with pytest.raises(SandboxUnavailableError, match="place to mount on"):
        jar.exec(["true"])
    jar.files.remove("a")
    assert jar.exec(["sh", "-c", "test -e a/b/python3"]).ok


def test_no_second_run_beside_the_first(jar: Sandbox) -> None:
    """While code runs, it could be quicker than the check."""
    stream = jar.stream(argv=["sh", "-c", "echo up; exec sleep 600"])
    next(stream)
    with pytest.raises(SandboxUnavailableError, match="follow each other"):
        jar.exec(["true"])
    jar.kill()
    list(stream)
    assert jar.exec(["true"]).ok
