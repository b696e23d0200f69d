"""Which new commits hold files that must not come back by themselves: judged like the files of the work tree."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

from belljar.backends.hostile_files import leaves
from belljar.policy.globs import DenyGlobs
from belljar.sandbox.files.git_settings import Repositories
from belljar.sandbox.files.host_directory import IN_REPOSITORY, HostDirectory
from belljar.sandbox.repository.checking import Commit, Touched

_PLAIN = frozenset({0o100644, 0o100755, 0o120000, 0o160000})


@dataclass(frozen=True)
class Mark:
    """Why a commit needs a yes of its own."""

    commit: str
    path: str
    why: str
    protected: bool
    """Whether that is only because a tool on the host would act on the file: then `--apply-protected` is a yes."""


class CommitJudgement:
    """Judges paths of commits for one repository of the host's."""

    def __init__(self, top: str, jar_top: str, globs: tuple[str, ...], touched: Iterable[Touched]) -> None:
        self._top, self._jar_top = top, jar_top
        self._host = HostDirectory(top)
        self._globs = DenyGlobs(globs).within(top, jar_top)
        self._touched = tuple(touched)
        self._coming = {above for item in self._touched if item.mode for above in _with_parents(item.path)}
        self._repositories = Repositories(lambda path: path in self._coming or os.path.lexists(os.path.join(top, path)))

    def marks(self) -> list[Mark]:
        """Return every reason against a commit."""
        found = []
        for item in self._touched:
            if why := self._denied(item):
                found.append(Mark(item.commit, item.path, why, protected=False))
            elif why := self._acted_upon(item):
                found.append(Mark(item.commit, item.path, why, protected=True))
        return found

    def _denied(self, item: Touched) -> str:
        rule = self._globs.denies(f"{self._top}/{item.path}", f"{self._jar_top}/{item.path}")
        if rule is not None:
            return f"its name is denied by fs.deny_globs[{rule}] {self._globs.patterns[rule]}"
        if why := self._host.never(item.path):
            return why
        if item.mode and item.mode not in _PLAIN:
            return f"its mode is {item.mode:o}"
        if item.mode == 0o120000 and leaves(item.path, item.link):
            return f"it is a link that leads out of the repository, to {item.link!r}"
        return ""

    def _acted_upon(self, item: Touched) -> str:
        kind = "deleted" if not item.mode else "modified" if item.old_mode else "added"
        if why := self._host.acted_upon(item.path, is_directory=False, kind=kind):
            return why
        if item.mode == 0o120000 and (why := self._host.link_acted_upon(item.path, item.link)):
            return why
        if item.mode == 0o160000 and item.old_mode != 0o160000:
            return "it is a submodule: git would fetch another repository into it"
        return IN_REPOSITORY if item.mode and self._repositories.holds(item.path) else ""


def reachable(tip: str, commits: dict[str, Commit]) -> set[str]:
    """Return the new commits that a tip has in its history."""
    found: set[str] = set()
    left = [tip]
    while left:
        one = left.pop()
        if one in commits and one not in found:
            found.add(one)
            left += commits[one].parents
    return found


def _with_parents(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]
