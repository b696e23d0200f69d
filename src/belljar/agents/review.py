"""What an agent changed, sorted by what a person decides: files, data of git, protected and ignored files, the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Self

from belljar.agents.inside import Agent
from belljar.agents.repository import INSIDE
from belljar.policy.paths import WORKSPACE
from belljar.sandbox.changes import Applied, Change, Changes
from belljar.sandbox.kept.applying import Outcome
from belljar.sandbox.kept.applying import apply as apply_work
from belljar.sandbox.kept.store import Work, keep
from belljar.sandbox.running import new_run_id
from belljar.sandbox.sandbox import Sandbox


class Review:
    """The changes of one run, open until it is decided what comes back."""

    def __init__(self, jar: Sandbox, agent: Agent) -> None:
        self._stack = contextlib.ExitStack()
        self._worktree = agent.worktree
        self.work: Work | None = None
        """What is kept of the run; None before `keep`, and if there is nothing."""
        self._project: Changes | None = None
        self._repository: Changes | None = None
        if any(mount.cow and mount.path == WORKSPACE for mount in agent.policy.fs.mounts):
            self._project = self._stack.enter_context(jar.changes(WORKSPACE, merges=True))
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

    @property
    def shown(self) -> list[Change]:
        """All changes but git's own data, with the directories that they are in."""
        return [change for change in self._project or () if self._is_kept(change)]

    @property
    def where(self) -> str:
        """The project's directory."""
        return str(self._project.origin["project"]) if self._project is not None else ""

    def diff(self, paths: Collection[str] | None = None) -> str:
        """The diff of these paths, or of all but git's own data. Text from the agent: escape it for a terminal."""
        if self._project is None:
            return ""
        shown = [change.path for change in (*self.files, *self.protected, *self.ignored, *self.refused)]
        return self._project.diff(set(shown) if paths is None else set(paths))

    def keep(self, about: Mapping[str, Any], run_id: str = "") -> None:
        """Copy the work into belljar's state directory, before anybody decides about it."""
        if self._project is not None and self.anything:
            chosen = [change for change in self._project if self._is_kept(change)]
            self.work = keep(run_id or self._project.run or new_run_id(), self._project, chosen, about)

    def _is_kept(self, change: Change) -> bool:
        return not self._is_own_link(change) and not _in_git(change.path)

    def apply(
        self, files: Collection[str] | None, *, git: bool, protected: Collection[str], ignored: bool = False
    ) -> Outcome:
        """Bring back these files (all of them if None), these protected ones; git's data and ignored files if asked.

        All of it, or nothing: see `Outcome`. It must have been kept.
        """
        if self._project is None or self.work is None:
            return Outcome()
        wanted = self._plain - self._git if files is None else set(files)
        wanted |= {path for path in protected if not _in_git(path)}
        wanted |= {change.path for change in self.ignored} if ignored else set()
        done = apply_work(self.work, wanted, protected=protected, ignored=ignored, exactly=True)
        if done.conflicts or done.failed:
            return done
        for more in self._apply_git(git=git, protected={path for path in protected if _in_git(path)}):
            applied, refused = sorted((*done.applied, *more.applied)), sorted((*done.refused, *more.refused))
            done = replace(done, applied=tuple(applied), refused=tuple(refused))
        return done

    def _apply_git(self, *, git: bool, protected: set[str]) -> list[Applied]:
        assert self._project is not None
        done = [self._project.apply(self._git)] if git else []
        if protected:
            done.append(self._project.apply(protected, protected=True))
        if git and self._repository is not None:
            done.append(_data_only(self._repository))
        return done


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
