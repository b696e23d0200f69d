"""Writes many files into a directory of the host: all of them, or none.

New files are first written to a *stage*, a directory `.belljar-…` in the same file system: a full disk fails there, and
nothing has changed yet. Then each file is moved to its name, and what was there before is moved to the stage. Any error
moves everything back. A journal in the state directory names the stage and all steps before the first one is taken. If
the process is killed, the next call of `finish_interrupted` undoes what it had done.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from belljar.errors import UsageError
from belljar.guest.tree import remove_tree
from belljar.sandbox.files.apply import give_to_owner, make_directories, parent_of, status_beneath
from belljar.sandbox.files.host_directory import open_real
from belljar.state import private_directory, state_directory

_MEANWHILE = "it was changed on the host meanwhile"
_STAGE = ".belljar-"
_BESIDE = ".before-belljar"
"""Ending of the old file's name, if somebody has changed the new one before a killed `apply` could be undone."""


class StepRefusedError(OSError):
    """Raised by `JournalStep.fill` or `JournalStep.text` to leave a step out: its content must not be written."""


@dataclass(frozen=True)
class JournalStep:
    """One change of the host's directory."""

    path: str
    what: Literal["file", "link", "directory", "delete", "rmdir"]
    before: os.stat_result | None = None
    """Status of the host's file when the step was decided; None if there was no file."""
    mode: int = 0o644
    fill: Callable[[int], None] | None = None
    """Writes the content of a file to a descriptor."""
    text: Callable[[], str] | None = None
    """Returns what a link says."""


def apply_all(directory: str, root: int, steps: Sequence[JournalStep]) -> dict[str, str]:
    """Take all steps, in their order, beneath `root`, which is the directory of this path.

    Returns:
        Steps that were left out: why, by path.

    Raises:
        OSError: a step failed, or a file is not what it was when the step was decided. Nothing has changed.
    """
    if not steps:
        return {}
    with _locked() as journals:
        _finish_all(journals, directory)
        work = _Transaction(directory, root, journals)
        try:
            left_out = work.stage(steps)
            work.commit()
        except BaseException:
            work.roll_back()
            raise
        work.finish()
        return left_out


def finish_interrupted() -> list[str]:
    """Undo what a process that was killed had begun to apply. Return the directories in which that was done."""
    if not os.path.isdir(_place()) or not any(name.endswith((".json", ".done")) for name in os.listdir(_place())):
        return []
    with _locked() as journals:
        return _finish_all(journals)


def _place() -> str:
    return os.path.join(state_directory(), "journals")


@contextlib.contextmanager
def _locked() -> Iterator[str]:
    """The directory of journals, while no other process applies anything. The lock goes with its process."""
    journals = private_directory(_place())
    lock = os.open(os.path.join(journals, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield journals
    finally:
        os.close(lock)


def _finish_all(journals: str, directory: str = "") -> list[str]:
    """Finish every journal. One that can't be finished stays for the next call.

    Raises:
        OSError: that one is of `directory`.
    """
    undone = []
    for name in sorted(os.listdir(journals)):
        path = os.path.join(journals, name)
        if name.endswith((".json", ".done")):
            with open(path, encoding="ascii") as file:
                plan = json.load(file)
            try:
                _finish_one(plan, undo=name.endswith(".json"))
            except OSError as error:
                if plan["directory"] == directory:
                    raise OSError(error.errno, f"an earlier apply can't be undone: {error.strerror}") from error
                continue
            if name.endswith(".json"):
                undone.append(str(plan["directory"]))
            os.unlink(path)
        elif name != "lock":
            os.unlink(path)  # one that was being written
    return undone


def _finish_one(plan: dict[str, Any], *, undo: bool) -> None:
    if not os.path.isdir(plan["directory"]):
        return  # the project was removed, and its stage with it
    try:
        root = open_real(plan["directory"])
    except UsageError as error:
        raise OSError(errno.ELOOP, str(error)) from error
    try:
        if undo:
            _undo(root, plan)
        _remove_stages(root, plan)
    finally:
        os.close(root)


class _Transaction:
    """The steps of one call, in this process."""

    def __init__(self, directory: str, root: int, journals: str) -> None:
        self._root = root
        token = os.urandom(8).hex()
        self._journal = os.path.join(journals, f"{token}.json")
        self._plan: dict[str, Any] = {"directory": directory, "stages": [], "steps": []}
        self._name = f"{_STAGE}{token}"
        self._stages: dict[int, int] = {}
        """Descriptor of the stage, by device."""
        self._steps: list[tuple[JournalStep, int]] = []

    def stage(self, steps: Sequence[JournalStep]) -> dict[str, str]:
        """Write all new content to the stages, and the journal. Nothing of the host's has changed afterwards."""
        places = [_nearest(self._root, step.path) for step in steps]
        above: dict[int, str] = {}
        for place, status in places:
            if status.st_dev not in above:
                above[status.st_dev] = _top(self._root, place, status.st_dev)
        self._plan["stages"] = [f"{place}/{self._name}" if place else self._name for place in above.values()]
        self._write_journal()
        for device, stage in zip(above, self._plan["stages"], strict=True):
            parent, name = parent_of(self._root, stage)
            try:
                os.mkdir(name, 0o700, dir_fd=parent)
                self._stages[device] = os.open(
                    name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent
                )
            finally:
                os.close(parent)
        left_out: dict[str, str] = {}
        order = list(above)
        for step, (_place, owner) in zip(steps, places, strict=True):
            number = len(self._steps)
            try:
                staged = _staged(self._stages[owner.st_dev], f"new-{number}", step, owner)
            except StepRefusedError as why:
                left_out[step.path] = why.strerror or str(why)
                continue
            mode = stat.S_IMODE(step.before.st_mode) if step.before is not None else 0
            self._steps.append((step, self._stages[owner.st_dev]))
            self._plan["steps"].append([step.what, step.path, order.index(owner.st_dev), staged, mode])
        return left_out

    def commit(self) -> None:
        """Take the steps. From the journal's new name on, they hold."""
        self._plan["made"] = sorted(self._missing())
        self._write_journal()
        for number, (step, stage) in enumerate(self._steps):
            self._take(number, step, stage)
        os.rename(self._journal, self._journal.removesuffix(".json") + ".done")

    def _missing(self) -> Iterator[str]:
        """Directories that the steps make."""
        known: set[str] = set()
        for step, _stage in self._steps:
            if step.what in ("file", "link", "directory"):
                names = step.path.split("/")
                last = len(names) + (step.what == "directory")
                for depth in range(1, last):
                    path = "/".join(names[:depth])
                    if path not in known:
                        known.add(path)
                        status = status_beneath(self._root, path)
                        if status is None or not stat.S_ISDIR(status.st_mode):
                            yield path

    def _take(self, number: int, step: JournalStep, stage: int) -> None:
        if step.what == "directory":
            make_directories(self._root, step.path)
            return
        parent, name = parent_of(self._root, step.path, make=step.what in ("file", "link"))
        try:
            if step.what == "rmdir":
                os.rmdir(name, dir_fd=parent)
                return
            if step.before is not None:
                _move_aside(parent, name, stage, f"old-{number}", step.before, keep_name=step.what != "delete")
            if step.what != "delete":
                _place_new(stage, f"new-{number}", parent, name, replaces=step.before is not None)
        except OSError as error:
            raise OSError(error.errno, f"{step.path}: {error.strerror}") from error
        finally:
            os.close(parent)

    def roll_back(self) -> None:
        """Move everything back. The journal stays if that fails, for the next try."""
        self._close()
        if os.path.exists(self._journal):
            _undo(self._root, self._plan)
            _remove_stages(self._root, self._plan)
            os.unlink(self._journal)

    def finish(self) -> None:
        """Remove what was there before."""
        self._close()
        _remove_stages(self._root, self._plan)
        os.unlink(self._journal.removesuffix(".json") + ".done")

    def _close(self) -> None:
        for descriptor in self._stages.values():
            os.close(descriptor)
        self._stages.clear()

    def _write_journal(self) -> None:
        unfinished = f"{self._journal}.new"
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(unfinished, flags, 0o600), "w", encoding="ascii") as file:
            file.write(json.dumps(self._plan))
            file.flush()
            os.fsync(file.fileno())
        os.rename(unfinished, self._journal)


# --- one file ---


def _nearest(root: int, path: str) -> tuple[str, os.stat_result]:
    """The last directory on the way to a path that is there, and its status."""
    names = path.split("/")
    for depth in range(len(names) - 1, 0, -1):
        above = "/".join(names[:depth])
        status = status_beneath(root, above)
        if status is not None and stat.S_ISDIR(status.st_mode):
            return above, status
    return "", os.fstat(root)


def _top(root: int, path: str, device: int) -> str:
    """The highest directory above a path, or itself, that is on this device: no step removes it."""
    names = path.split("/") if path else []
    for depth in range(len(names)):
        status = os.fstat(root) if not depth else status_beneath(root, "/".join(names[:depth]))
        if status is not None and status.st_dev == device:
            return "/".join(names[:depth])
    return path


def _staged(stage: int, name: str, step: JournalStep, owner: os.stat_result) -> list[int]:
    """Write what a step brings to the stage. Return its identity, which is empty if the step brings nothing."""
    if step.what == "link":
        assert step.text is not None
        os.symlink(step.text(), name, dir_fd=stage)
    elif step.what == "file":
        assert step.fill is not None
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=stage)
        try:
            step.fill(descriptor)
            os.fchmod(descriptor, step.mode)
        except BaseException:
            os.unlink(name, dir_fd=stage)
            raise
        finally:
            os.close(descriptor)
    else:
        return []
    if os.geteuid() == 0:
        os.chown(name, owner.st_uid, owner.st_gid, dir_fd=stage, follow_symlinks=False)
    return _identity(os.lstat(name, dir_fd=stage))


def _identity(status: os.stat_result) -> list[int]:
    """What tells whether a file is the one that was staged, unchanged. Its ctime is not: names were given to it."""
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def _move_aside(parent: int, name: str, stage: int, aside: str, before: os.stat_result, *, keep_name: bool) -> None:
    """Give the old file a name in the stage. With `keep_name` it also keeps its own, until the new file replaces it."""
    if not keep_name or not _linked(parent, name, stage, aside):
        os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=stage)
    if not _same(os.lstat(aside, dir_fd=stage), before):
        raise OSError(errno.EBUSY, _MEANWHILE)


def _same(now: os.stat_result, before: os.stat_result) -> bool:
    """Return True if it is the same file with the same content. A new name changes its ctime, so that is left out."""
    known = (before.st_dev, before.st_ino, before.st_mode, before.st_size, before.st_mtime_ns)
    return known == (now.st_dev, now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns)


def _place_new(stage: int, new: str, parent: int, name: str, *, replaces: bool) -> None:
    if replaces:
        os.rename(new, name, src_dir_fd=stage, dst_dir_fd=parent)
        return
    try:  # fails if somebody made one of that name meanwhile
        if not _linked(stage, new, parent, name):
            os.rename(new, name, src_dir_fd=stage, dst_dir_fd=parent)
    except FileExistsError:
        raise OSError(errno.EEXIST, "it was made on the host meanwhile") from None


def _linked(source: int, name: str, target: int, other: str) -> bool:
    """Give a file another name. Return False if the file system, or its owner, does not allow that."""
    try:
        os.link(name, other, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        return False
    return True


# --- undoing ---


def _undo(root: int, plan: dict[str, Any]) -> None:
    """Undo the steps that were taken. A file `old-N` in the stage shows that step N was."""
    stages, made = plan["stages"], sorted(plan.get("made", []), reverse=True)
    is_made = set(made)
    for number, (what, path, stage, staged, mode) in reversed(list(enumerate(plan["steps"]))):
        if what == "rmdir":
            _make_again(root, path, mode)
        elif what != "directory":
            if path in is_made:  # a directory took the place of this file
                for directory in [one for one in made if one == path or one.startswith(f"{path}/")]:
                    _remove_directory(root, directory)
            _undo_file(root, path, stages[stage], number, staged)
    for path in made:
        _remove_directory(root, path)


def _undo_file(root: int, path: str, stage: str, number: int, staged: list[int]) -> None:
    """Bring back the old file, or remove the new one. What somebody has changed since then stays."""
    now, old = status_beneath(root, path), status_beneath(root, f"{stage}/old-{number}")
    is_ours = now is not None and _identity(now) == staged
    if old is None:
        if is_ours:
            parent, own = parent_of(root, path)
            try:
                os.unlink(own, dir_fd=parent)
            finally:
                os.close(parent)
        return
    is_theirs = now is not None and not is_ours and now.st_ino != old.st_ino
    source, name = parent_of(root, f"{stage}/old-{number}")
    try:
        parent, own = parent_of(root, path)
        try:
            os.rename(name, f"{own}{_BESIDE}" if is_theirs else own, src_dir_fd=source, dst_dir_fd=parent)
        finally:
            os.close(parent)
    finally:
        os.close(source)


def _remove_directory(root: int, path: str) -> None:
    with contextlib.suppress(OSError):
        parent, name = parent_of(root, path)
        try:
            os.rmdir(name, dir_fd=parent)
        finally:
            os.close(parent)


def _make_again(root: int, path: str, mode: int) -> None:
    parent, name = parent_of(root, path)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=parent)
            give_to_owner(parent, name)
            os.chmod(name, mode, dir_fd=parent)
    finally:
        os.close(parent)


def _remove_stages(root: int, plan: dict[str, Any]) -> None:
    for stage in plan["stages"]:
        if status_beneath(root, stage) is not None:
            parent, name = parent_of(root, stage)
            try:
                remove_tree(parent, name)
            finally:
                os.close(parent)


__all__ = ["JournalStep", "StepRefusedError", "apply_all", "finish_interrupted"]
