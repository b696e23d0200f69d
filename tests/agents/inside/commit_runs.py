"""Commits of an agent that is a shell script, reviewed in this process; and a user's git on the host."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from agent_runs import Home, git

from belljar.coding_agents.inside import Wanted, prepare
from belljar.coding_agents.review import Review
from belljar.sandbox.repository.incoming import Moved

COMMIT = "echo fixed > sums.py && git commit -qam fixed"


def refs(project: Path, *patterns: str) -> dict[str, str]:
    """Refs of the host by name, without the run's id in those of belljar's."""
    found = {}
    for line in git(project, "for-each-ref", "--format=%(refname) %(objectname)", *patterns).splitlines():
        name, one = line.split(" ")
        parts = name.split("/")
        found["/".join(["kept", *parts[3:]]) if parts[1] == "belljar" else name] = one
    return found


def sound(project: Path, *, status: str = "?? .env\n") -> None:
    """The repository is whole, its index as expected, and nothing of a half-done job is left."""
    git(project, "fsck", "--strict")
    assert git(project, "status", "--porcelain") == status
    directory = Path(project, git(project, "rev-parse", "--git-common-dir").strip())
    left = [*directory.glob("*.lock"), *directory.glob("index.*"), *directory.glob("objects/tmp_objdir-*")]
    assert left == []


def subjects(project: Path, ref: str) -> list[str]:
    """Subjects of the commits of a ref, the newest first."""
    return git(project, "log", "--format=%s", ref).splitlines()


@contextlib.contextmanager
def worked(home: Home, script: str, project: Path | None = None) -> Iterator[Review]:
    """Run a script as an agent in this process, which is quicker than `belljar agent`, and review what it did."""
    environment = home.environment()
    agent = prepare(Wanted(("sh", "-c", script), project=str(project or home.project), environ=environment))
    with agent.opened() as jar:
        result = jar.exec(agent.argv)
        assert result.ok, result.stderr
        with Review(jar, agent) as review:
            review.keep({"agent": "sh"}, result.run_id)
            yield review


def kept(project: Path) -> list[str]:
    """Refs of belljar's, the oldest first."""
    return git(project, "for-each-ref", "--format=%(refname)", "refs/belljar").split()


def apply_all(review: Review) -> Moved:
    """As `--apply all` does."""
    applied = review.apply(None, protected=())
    assert applied.refused == ()
    return review.move(applied.applied)


def on_host(directory: Path, script: str) -> None:
    """A user's commands, with an identity and no settings."""
    names = ("AUTHOR_NAME", "AUTHOR_EMAIL", "COMMITTER_NAME", "COMMITTER_EMAIL")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **{f"GIT_{name}": "h" for name in names}}
    subprocess.run(["sh", "-ec", script], cwd=directory, env=environment, check=True)
