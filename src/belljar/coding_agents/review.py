"""What an agent changed, sorted by what a person decides: files, commits, protected and ignored files, the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from typing import Any, Self

from belljar.coding_agents.inside import Agent
from belljar.sandbox.files.changes import Change, Changes
from belljar.sandbox.kept.applying import ApplyOutcome
from belljar.sandbox.kept.applying import apply as apply_work
from belljar.sandbox.kept.store import KeptWork, keep
from belljar.sandbox.record.stream import new_run_id
from belljar.sandbox.repository import kept_moves
from belljar.sandbox.repository.incoming import Moved, incoming
from belljar.sandbox.run.sandbox import Sandbox


class Review:
    """The changes of one run, open until it is decided what comes back."""

    def __init__(self, jar: Sandbox, agent: Agent) -> None:
        self._stack = contextlib.ExitStack()
        self.work: KeptWork | None = None
        """What is kept of the run; None before `keep`, and if there is nothing."""
        self._project: Changes | None = None
        self._links = agent.repositories.links
        """What belljar wrote into the jar in the place of `.git`: the host's own stays as it is."""
        if any(mount.cow and mount.path == agent.project.place for mount in agent.policy.fs.mounts):
            self._project = self._stack.enter_context(jar.changes(agent.project.place, merges=True))
        found = [change for change in self._project or () if change.path not in self._links]
        parents = {parent for change in found for parent in _parents(change.path)}
        shown = [
            change for change in found if change.what != "directory" or change.kind == "deleted" or _for_good(change)
        ]
        self.files = [change for change in shown if not change.refusal]
        self.protected = [change for change in shown if change.protected]
        self.ignored = [change for change in found if change.ignored]
        self.ignored_groups = self._project.ignored_groups() if self._project is not None else []
        self.refused = [change for change in shown if _for_good(change)]
        # A directory comes with what is in it: by itself only if it is empty.
        self._plain = {change.path for change in found if not change.refusal and change.path not in parents}
        self.commits = incoming(
            jar, agent.repositories, jar.last_run, globs=agent.policy.fs.deny_globs, jar_project=agent.project.place
        )
        """New commits. They are in the host's repository as `refs/belljar/RUN/…` by now, whatever is decided."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    @property
    def anything(self) -> bool:
        """Whether there is something to decide or to tell."""
        return bool(self.files or self.protected or self.ignored or self.refused or self.commits.anything)

    @property
    def shown(self) -> list[Change]:
        """All changes, with the directories that they are in."""
        return [change for change in self._project or () if change.path not in self._links]

    @property
    def where(self) -> str:
        """The project's directory."""
        return str(self._project.origin["project"]) if self._project is not None else ""

    def diff(self, paths: Collection[str] | None = None) -> str:
        """The diff of these paths, or of all. Text from the agent: escape it for a terminal."""
        if self._project is None:
            return ""
        shown = [change.path for change in (*self.files, *self.protected, *self.ignored, *self.refused)]
        return self._project.diff(set(shown) if paths is None else set(paths))

    def keep(self, about: Mapping[str, Any], run_id: str = "") -> None:
        """Copy the work into belljar's state directory, before anybody decides about it."""
        if self._project is not None and self.anything:
            self.work = keep(run_id or self._project.run or new_run_id(), self._project, self.shown, about)
            kept_moves.save(self.commits, self.work.path)

    def apply(
        self, files: Collection[str] | None, *, protected: Collection[str], ignored: bool = False
    ) -> ApplyOutcome:
        """Bring back these files (all of them if None), these protected ones, and ignored files if asked.

        All of it, or nothing: see `ApplyOutcome`. It must have been kept.
        """
        if self.work is None:
            return ApplyOutcome()
        wanted = {*(self._plain if files is None else files), *protected}
        wanted |= {change.path for change in self.ignored} if ignored else set()
        return apply_work(self.work, wanted, protected=protected, ignored=ignored, exactly=True)

    def move(
        self,
        applied: Collection[str],
        wanted: Collection[str] | None = None,
        *,
        protected: bool = False,
        although: Collection[str] = (),
    ) -> Moved:
        """Move branches after files were applied; see `Incoming.move`. A branch with a file that did not come stays."""
        changed = (*self.files, *self.protected, *self.ignored, *self.refused)
        held = {change.path for change in changed} - set(applied)
        return self.commits.move(wanted, held=held, protected=protected, although=although)


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _for_good(change: Change) -> bool:
    """Return True if nobody can bring the change back."""
    return bool(change.refusal) and not change.protected and not change.ignored
