"""Applies kept work to the project: all that was approved, or nothing of it.

A file that the user changed meanwhile is merged. Where that is not possible, nothing at all is written.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from belljar.audit import killswitch
from belljar.backends.contract import ChangedTree
from belljar.backends.hostile_files import open_beneath, write_at
from belljar.errors import UsageError
from belljar.sandbox.files.apply import link_beneath, status_beneath
from belljar.sandbox.files.changes import MEANWHILE, Change, Changes
from belljar.sandbox.files.copying import MOST_RECORDED, PathState, digest_of, identity, read_file
from belljar.sandbox.files.host_directory import open_real
from belljar.sandbox.files.journal import JournalStep, apply_all, finish_interrupted
from belljar.sandbox.kept.merging import MAX_MERGED, ThreeTexts, merge
from belljar.sandbox.kept.store import KeptWork, Row
from belljar.sandbox.record import recording

_BOTH = "it was changed on the host meanwhile, and both changes can't be merged"


@dataclass(frozen=True)
class ApplyOutcome:
    """What `apply` did."""

    applied: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    """Of those, the ones that the user had changed as well."""
    conflicts: tuple[tuple[str, str], ...] = ()
    """What can't be merged, each with the reason. Unless these were to be skipped, nothing was applied."""
    refused: tuple[tuple[str, str], ...] = ()
    """What needs another word, or may never come back."""
    failed: str = ""
    """Why nothing was applied, if it could not be written."""


@contextmanager
def judged(work: KeptWork) -> Iterator[Changes]:
    """The changes of kept work, judged by the rules of the host as it is now; the diff is against the kept files.

    Raises:
        UsageError: the project is not there, or the work was discarded.
    """
    if not os.path.isdir(os.path.join(work.path, "after")):
        raise UsageError(f"the work of {work.run} was discarded", hint="`belljar review` lists what is kept")
    if not os.path.isdir(work.project):
        raise UsageError(f"{work.project} is not there any more", hint=f"the files are in {work.path}/after")
    base, host = work.open("before"), open_real(work.project)
    try:
        listed = [_unjudged(row.change) for row in work.rows.values()]
        with Changes(
            ChangedTree(work.open("after"), layered=False),
            work.project,
            work.about["jar_path"],
            tuple(work.about["globs"]),
            since_ns=0,
            applied={},
            run=work.run,
            host_files=_Base(work, host),
            merges=True,
            listed=listed,
            base=base,
        ) as changes:
            yield changes
    finally:
        os.close(base)
        os.close(host)


def apply(
    work: KeptWork,
    paths: Collection[str] | None = None,
    *,
    protected: Collection[str] | None = (),
    ignored: bool = False,
    skip_conflicts: bool = False,
    exactly: bool = False,
) -> ApplyOutcome:
    """Apply the changes at these paths and beneath them, or all.

    Args:
        work: what was kept.
        paths: what to apply; all unless given.
        protected: paths of protected files that may be written; None for all of them.
        ignored: whether to write what git ignores.
        skip_conflicts: apply the rest if something can't be merged.
        exactly: leave out what is beneath these paths.

    Raises:
        UsageError: as `judged`; or a path is none of the changes.
        AuditError: it can't be recorded, so nothing was applied.
        KillSwitchError: the kill switch is on.
    """
    killswitch.check()
    finish_interrupted()
    with judged(work) as changes:
        plan = _Plan(work, changes, protected, ignored=ignored)
        if exactly and paths is not None:
            plan.decide([change for change in changes if change.path in paths])
        else:
            plan.decide(_chosen(changes, paths))
        conflicts = tuple(sorted(plan.conflicts.items()))
        refused = tuple(sorted(plan.refused.items()))
        if conflicts and not skip_conflicts:
            return ApplyOutcome(conflicts=conflicts, refused=refused)
        if plan.paths:
            told = [[path, plan.digests.get(path, "")] for path in plan.paths[:MOST_RECORDED]]
            left_out = {"not_listed": len(plan.paths) - len(told)} if len(plan.paths) > len(told) else {}
            any_protected = any(change.protected and change.path in plan.paths for change in changes)
            details: dict[str, Any] = {"count": len(plan.paths), "protected": any_protected, "paths": told, **left_out}
            recording.files("apply", run=work.run, directory=work.project, **details)
        try:
            left = apply_all(work.project, changes.roots[1], plan.steps)
        except OSError as error:
            return ApplyOutcome(refused=refused, failed=error.strerror or str(error))
        applied = tuple(sorted(path for path in plan.paths if path not in left))
        merged = tuple(sorted(plan.merged))
        _settle(work, changes, applied)
        return ApplyOutcome(applied, merged, conflicts, tuple(sorted({**plan.refused, **left}.items())))


def _settle(work: KeptWork, changes: Changes, applied: Collection[str]) -> None:
    done = {*work.state()["applied"], *applied}
    if done:
        left = [change for change in changes if not change.refusal and change.path not in done]
        left = [change for change in left if change.what != "directory"]
        work.set_state("partly applied" if left else "applied", applied=done)


def _unjudged(change: Change) -> Change:
    """The change as it was found; the host may judge it otherwise today."""
    if change.path == ".":
        return change  # it says that there was more than was looked at
    return Change(change.path, change.kind, change.what, change.mode)


def _chosen(changes: Changes, paths: Collection[str] | None) -> list[Change]:
    """The changes to apply. A directory comes with what is in it: by itself only if nothing is."""
    found = list(changes)
    parents = {above for change in found for above in _above(change.path)}
    if paths is None:
        return [change for change in found if change.what != "directory" or change.path not in parents]
    wanted = {path.rstrip("/") for path in paths}
    chosen = [change for change in found if change.path in wanted or wanted.intersection(_above(change.path))]
    known = {path for change in chosen for path in (change.path, *_above(change.path))}
    if unknown := sorted(wanted - known):
        raise UsageError(
            f"{unknown[0]}: the run changed no such path", hint=f"`belljar review {changes.run}` lists them"
        )
    return [change for change in chosen if change.what != "directory" or change.path not in parents]


def _above(path: str) -> list[str]:
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


class _Base:
    """The host's files as the run found them, for `Changes`."""

    def __init__(self, work: KeptWork, host: int) -> None:
        self._host = host
        self._sides: dict[str, PathState] = {}
        for path, row in work.rows.items():
            if row.before is not None and row.known:
                self._sides[path] = row.before
            self._sides.update(row.within)

    def changed(self, path: str, status: os.stat_result) -> bool | None:
        """Return True if the host's file, which has this status, is not what the run found."""
        side = self._sides.get(path)
        return side is None or not same(self._host, path, status, side)

    def before(self, path: str) -> tuple[int, ...] | None:
        """Inode, ctime and size that a file had; None if there was none, or if that is not known."""
        side = self._sides.get(path)
        return side.identity if side is not None and side.identity else None

    def content(self, _path: str) -> None:
        """Return None: the content is in the directory of the work."""


def same(root: int, path: str, status: os.stat_result, side: PathState) -> bool:
    """Return True if a file beneath `root`, which has this status, has the content of a side."""
    if side.identity and identity(status) == side.identity:
        return True
    if stat.S_ISLNK(status.st_mode):
        return side.what == "link" and link_beneath(root, path) == side.link
    if not stat.S_ISREG(status.st_mode) or side.what != "file" or side.size != status.st_size or not side.digest:
        return False
    try:
        descriptor = open_beneath(root, path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return digest_of(descriptor) == side.digest
    finally:
        os.close(descriptor)


@dataclass
class _Plan:
    """What is to be done, found out change by change."""

    work: KeptWork
    changes: Changes
    protected: Collection[str] | None
    ignored: bool = field(kw_only=True)
    steps: list[JournalStep] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)
    merged: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)

    def decide(self, chosen: list[Change]) -> None:
        """Decide each of them; deletions come first, so that other files may take their place."""
        deletions = [change for change in reversed(chosen) if change.kind == "deleted"]
        merges: list[tuple[Change, os.stat_result]] = []
        for change in [*deletions, *(change for change in chosen if change.kind != "deleted")]:
            row = self.work.rows[change.path]
            if why := self._refusal(change, row):
                self.refused[change.path] = why
                continue
            status = status_beneath(self.changes.roots[1], change.path)
            if self._is_there(row, status):
                self._add(change.path, row.after.digest if row.after is not None else "")
            elif change.meanwhile and status is not None:
                merges.append((change, status))
            elif status is None and row.before is not None and change.kind != "deleted":
                self.conflicts[change.path] = "it was deleted on the host meanwhile"
            else:
                self._take(change, row)
        self._merge(merges)
        self.paths.sort()

    def _refusal(self, change: Change, row: Row) -> str:
        allowed = (change.protected and (self.protected is None or change.path in self.protected)) or (
            change.ignored and self.ignored
        )
        if change.refusal and not allowed:
            return change.refusal
        if row.after is not None and row.after.missing:
            return f"its content was not kept: {row.after.missing}"
        return ""

    def _is_there(self, row: Row, status: os.stat_result | None) -> bool:
        """Return True if the host has it already, as after an earlier call."""
        change = row.change
        if change.kind == "deleted":
            return status is None
        if status is None:
            return False
        if change.what == "directory":
            return stat.S_ISDIR(status.st_mode)
        if row.after is None or not same(self.changes.roots[1], change.path, status, row.after):
            return False
        return change.what == "link" or stat.S_IMODE(status.st_mode) == change.mode & 0o777

    def _take(self, change: Change, row: Row) -> None:
        steps, why = self.changes.steps(change, protected=change.protected)
        if MEANWHILE in why:
            self.conflicts[change.path] = why
        elif why:
            self.refused[change.path] = why
        if not self.conflicts.get(change.path):
            self.steps += steps
        if not why:
            self._add(change.path, row.after.digest if row.after is not None else "")

    def _add(self, path: str, digest: str) -> None:
        self.paths.append(path)
        self.digests[path] = digest

    def _merge(self, waiting: list[tuple[Change, os.stat_result]]) -> None:
        base, after = self.work.open("before"), self.work.open("after")
        try:
            texts = [(change, status, self._texts(change, base, after)) for change, status in waiting]
        finally:
            os.close(base)
            os.close(after)
        done = merge([text for _change, _status, text in texts if text is not None])
        for change, status, text in texts:
            result = done.pop(0) if text is not None else None
            if result is None:
                self.conflicts[change.path] = _BOTH
                continue
            fill = _filler(result)
            self.steps.append(JournalStep(change.path, "file", status, change.mode & 0o777, fill))
            self._add(change.path, hashlib.sha256(result).hexdigest())
            self.merged.append(change.path)

    def _texts(self, change: Change, base: int, after: int) -> ThreeTexts | None:
        row = self.work.rows[change.path]
        if change.what != "file" or row.before is None or row.before.what != "file" or not row.known:
            return None
        roots = (base, self.changes.roots[1], after)
        before, ours, theirs = (read_file(root, change.path, MAX_MERGED) for root in roots)
        if before is None or ours is None or theirs is None:
            return None
        return ThreeTexts(before, ours, theirs)


def _filler(content: bytes) -> Callable[[int], None]:
    return lambda descriptor: write_at(descriptor, content, 0)


__all__ = ["ApplyOutcome", "apply", "judged"]
