"""Mounts beneath /tmp, which each run has anew: a project that lies there is shown at its own path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from belljar import Pool, Sandbox
from belljar.errors import PolicyError
from belljar.policy.load.resolve import from_mapping

pytestmark = pytest.mark.backend("bubblewrap")

HOW = {
    "read-only": {"rw": False},
    "copy on write": {"rw": True, "cow": True},
    "live": {"rw": True, "cow": False},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory of the host's, in which something is denied."""
    (tmp_path / "shown/below").mkdir(parents=True)
    (tmp_path / "shown/file").write_text("content\n")
    for name in (".env", "below/.env"):
        (tmp_path / "shown" / name).write_text("SECRET\n")
    (tmp_path / "beside").write_text("SECRET\n")
    return tmp_path / "shown"


@pytest.mark.parametrize("how", HOW)
def test_it_is_there_in_every_run(directory: Path, how: str) -> None:
    """Without what is denied and what lies beside it; what a run leaves in /tmp is gone, in the mount it is not."""
    place = "/tmp/a b/shown"
    mounts: list[dict[str, Any]] = [{"path": place, "source": str(directory), **HOW[how]}]
    policy = from_mapping({"fs": {"mounts": mounts, "workdir": place}, "on_degraded": "allow"})
    look = "cat file .env below/.env; ls -A ..; ls -A ../..; cat new ../new; echo new > new; echo new > ../new"
    with Sandbox(policy) as jar:
        first, second = (jar.run(look, language="bash") for _ in range(2))
    assert first.stdout == "content\nshown\na b\nhome\n"
    assert second.stdout == first.stdout + ("" if how == "read-only" else "new\n")
    assert (directory / "new").exists() == (how == "live")


def test_it_is_refused_where_it_can_not_be(directory: Path) -> None:
    """/tmp itself is the jar's, and a pool's jars are not made by bubblewrap."""
    with pytest.raises(PolicyError, match="/tmp is the jar's own"):
        from_mapping({"fs": {"mounts": [{"path": "/tmp", "source": str(directory)}]}})
    policy = from_mapping({"fs": {"mounts": [{"path": "/tmp/x", "source": str(directory)}]}})
    with pytest.raises(PolicyError, match="in a pool /tmp/x can't lie in another mount"), Pool(policy, size=1) as pool:
        pool.run("1")
