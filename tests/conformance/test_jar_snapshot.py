"""fs.snapshot: a mounted directory as it was when the jar was opened, whatever the host does to it later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jars import OpenJar, is_enforced, sh, told
from trees import fingerprint, plant

SECRET = "sentinel-secret"
KINDS = {"read-only": {}, "copy-on-write": {"rw": True, "cow": True}}


@pytest.fixture
def tree(project: Path) -> Path:
    """A small project with a secret in it."""
    return plant(project, {"plain": "old", "sub/plain": "old", "sub/.env": SECRET, ".ssh/id": SECRET})


def policy(tree: Path, how: dict[str, bool]) -> dict[str, Any]:
    """One mount of the tree, copied."""
    return {"fs": {"snapshot": True, "mounts": [{"path": "/data", "source": str(tree), **how}]}}


@pytest.mark.parametrize("how", KINDS.values(), ids=KINDS.keys())
class TestSnapshot:
    """Both kinds of mounts that show a directory of the host without writing to it."""

    def test_denied_names_are_enforced(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """The report promises it without a reservation, and they are not there."""
        jar = open_jar(policy(tree, how))
        assert is_enforced(jar, "fs.deny_globs")
        assert SECRET not in told(sh(jar, "cat /data/plain; find /data -type f -exec cat {} +"))

    def test_what_the_host_does_later_is_not_seen(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """New directories, moved ones, replaced files: the jar has its own."""
        jar = open_jar(policy(tree, how))
        assert told(sh(jar, "cat /data/plain")) == "old"
        plant(tree, {"new/.env": SECRET, "plain": "new"})
        (tree / "sub").rename(tree / "moved")
        assert told(sh(jar, "cat /data/plain /data/sub/plain; find /data")).startswith("oldold")
        assert SECRET not in sh(jar, "cat /data/new/.env /data/moved/.env /data/sub/.env; true").stdout

    def test_the_host_keeps_its_own(self, open_jar: OpenJar, tree: Path, how: dict[str, bool]) -> None:
        """Nothing that the code does reaches the directory."""
        before = fingerprint(tree)
        jar = open_jar(policy(tree, how))
        sh(jar, "echo changed > /data/plain; rm -rf /data/sub; echo more > /data/more")
        assert fingerprint(tree) == before


def test_changes_of_a_snapshot_come_back(open_jar: OpenJar, tree: Path) -> None:
    """The preset that refuses every shortfall works on a directory: change, look, apply."""
    jar = open_jar({"fs": {"snapshot": True}}, workspace=tree)
    told(sh(jar, "echo new > plain; mkdir d; echo x > d/x; rm sub/plain"))
    with jar.changes() as changes:
        found = {(change.path, change.kind) for change in changes}
        assert found == {("plain", "modified"), ("d", "added"), ("d/x", "added"), ("sub/plain", "deleted")}
        assert changes.apply().refused == ()
    assert (tree / "plain").read_text() == "new\n"
    assert (tree / "sub/.env").read_text() == SECRET


def test_a_directory_that_does_not_fit_is_refused(open_jar: OpenJar, tree: Path) -> None:
    """A copy is bounded by the quota that it is written to, and the error says which."""
    from belljar import SandboxUnavailableError

    (tree / "large").write_bytes(b"x" * (3 << 20))
    jar = open_jar({"fs": {"snapshot": True, "size_mb": 2}}, workspace=tree)
    with pytest.raises(SandboxUnavailableError, match=r"fs\.size_mb"):
        sh(jar, "true")
