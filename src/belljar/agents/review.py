"""What an agent changed, sorted by what a person decides: files, commits, protected and ignored files, the rest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Self

from belljar.agents.inside import Agent
from belljar.audit.state import private_directory, state_directory
from belljar.sandbox.changes import CUT, NOT_SHOWN, Applied, Change, Changes
from belljar.sandbox.repository.incoming import Moved, incoming
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
        self._project: Changes | None = None
        if any(mount.cow and mount.path == agent.project.place for mount in agent.policy.fs.mounts):
            self._project = self._stack.enter_context(jar.changes(agent.project.place))
        found = [change for change in self._project or () if change.path not in agent.repositories.links]
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

    def diff(self, paths: Collection[str] | None = None) -> str:
        """The diff of these paths, or of all. Text from the agent: escape it for a terminal."""
        if self._project is None:
            return ""
        shown = [change.path for change in (*self.files, *self.protected, *self.ignored, *self.refused)]
        return self._project.diff(set(shown) if paths is None else set(paths))

    def apply(self, files: Collection[str] | None, *, protected: Collection[str], ignored: bool = False) -> Applied:
        """Bring back these files (all of them if None), these protected ones, and ignored files if asked."""
        if self._project is None:
            return Applied((), ())
        done = [self._project.apply(self._plain if files is None else set(files))]
        if protected:
            done.append(self._project.apply(set(protected), protected=True))
        if ignored and self.ignored:
            done.append(self._project.apply({change.path for change in self.ignored}, ignored=True))
        applied = [path for one in done for path in one.applied]
        return Applied(tuple(sorted(applied)), tuple(sorted(path for one in done for path in one.refused)))

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


def _for_good(change: Change) -> bool:
    """Return True if nobody can bring the change back."""
    return bool(change.refusal) and not change.protected and not change.ignored
