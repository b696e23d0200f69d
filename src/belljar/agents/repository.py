"""A project that is a worktree of git's: its repository lies elsewhere on the host, and the jar gets a copy of it, too.

The `.git` of a worktree is a file that names a directory. Whoever brought the project could have written any name
there, so it counts only if that repository says the same from its side.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

INSIDE = "/repository.git"
"""Where the jar has the repository."""
_LONGEST = 4096


@dataclass(frozen=True)
class Worktree:
    """A worktree of a repository that lies elsewhere."""

    repository: str
    """The repository's own directory, which all of its worktrees share."""
    name: str

    @property
    def mount(self) -> dict[str, Any]:
        """Copy on write, as the project."""
        return {"path": INSIDE, "source": self.repository, "rw": True, "cow": True}

    @property
    def link(self) -> str:
        """What the jar's own `.git` says."""
        return f"gitdir: {INSIDE}/worktrees/{self.name}\n"

    def known_as(self, path: str) -> str:
        """What git calls a path of the repository: what belongs to this worktree is as its own `.git`."""
        return ".git/" + path.removeprefix(f"worktrees/{self.name}/")


def worktree_of(project: str) -> Worktree | None:
    """The worktree that the project is, if it is one."""
    link = os.path.join(os.path.realpath(project), ".git")
    if os.path.islink(link) or not os.path.isfile(link):
        return None
    text = _line(link)
    own = os.path.realpath(os.path.join(os.path.dirname(link), text.removeprefix("gitdir:").strip()))
    back = _line(os.path.join(own, "gitdir"))
    if not text.startswith("gitdir:") or os.path.realpath(os.path.join(own, back)) != link:
        return None
    repository = os.path.realpath(os.path.join(own, _line(os.path.join(own, "commondir"))))
    shape = all(os.path.exists(os.path.join(repository, part)) for part in ("HEAD", "objects", "refs"))
    if not shape or os.path.dirname(own) != os.path.join(repository, "worktrees"):
        return None
    return Worktree(repository, os.path.basename(own))


def _line(path: str) -> str:
    """The first line of a small file; empty if there is none."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read(_LONGEST).partition("\n")[0].rstrip("\r")
    except OSError:
        return ""
