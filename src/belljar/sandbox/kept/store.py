"""Keeps what a run changed in the state directory, until somebody applies or discards it, or it is old.

`changes/RUN/` holds `after/` and `before/`, two trees with the files of the changes as the jar and the host had them,
`manifest.json`, and `summary.json` for lists. Everything in `after/` is the guest's: names, links and content. Modes
are in the manifest alone. Other rooms may add files of their own to the directory. Objects of git's that could not be
taken in are in `commits/RUN-NUMBER` (see `repository/incoming.py`), and count as a part of the work.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from belljar.errors import UsageError
from belljar.sandbox.files.changes import Change, Changes
from belljar.sandbox.files.copying import Copier, PathState, Room
from belljar.sandbox.kept.git_base import Base, bases
from belljar.state import private_directory, state_directory

MAX_KEPT = 100
"""Runs whose work is kept; the oldest go."""
MAX_TOTAL_BYTES = 8 << 30
_EACH_FILE = 4096
"""Bytes that a file counts in that, besides its content: an empty one takes an inode."""
MAX_WORK_BYTES = 2 << 30
"""Bytes of one run's work."""
_SETTLED_SECONDS = 3600.0
"""Objects that belong to no work are removed after this time. Until then their run may be about to keep its work."""
_MOST_WITHIN = 100_000
"""Files of deleted directories that are remembered."""
_MANIFEST, _SUMMARY, _STATE = "manifest.json", "summary.json", "state.json"
_FORMAT = 1
State = Literal["pending", "applied", "partly applied", "discarded", "refused"]


@dataclass(frozen=True)
class Row:
    """One change, with what both sides have."""

    change: Change
    after: PathState | None = None
    before: PathState | None = None
    known: bool = True
    """Whether `before` is what the code saw. It is not if the host's file was changed while the code ran."""
    within: Mapping[str, PathState] = field(default_factory=dict)
    """The files of a directory that was deleted."""


class Summary:
    """What a list says of the kept work of one run."""

    def __init__(self, path: str, name: str = _SUMMARY) -> None:
        """Read it. Raises UsageError if it can't be read."""
        self.path = path
        self.run = os.path.basename(path)
        try:
            with open(os.path.join(path, name), encoding="ascii") as file:
                self.about: dict[str, Any] = json.load(file)
        except (OSError, ValueError) as error:
            raise UsageError(f"the work of {self.run} can't be read: {error}") from error

    @property
    def project(self) -> str:
        """The directory that it is work on."""
        return str(self.about["project"])

    @property
    def count(self) -> int:
        """How many changes there are."""
        return int(self.about["count"])

    @property
    def files(self) -> int:
        """How many of them are of files, links, or deleted directories."""
        return int(self.about["files"])

    def state(self) -> dict[str, Any]:
        """What became of it: `state`, `applied` (paths) and `why`."""
        try:
            with open(os.path.join(self.path, _STATE), encoding="ascii") as file:
                found = json.load(file)
        except (OSError, ValueError):
            found = {}
        return {"state": "pending", "applied": [], "why": "", **found}

    def set_state(self, state: State, *, applied: Iterable[str] = (), why: str = "") -> None:
        """Write down what became of it."""
        told = {"state": state, "applied": sorted(applied), "why": why, "when": time.time()}
        _write_json(os.path.join(self.path, _STATE), told)


class KeptWork(Summary):
    """The kept work of one run."""

    def __init__(self, path: str) -> None:
        """Read it. Raises UsageError if it can't be read."""
        super().__init__(path, _MANIFEST)
        self.rows = {row["change"]["path"]: _row(row) for row in self.about.pop("changes")}
        self.about |= _counts(row.change for row in self.rows.values())

    def open(self, side: Literal["after", "before"]) -> int:
        """One of the trees. The caller must close the descriptor."""
        return os.open(os.path.join(self.path, side), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def discard(self) -> None:
        """Remove the files. What they were called stays, until the work is old."""
        from belljar.sandbox.record import recording

        recording.files("discard", run=self.run, directory=self.project, count=len(self.rows))
        self.set_state("discarded", applied=self.state()["applied"])
        for side in ("after", "before"):
            shutil.rmtree(os.path.join(self.path, side), ignore_errors=True)
        for path in _commits(self.run):
            _remove(path)


def keep(run: str, changes: Changes, chosen: Iterable[Change], about: Mapping[str, Any]) -> KeptWork:
    """Copy these changes into the state directory, as far as there is room.

    Raises:
        OSError: nothing could be kept.
    """
    place = private_directory(os.path.join(state_directory(), "changes"))
    if os.path.isfile(os.path.join(place, run, _MANIFEST)):
        return KeptWork(os.path.join(place, run))  # whoever was asked about it interrupted that
    unfinished = os.path.join(place, f".{run}-{os.getpid()}")
    os.mkdir(unfinished, 0o700)
    try:
        for side in ("after", "before"):
            os.mkdir(os.path.join(unfinished, side), 0o700)
        rows = _Keeping(changes, unfinished).rows(sorted(chosen, key=lambda change: change.path))
        told = {"format": _FORMAT, "run": run, **changes.origin, "created": time.time(), **about}
        counts = _counts(row.change for row in rows)
        _write_json(os.path.join(unfinished, _SUMMARY), {**told, **counts})
        _write_json(os.path.join(unfinished, _MANIFEST), {**told, "changes": [_told(row) for row in rows]})
        os.rename(unfinished, os.path.join(place, run))
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    _forget_old(place)
    return KeptWork(os.path.join(place, run))


def _counts(changes: Iterable[Change]) -> dict[str, int]:
    found = list(changes)
    return {"count": len(found), "files": sum(one.what != "directory" or one.kind == "deleted" for one in found)}


def kept() -> Iterator[Summary]:
    """What is known of the work of all runs but for the changes, the newest first."""
    for name in sorted(_names(), reverse=True):
        path = os.path.join(_place(), name)
        with contextlib.suppress(UsageError):  # half removed
            yield Summary(path) if os.path.exists(os.path.join(path, _SUMMARY)) else KeptWork(path)


def find(name: str) -> KeptWork:
    """The work of the run of that name, or of the only one whose name begins or ends so.

    Raises:
        UsageError: there is none, or several fit.
    """
    names = _names()
    fits = [one for one in names if one == name] or [
        one for one in names if name and (one.startswith(name) or one.endswith(name))
    ]
    if len(fits) > 1:
        from belljar.audit.store import several

        raise several(name, fits)
    if not fits:
        raise UsageError(f"no work of a run {name!r} is kept", hint="`belljar review` lists what is")
    return KeptWork(os.path.join(_place(), fits[0]))


def forget_before(moment: float) -> tuple[list[str], int]:
    """Remove work that was kept before that time, in seconds. Return the paths that were removed, and their bytes.

    Raises:
        AuditError: it can't be recorded, so the rest stays.
    """
    from belljar.sandbox.record import recording

    removed, size = [], 0
    for path in [*(os.path.join(_place(), name) for name in (*_names(), *_old_names())), *_commits()]:
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_mtime < moment:
                recording.files("discard", run=os.path.basename(path).partition(".")[0], reason="it is old")
                size += _size(path)
                _remove(path)
                removed.append(path)
    return removed, size


# --- keeping ---


class _Keeping:
    """Copies changes: first what nobody could make again, then the rest, until the room is used up."""

    def __init__(self, changes: Changes, directory: str) -> None:
        self._changes = changes
        self._directory = directory

    def rows(self, chosen: list[Change]) -> list[Row]:
        """The rows of the manifest, in this order."""
        room = Room(MAX_WORK_BYTES)
        after: dict[str, PathState] = {}
        before: dict[str, PathState] = {}
        within: dict[str, dict[str, PathState]] = {}
        jar, host = self._changes.roots
        with (
            Copier(jar, os.path.join(self._directory, "after"), room, own=True) as new,
            Copier(host, os.path.join(self._directory, "before"), room) as old,
        ):
            present = [change for change in chosen if change.kind != "deleted" and change.what in ("file", "link")]
            after |= {one.path: new.copy(one.path) for one in present if not one.ignored}
            for change in chosen:
                status = None if change.kind == "added" else self._changes.host_status(change.path)
                if status is not None and not change.meanwhile and change.path != ".":
                    before[change.path] = old.copy(change.path, status)
            after |= {one.path: new.copy(one.path) for one in present if one.ignored}
            count = 0
            for change in chosen:
                if change.path in before and before[change.path].what == "directory" and _goes(change):
                    within[change.path] = found = {}
                    for path, status in self._beneath(change.path):
                        count += 1
                        if count > _MOST_WITHIN:
                            break
                        found[path] = old.copy(path, status)
            for path, base in self._bases(chosen).items():
                before[path] = old.write(path, base.content, base.mode)
        return [
            Row(
                one,
                after.get(one.path),
                before.get(one.path),
                not one.meanwhile or one.path in before,
                within.get(one.path, {}),
            )
            for one in chosen
        ]

    def _bases(self, chosen: list[Change]) -> dict[str, Base]:
        """Files as they were that somebody changed on the host during the run: as belljar or git remembers them."""
        both = [one.path for one in chosen if one.meanwhile and one.kind == "modified" and one.what == "file"]
        found = {path: Base(*content) for path in both if (content := self._changes.content_before(path)) is not None}
        known = {path: self._changes.identity_before(path) for path in both if path not in found}
        wanted = {path: identity for path, identity in known.items() if identity is not None}
        return {**found, **bases(str(self._changes.origin["project"]), wanted)}

    def _beneath(self, directory: str) -> Iterator[tuple[str, os.stat_result]]:
        """The host's files in a directory, but for those that are denied to the code."""
        from belljar.backends.hostile_files import open_beneath, walk

        root = open_beneath(self._changes.roots[1], directory)
        try:
            for entry in walk(root):
                path = f"{directory}/{entry.path}"
                if entry.kind != "directory" and (status := self._changes.host_status(path)) is not None:
                    yield path, status
        finally:
            os.close(root)


def _goes(change: Change) -> bool:
    """Return True if the host's directory at this path goes."""
    return change.kind == "deleted" or change.what != "directory"


def _told(row: Row) -> dict[str, Any]:
    within = {path: vars(side) for path, side in row.within.items()}
    sides = {"after": row.after and vars(row.after), "before": row.before and vars(row.before)}
    change = {name: getattr(row.change, name) for name in Change.__dataclass_fields__}
    return {"change": change, **sides, "known": row.known, "within": within}


def _row(told: dict[str, Any]) -> Row:
    def side(value: dict[str, Any] | None) -> PathState | None:
        return None if value is None else PathState(**{**value, "identity": tuple(value["identity"])})

    within = {
        path: PathState(**{**value, "identity": tuple(value["identity"])}) for path, value in told["within"].items()
    }
    return Row(Change(**told["change"]), side(told["after"]), side(told["before"]), told["known"], within)


def _write_json(path: str, value: object) -> None:
    unfinished = f"{path}.{os.getpid()}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with open(os.open(unfinished, flags, 0o600), "w", encoding="ascii") as file:
        file.write(json.dumps(value))  # `json.dump` is many times slower
        file.flush()
        os.fsync(file.fileno())
    os.rename(unfinished, path)


# --- what is old ---


def _place() -> str:
    return os.path.join(state_directory(), "changes")


def _names() -> list[str]:
    try:
        return [name for name in os.listdir(_place()) if os.path.isfile(os.path.join(_place(), name, _MANIFEST))]
    except FileNotFoundError:
        return []


def _old_names() -> list[str]:
    """Diffs of an older version, and what a process that was killed left."""
    known = set(_names())
    try:
        return [name for name in os.listdir(_place()) if name not in known and not _is_being_written(name)]
    except FileNotFoundError:
        return []


def _is_being_written(name: str) -> bool:
    return name.startswith(".") and os.path.exists(f"/proc/{name.rpartition('-')[2]}")


def _commits(run: str = "") -> list[str]:
    """Directories with objects of a run that could not be taken in; of all runs unless one is named."""
    place = os.path.join(state_directory(), "commits")
    try:
        return [os.path.join(place, name) for name in os.listdir(place) if not run or name.rpartition("-")[0] == run]
    except FileNotFoundError:
        return []


def _forget_old(place: str) -> None:
    """Keep the newest, in number and in bytes: names begin with the time. What was decided goes before the rest."""
    names = sorted(_names(), reverse=True)
    parts = {name: [os.path.join(place, name), *_commits(name)] for name in names}
    sizes = {name: sum(_size(path, each=_EACH_FILE) for path in paths) for name, paths in parts.items()}
    for name in sorted(_old_names(), reverse=True)[max(0, MAX_KEPT - len(names)) :]:
        _remove(os.path.join(place, name))
    for path in set(_commits()).difference(*parts.values()):
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_mtime < time.time() - _SETTLED_SECONDS:
                _remove(path)
    total = sum(sizes.values())
    order = sorted(names[1:], key=lambda name: (_is_open(os.path.join(place, name)), name))
    while order and (len(order) + 1 > MAX_KEPT or total > MAX_TOTAL_BYTES):
        name = order.pop(0)
        total -= sizes[name]
        for path in parts[name]:
            _remove(path)


def _is_open(path: str) -> bool:
    try:
        with open(os.path.join(path, _STATE), encoding="ascii") as file:
            return json.load(file).get("state") not in ("applied", "discarded")
    except (OSError, ValueError):
        return True


def _size(path: str, *, each: int = 0) -> int:
    """Bytes that the files beneath a path take on the disk, and so many more for each."""
    size = 0
    with contextlib.suppress(FileNotFoundError):  # somebody else removes it
        if not os.path.isdir(path) or os.path.islink(path):
            return os.lstat(path).st_size
        for above, directories, names in os.walk(path):
            for name in (*names, *directories):
                size += os.lstat(os.path.join(above, name)).st_blocks * 512 + each
    return size


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


__all__ = ["MAX_KEPT", "KeptWork", "PathState", "Row", "Summary", "find", "forget_before", "keep", "kept"]
