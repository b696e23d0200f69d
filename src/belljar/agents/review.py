"""What an agent changed, sorted by what a person decides: files, data of git, protected and ignored files, the rest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Self

from belljar.agents.inside import Agent
from belljar.agents.repository import INSIDE
from belljar.audit.state import private_directory, state_directory
from belljar.sandbox.changes import CUT, NOT_SHOWN, Applied, Change, Changes
from belljar.sandbox.sandbox import Sandbox

MAX_KEPT = 100
"""How many diffs are kept; the oldest go."""


@dataclass(frozen=True)
class Kept:
    """Where diffs are, and how many files are not in them."""

    files: tuple[str, ...] = ()
    not_in_them: int = 0


class Review:
    """The changes of one run, open until it is decided what comes back."""

    def __init__(self, jar: Sandbox, agent: Agent) -> None:
        self._stack = contextlib.ExitStack()
        self._worktree = agent.worktree
        self._project: Changes | None = None
        self._repository: Changes | None = None
        if any(mount.cow and mount.path == agent.project.place for mount in agent.policy.fs.mounts):
            self._project = self._stack.enter_context(jar.changes(agent.project.place))
        if agent.worktree:
            self._repository = self._stack.enter_context(jar.changes(INSIDE, known_as=agent.worktree.known_as))
        found = [change for change in self._project or () if not self._is_own_link(change)]
        parents = {parent for change in found for parent in _parents(change.path)}
        shown = [
            change for change in found if change.what != "directory" or change.kind == "deleted" or _for_good(change)
        ]
        self.files = [change for change in shown if not change.refusal and not _in_git(change.path)]
        self.protected = [change for change in shown if change.protected and not _worktree_inside(change.path)]
        self.ignored = [change for change in found if change.ignored]
        self.ignored_groups = self._project.ignored_groups() if self._project is not None else []
        refused = [change for change in shown if _for_good(change)]
        refused += [change for change in shown if change.protected and _worktree_inside(change.path)]
        # A directory comes with what is in it: by itself only if it is empty.
        self._plain = {change.path for change in found if not change.refusal and change.path not in parents}
        self._git = {path for path in self._plain if _in_git(path)}
        self.git_count = sum(not change.refusal and _in_git(change.path) for change in shown)
        if agent.worktree and self._repository is not None:
            elsewhere = [change for change in self._repository if change.what != "directory"]
            self.git_count += sum(not change.refusal for change in elsewhere)
            refused += [
                replace(change, path=agent.worktree.known_as(change.path)) for change in elsewhere if change.refusal
            ]
        self.refused = list(dict.fromkeys(_worktree_inside(change.path) or change for change in refused))

    def _is_own_link(self, change: Change) -> bool:
        """The `.git` of a worktree, which belljar wrote into the jar: the host's own stays as it is."""
        return self._worktree is not None and change.path == ".git"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def anything(self) -> bool:
        """Whether there is something to decide or to tell."""
        return bool(self.files or self.protected or self.ignored or self.refused or self.git_count)

    def diff(self, paths: Collection[str] | None = None) -> str:
        """The diff of these paths, or of all but git's own data. Text from the agent: escape it for a terminal."""
        if self._project is None:
            return ""
        shown = [change.path for change in (*self.files, *self.protected, *self.ignored, *self.refused)]
        return self._project.diff(set(shown) if paths is None else set(paths))

    def apply(
        self, files: Collection[str] | None, *, git: bool, protected: Collection[str], ignored: bool = False
    ) -> Applied:
        """Bring back these files (all of them if None), these protected ones; git's data and ignored files if asked."""
        applied: list[str] = []
        refused: list[tuple[str, str]] = []
        for done in self._apply(files, git=git, protected=set(protected), ignored=ignored):
            applied += done.applied
            refused += done.refused
        return Applied(tuple(sorted(applied)), tuple(sorted(refused)))

    def _apply(self, files: Collection[str] | None, *, git: bool, protected: set[str], ignored: bool) -> list[Applied]:
        if self._project is None:
            return []
        wanted = self._plain - self._git if files is None else set(files)
        done = [self._project.apply(wanted | (self._git if git else set()))]
        if protected:
            done.append(self._project.apply(protected, protected=True))
        if ignored and self.ignored:
            done.append(self._project.apply({change.path for change in self.ignored}, ignored=True))
        if git and self._repository is not None:
            done.append(_data_only(self._repository))
        return done

    def keep(self, run_id: str, applied: Collection[str] = ()) -> Kept:
        """Write the diff of what was not applied into belljar's state directory, for later.

        Protected files have one of their own, and so have ignored ones: no command takes them together with the rest.
        """
        diffs = [
            self.diff({change.path for change in changes} - set(applied))
            for changes in (self.files, self.protected, self.ignored)
        ]
        names = (f"{run_id}.diff", f"{run_id}.protected.diff", f"{run_id}.ignored.diff")
        files = [_written(name, text) for name, text in zip(names, diffs, strict=True) if text]
        return Kept(tuple(files), sum(_not_shown(text) for text in diffs))


def _not_shown(diff: str) -> int:
    """How many files a diff only names."""
    return diff.count(f"\n{NOT_SHOWN}") + diff.count(f"\n{CUT}")


def _written(name: str, text: str) -> str:
    path = os.path.join(private_directory(os.path.join(state_directory(), "changes")), name)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(text.encode("utf-8", "surrogateescape"))
    _forget_old(os.path.dirname(path))
    return path


def _forget_old(directory: str) -> None:
    """Diffs do not pile up: names begin with the time, so the first are the oldest."""
    for name in sorted(os.listdir(directory))[:-MAX_KEPT]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory, name))


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _worktree_inside(path: str) -> Change | None:
    """A worktree that was made in the jar, as one change: what it consists of names paths of the jar's."""
    parts = path.split("/")
    if parts[:2] != [".git", "worktrees"] or len(parts) < 3:
        return None
    why = "it is a worktree of the jar's own: its branch comes back, and `git worktree add` has it checked out"
    return Change("/".join(parts[:3]), "added", "directory", refusal=why)


def _for_good(change: Change) -> bool:
    """Return True if nobody can bring the change back."""
    return bool(change.refusal) and not change.protected and not change.ignored


def _in_git(path: str) -> bool:
    return ".git" in path.split("/")


def _data_only(repository: Changes) -> Applied:
    """Git's data in a repository that lies elsewhere; what git would act on has no way back from there."""
    return repository.apply({change.path for change in repository if not change.refusal})
