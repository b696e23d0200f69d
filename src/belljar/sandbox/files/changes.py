"""What runs changed in a copy-on-write workspace, read from outside, without touching the host's directory.

With overlayfs the upper layer *is* the list of changes: files are changed files, 0/0 devices are deletions. Where the
workspace had to be copied, the copy is compared. Everything in it was made by the guest: names, links, modes, sizes.
"""

from __future__ import annotations

import os
import stat
import time
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from belljar.backends.contract import ChangedTree
from belljar.backends.hostile_files import (
    MAX_DEPTH,
    MAX_ENTRIES,
    MAX_NAMES,
    bounds,
    data_ranges,
    either_data,
    leaves,
    open_beneath,
    walk,
)
from belljar.policy.globs import DenyGlobs
from belljar.policy.keys.units import counted
from belljar.sandbox.files.git_ignore import Ignored
from belljar.sandbox.files.git_settings import Repositories
from belljar.sandbox.files.host_directory import IN_REPOSITORY, HostDirectory, open_real
from belljar.sandbox.files.text_diff import MAX_DIFF_BYTES, as_text, unified
from belljar.sandbox.files.trusted_names import in_bytecode, plain_name

if TYPE_CHECKING:
    from typing import Any

    from belljar.sandbox.files.host_files import Known
    from belljar.sandbox.files.journal import JournalStep

MEANWHILE = "it was changed on the host meanwhile"
_OWN_GIT = "data of git does not come back as files; `belljar agent -- COMMAND` brings commits back"
NOT_SHOWN = "binary or large file, not shown\n"
CUT = "not shown: the diff is at its limit"
_NOT_SEARCHED = "not searched, since others took too long: all old lines, then all new ones\n"
MAX_DIFF = 32 << 20
"""Characters of a whole diff: the code may have written gigabytes, and they are ours while it is shown."""
_NOT_WHOLE = f"more than {MAX_ENTRIES} files, or {MAX_NAMES} characters of names: not all were looked at"
_MOST_SECONDS = 120.0
"""Seconds to look for changes. The code may have made a tree in which that takes hours: then the rest is left out."""
_MOST_READ = 512 << 20
"""Bytes read for one diff, of files whose difference is small or can't be shown."""
_MOST_DIFF_SECONDS, _MOST_SEARCH_SECONDS = 60.0, 20.0
"""Seconds to make one diff, and of those to search for the smallest one."""
_NEAR = 8
"""Directories kept open of each tree while changes are looked for."""
_PIECE = 1 << 20
_OPAQUE = "user.overlay.opaque"
_NOT_IN_GIT_DIFF = "git ignores it, so that `git diff` does not show it"
_Answer = TypeVar("_Answer")
Kind = Literal["added", "modified", "deleted", "mode"]


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs, relative to the workspace."""

    path: str
    kind: Kind
    what: str
    """`file`, `directory`, `link`, or `other` for what a workspace should not hold."""
    mode: int = 0
    refusal: str = ""
    """Why `apply` will not bring it back; empty if it will."""
    protected: bool = False
    """Whether that is only because a tool on the host would act on it: then `apply(protected=True)` brings it back."""
    ignored: bool = False
    """Whether that is only because the project's `.gitignore` has it: then `apply(ignored=True)` brings it back."""
    meanwhile: bool = False
    """Whether somebody changed it on the host since the jar was made."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What `apply` did, and what it would not do."""

    applied: tuple[str, ...]
    refused: tuple[tuple[str, str], ...]


class _DiffLimits:
    """How much more of a diff is made."""

    def __init__(self) -> None:
        self.room = MAX_DIFF
        self.read = _MOST_READ
        self.search_seconds = _MOST_SEARCH_SECONDS
        self._until = time.monotonic() + _MOST_DIFF_SECONDS

    def reached(self) -> str:
        """Which limit is reached, in words; empty if none is."""
        if self.room <= 0:
            return f"{MAX_DIFF >> 20} MiB of text"
        if self.read <= 0:
            return f"{_MOST_READ >> 20} MiB read"
        return f"{_MOST_DIFF_SECONDS:g} s" if time.monotonic() > self._until else ""


class Changes:
    """The difference between a workspace and the host's directory it was made from."""

    def __init__(
        self,
        changed: ChangedTree,
        source: str,
        jar_path: str,
        globs: tuple[str, ...],
        *,
        since_ns: int,
        applied: dict[str, int],
        run: str = "",
        host_files: Known | None = None,
        merges: bool = False,
        listed: Iterable[Change] | None = None,
        base: int | None = None,
    ) -> None:
        self._host_files = host_files
        """The host's files as they were before the jar was made; without them a file's time of change decides."""
        self._merges = merges
        """Whether the caller merges what both changed, so that it is not refused."""
        self._base = base
        """A directory with the files as they were before, for the diff; the host's own unless given."""
        self.origin = {"project": source, "jar_path": jar_path, "globs": list(globs)}
        """What the changes were made with, for someone who keeps them."""
        self._run = run
        """The last that may have made them, for the audit log."""
        self._host = HostDirectory(source)
        self._applied = applied
        """What an earlier `apply` wrote, and when: that is no change of someone else's."""
        self._changed = changed.descriptor
        self._untouched = changed.untouched
        self._whole = changed.whole
        self._source_path = source
        self._source = open_real(source)
        self._jar_path = jar_path
        self._globs = DenyGlobs(globs).within(source, jar_path)
        self._last_denied: tuple[str, int | None] = ("", None)
        self._last_above: tuple[str, int | None] | None = None
        self._absent: str | None = None
        """The directory that the host was last found not to have, while changes are looked for."""
        self._layered = changed.layered
        self._since_ns = since_ns
        self._until = time.monotonic() + _MOST_SECONDS
        self._near: dict[int, OrderedDict[str, int]] | None = None
        self._repositories = Repositories(self._is_anywhere)
        self._ignored = Ignored(self._source, source, self._host.git.excludes)
        self._own_repositories: dict[str, bool] = {}
        self._near = {self._changed: OrderedDict(), self._source: OrderedDict()}
        try:
            found = self._find() if listed is None else map(self._judge, listed)
            self._entries = tuple(sorted(found, key=lambda change: change.path))
        finally:
            self._forget_directories()

    def __iter__(self) -> Iterator[Change]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def run(self) -> str:
        """The last run that may have made them; empty if it is not known."""
        return self._run

    def identity_before(self, path: str) -> tuple[int, ...] | None:
        """Inode, ctime and size that a file of the host's had before the jar was made, if that is known."""
        return None if self._host_files is None else self._host_files.before(path)

    def content_before(self, path: str) -> tuple[bytes, int] | None:
        """Content and mode that a file of the host's had before the jar was made, if they were remembered."""
        return None if self._host_files is None else self._host_files.content(path)

    @property
    def roots(self) -> tuple[int, int]:
        """Descriptors of what the jar has and of the host's directory. They are open as long as this object is."""
        return self._changed, self._source

    def ignored_groups(self) -> list[str]:
        """What git ignores, as people read it: a file, or a whole directory with a count, as `build/ (12 files)`."""
        found: dict[str, int] = {}
        for change in self._entries:
            if change.ignored:
                names = change.path.split("/")
                above = ("/".join(names[:depth]) for depth in range(1, len(names)))
                top = next((path for path in above if self._ignored(path, is_directory=True)), None)
                is_directory = change.what == "directory" and change.kind != "deleted"
                if top is None and not is_directory:
                    found[change.path] = 1
                else:
                    found[f"{top or change.path}/"] = found.get(f"{top or change.path}/", 0) + (not is_directory)
        return [
            f"{path} ({counted(count, 'file')})" if path.endswith("/") else path
            for path, count in sorted(found.items())
        ]

    def close(self) -> None:
        """Close both directories."""
        os.close(self._changed)
        os.close(self._source)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- finding ---

    def _find(self) -> Iterator[Change]:
        """Every change. A directory of bytecode is one, whatever is in it."""
        told: set[str] = set()
        for change in self._differences():
            if not (bytecode := in_bytecode(change.path)):
                yield self._judge(change)
            elif bytecode not in told:
                told.add(bytecode)
                kind: Kind = "added" if self.host_status(bytecode) is None else "modified"
                whole = change if bytecode == change.path else Change(bytecode, kind, "directory")
                yield self._judge(whole)

    def _differences(self) -> Iterator[Change]:
        kept = set(self._untouched)
        slow = f"looking for changes took longer than {_MOST_SECONDS:g} s: not all were looked at"
        slow_change = Change(".", "modified", "directory", refusal=slow)
        directories = {"", *(path for path, kind in self._untouched.items() if kind == "directory")}
        within = bounds()
        for entry in walk(self._changed, own=True, within=within):
            kept.add(entry.path)
            if entry.kind == "directory":
                directories.add(entry.path)
            if time.monotonic() > self._until:
                yield slow_change
                return
            if entry.kind == "other" and self._is_whiteout(entry.path):
                if self.host_status(entry.path) is not None:
                    yield Change(entry.path, "deleted", self._host_kind(entry.path))
            elif change := self._compare(entry.path, entry.kind, entry.mode):
                yield change
            if entry.kind == "directory" and self._layered and self._is_opaque(entry.path):
                yield from self._emptied(entry.path)
        if within.cut or not self._whole:  # what was not looked at may be there: nothing is taken for deleted
            yield Change(".", "modified", "directory", refusal=_NOT_WHOLE)
            return
        if not self._layered:  # one deletion tells of a whole directory
            for entry in walk(self._source):
                if time.monotonic() > self._until:
                    yield slow_change
                    return
                if (
                    entry.path not in kept
                    and os.path.dirname(entry.path) in directories
                    and self.host_status(entry.path) is not None
                ):
                    yield Change(entry.path, "deleted", entry.kind)

    def _emptied(self, directory: str) -> Iterator[Change]:
        """The code removed a directory and made it anew: what the host still has there is deleted."""
        try:
            host = open_beneath(self._source, directory)
        except OSError:
            return
        try:
            for name in os.listdir(host):
                path = f"{directory}/{name}"
                if self._denied(path) is None and self._status(self._changed, path) is None:
                    yield Change(path, "deleted", self._host_kind(path))
        finally:
            os.close(host)

    def _compare(self, path: str, kind: str, mode: int) -> Change | None:
        before = self.host_status(path)
        if before is None:
            return Change(path, "added", kind, mode)
        if self._host_kind(path) != kind:
            return Change(path, "modified", kind, mode)
        if kind == "file" and not self._same_content(path):
            return Change(path, "modified", kind, mode)
        if kind == "link" and self._link(self._changed, path) != self._link(self._source, path):
            return Change(path, "modified", kind, mode)
        if kind == "file" and mode & 0o7777 != stat.S_IMODE(before.st_mode):
            return Change(path, "mode", kind, mode)
        return None

    def _judge(self, change: Change) -> Change:
        if change.refusal:
            return change
        judged = self._judged(change)
        if not self._newer(change.path):
            return judged
        return replace(judged, meanwhile=True, refusal=judged.refusal or ("" if self._merges else MEANWHILE))

    def _judged(self, change: Change) -> Change:
        if refusal := self._refusal(change):
            return replace(change, refusal=refusal)
        if refusal := self._acted_upon(change):
            return replace(change, refusal=refusal, protected=True)
        if self._ignored(change.path, is_directory=change.what == "directory"):
            return replace(change, refusal=_NOT_IN_GIT_DIFF, ignored=True)
        return change

    def _acted_upon(self, change: Change) -> str:
        """What the host's tools would do something with, by themselves."""
        is_directory = change.what == "directory"
        if why := self._host.acted_upon(change.path, is_directory=is_directory, kind=change.kind):
            return why
        if why := self._goes_with_it(change):
            return why
        if change.kind == "deleted":
            return ""
        if change.what == "link":
            why = self._host.link_acted_upon(change.path, self._link(self._changed, change.path) or "")
            return why or (IN_REPOSITORY if self._repositories.holds(change.path) else "")
        return IN_REPOSITORY if self._repositories.holds(change.path) else ""

    def _goes_with_it(self, change: Change) -> str:
        """Why a directory of the host's must not go by itself: for a file in it that must not.

        For a directory that git ignores, such as `node_modules`, a person is asked anyway.
        """
        if (change.what == "directory" and change.kind != "deleted") or self._host_kind(change.path) != "directory":
            return ""
        if self._ignored(change.path, is_directory=True):
            return ""
        try:
            directory = self._parent(self._source, change.path)
        except OSError:
            return ""
        try:
            for entry in walk(directory):
                path, is_directory = f"{change.path}/{entry.path}", entry.kind == "directory"
                if time.monotonic() > self._until:
                    return "it holds more than could be looked at in time"
                if not in_bytecode(path) and (
                    why := self._host.acted_upon(path, is_directory=is_directory, kind="deleted")
                ):
                    return f"{path} goes with it: {why}"
        finally:
            os.close(directory)
        return ""

    def _in_own_repository(self, path: str) -> bool:
        """Return True if a path is in a `.git` that is a repository of the host's already, not one of the jar's own."""
        if path.isascii() and "git" not in path.lower():
            return False
        names = path.split("/")
        for position, name in enumerate(names):
            if plain_name(name) == ".git":
                repository = "/".join(names[: position + 1])
                if repository not in self._own_repositories:
                    status = self.host_status(repository)
                    is_directory = status is not None and stat.S_ISDIR(status.st_mode)
                    head = self.host_status(f"{repository}/HEAD") if name == ".git" and is_directory else None
                    self._own_repositories[repository] = head is not None
                return self._own_repositories[repository]
        return False

    def _is_anywhere(self, path: str) -> bool:
        return self._status(self._changed, path) is not None or self.host_status(path) is not None

    def _refusal(self, change: Change) -> str:
        """What must not come back to the host."""
        if why := self._host.never(change.path):
            return why
        if self._in_own_repository(change.path):
            return _OWN_GIT
        if (rule := self._denied(change.path)) is not None:
            return f"its name is denied by fs.deny_globs[{rule}] {self._globs.patterns[rule]}"
        if change.kind != "deleted":
            if change.what == "other":
                return "it is a device, a pipe or a socket"
            if change.mode & (stat.S_ISUID | stat.S_ISGID) and change.what == "file":
                return "it has the setuid or setgid bit"
            target = self._link(self._changed, change.path) if change.what == "link" else None
            if target is not None and leaves(change.path, target):
                return f"it is a link that leads out of the workspace, to {target!r}"
        if change.what == "directory" and change.path.count("/") + 1 >= MAX_DEPTH:
            return f"it is {MAX_DEPTH} directories deep: what is in it was not looked at"
        return ""

    def _newer(self, path: str, status: os.stat_result | None = None) -> str:
        """Why a file of the host's is not what the code saw; empty if it is, or if there is none."""
        status = status or self.host_status(path)
        if status is None or stat.S_ISDIR(status.st_mode):
            return ""
        changed = None
        if path not in self._applied and self._host_files is not None:
            changed = self._host_files.changed(path, status)
        if changed is None:
            changed = status.st_ctime_ns > self._applied.get(path, self._since_ns)
        return MEANWHILE if changed else ""

    def _spared(self, path: str, status: os.stat_result) -> str:
        """Why a file in a directory that goes has to stay."""
        if self._denied(path) is not None:
            return "it is denied to the code"
        if why := self._host.state(path):
            return why
        return self._newer(path, status)

    def _judged_again(self, change: Change, content: str, *, protected: bool) -> str:
        """Why a link that is about to be written must not be: code that still runs may have made it another since."""
        if protected:
            return ""
        return self._host.link_acted_upon(change.path, content)

    def _denied(self, path: str) -> int | None:
        """Return the rule that denies a path. The last answer is kept: each path is asked for several times."""
        if self._last_denied[0] != path:
            self._last_denied = (path, self._denied_by(path))
        return self._last_denied[1]

    def _denied_by(self, path: str) -> int | None:
        """Return the rule for a path. A name at which no pattern ends is denied only with its directory."""
        directory, _, name = path.rpartition("/")
        if not self._globs.may_end_at(name):
            if self._last_above is None or self._last_above[0] != directory:
                self._last_above = (directory, self._rule(directory))
            return self._last_above[1]
        return self._rule(path)

    def _rule(self, path: str) -> int | None:
        return self._globs.denies(f"{self._source_path}/{path}", f"{self._jar_path}/{path}")

    # --- looking ---

    def _parent(self, root: int, directory: str) -> int:
        """A descriptor of a directory, for the caller to close.

        While changes are looked for, the last few are kept open, and a directory in one of them is opened from there:
        where the code made them 200 deep, to open each from the root takes a minute.
        """
        own = root == self._changed
        if self._near is None:
            return open_beneath(root, directory, own=own)
        near = self._near[root]
        if directory in near:
            near.move_to_end(directory)
            return os.dup(near[directory])
        above, _, name = directory.rpartition("/")
        if above in near:
            found = open_beneath(near[above], name, own=own)
            near.move_to_end(above)
        else:
            found = open_beneath(root, directory, own=own)
        near[directory] = os.dup(found)
        if len(near) > _NEAR:
            os.close(near.popitem(last=False)[1])
        return found

    def _forget_directories(self) -> None:
        for near in (self._near or {}).values():
            for descriptor in near.values():
                os.close(descriptor)
        self._near = self._absent = None

    def _status(self, root: int, path: str) -> os.stat_result | None:
        return self._asked(root, path, lambda name, parent: os.lstat(name, dir_fd=parent))

    def _link(self, root: int, path: str) -> str | None:
        return self._asked(root, path, lambda name, parent: os.readlink(name, dir_fd=parent))

    def _asked(self, root: int, path: str, ask: Callable[[str, int], _Answer]) -> _Answer | None:
        """What `ask` says of a name and the directory that it is in; None if there is no such path."""
        directory, _, name = path.rpartition("/")
        if root == self._source and directory == self._absent:
            return None
        try:
            parent = self._parent(root, directory)
        except OSError:
            if root == self._source and self._near is not None:
                self._absent = directory
            return None
        try:
            return ask(name, parent)
        except OSError:
            return None
        finally:
            os.close(parent)

    def host_status(self, path: str) -> os.stat_result | None:
        """What the host has there. To whoever reads the changes, what is denied is not there, by no name of its."""
        if self._denied(path) is not None:
            return None
        status = self._status(self._source, path)
        if status is not None and status.st_nlink > 1 and stat.S_ISREG(status.st_mode):
            return None if (status.st_dev, status.st_ino) in self._denied_files else status
        return status

    @cached_property
    def _denied_files(self) -> set[tuple[int, int]]:
        """Denied files by what they are: a hard link is another name of the same."""
        denied = [entry.path for entry in walk(self._source) if self._denied(entry.path) is not None]
        found = [self._status(self._source, path) for path in denied]
        return {(status.st_dev, status.st_ino) for status in found if status is not None}

    def _host_kind(self, path: str) -> str:
        status = self.host_status(path)
        if status is None:
            return "other"
        kinds = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
        return next((name for test, name in kinds if test(status.st_mode)), "other")

    def _is_whiteout(self, path: str) -> bool:
        status = self._status(self._changed, path)
        return self._layered and status is not None and stat.S_ISCHR(status.st_mode) and status.st_rdev == 0

    def _is_opaque(self, path: str) -> bool:
        try:
            descriptor = self._parent(self._changed, path)
        except OSError:
            return False
        try:
            return os.getxattr(descriptor, _OPAQUE) == b"y"
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def _same_content(self, path: str) -> bool:
        """Compared piece by piece: a file may be far larger than it looks, or than memory."""
        descriptors: list[int] = []
        try:
            descriptors.append(changed := self._file(self._changed, path))
            descriptors.append(source := self._file(self._source, path))
            size = os.fstat(changed).st_size
            if size != os.fstat(source).st_size:
                return False
            data = either_data(data_ranges(changed, size), data_ranges(source, size))
            return all(self._same_range(changed, source, start, end) for start, end in data)
        except OSError:
            return False
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _same_range(self, changed: int, source: int, start: int, end: int) -> bool:
        """Whether both have the same there. What takes too long to compare counts as changed."""
        return all(
            time.monotonic() < self._until
            and os.pread(changed, min(_PIECE, end - at), at) == os.pread(source, min(_PIECE, end - at), at)
            for at in range(start, end, _PIECE)
        )

    def _file(self, root: int, path: str) -> int:
        """A descriptor of a file, through no link."""
        directory, _, name = path.rpartition("/")
        parent = self._parent(root, directory)
        try:
            return open_beneath(parent, name, os.O_RDONLY, own=root == self._changed)
        finally:
            os.close(parent)

    def _bytes(self, root: int, path: str, most: int = MAX_DIFF_BYTES) -> bytes | None:
        """The beginning of a file's content; None if it is no file."""
        try:
            descriptor = self._file(root, path)
        except OSError:
            return None
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most)

    # --- showing and applying ---

    def diff(self, paths: Container[str] | None = None) -> str:
        """A unified diff, as `git diff` would print it, of all or of these paths.

        It is text from the code: escape it before a terminal sees it. Of more than fits, or than can be compared in
        time, files are only named, and the text says so at each of them.
        """
        texts: list[str] = []
        limits = _DiffLimits()
        for change in self._entries:
            if paths is None or change.path in paths:
                texts.append(self._diff_one(change, limits))
                limits.room -= len(texts[-1])
        return "".join(texts)

    def _diff_one(self, change: Change, limits: _DiffLimits) -> str:
        name = change.path if change.path.isprintable() else repr(change.path)
        head = f"diff --belljar a/{name} b/{name}\n{change.kind} {change.what}"
        head += f" ({change.refusal}: not applied)\n" if change.refusal else "\n"
        if change.kind == "mode":
            return head + f"new mode {change.mode:04o}\n"
        if change.what in ("directory", "other"):
            return head
        if why := limits.reached():
            return f"{head}{CUT} ({why})\n"
        source = self._source
        if self._base is not None and self._status(self._base, change.path) is not None:
            source = self._base
        before = self._text(source, change.path, limits) if change.kind != "added" else ""
        after = self._text(self._changed, change.path, limits) if change.kind != "deleted" else ""
        if before is None or after is None:
            return head + NOT_SHOWN
        old = "/dev/null" if change.kind == "added" else f"a/{name}"
        new = "/dev/null" if change.kind == "deleted" else f"b/{name}"
        if change.kind == "modified" and limits.search_seconds <= 0:
            return head + _NOT_SEARCHED + unified(before, after, old, new, search=False)
        started = time.monotonic()
        text = unified(before, after, old, new)
        limits.search_seconds -= time.monotonic() - started
        return head + text

    def _text(self, root: int, path: str, limits: _DiffLimits) -> str | None:
        if (target := self._link(root, path)) is not None:
            return f"link to {target}\n"
        status = self._status(root, path)
        if status is None or status.st_size > MAX_DIFF_BYTES:
            return None
        content = self._bytes(root, path)
        limits.read -= len(content or b"")
        return None if content is None else as_text(content)

    def apply(self, paths: Container[str] | None = None, *, protected: bool = False, ignored: bool = False) -> Applied:
        """Bring the changes back into the host's directory, all or those of these paths, but not the refused ones.

        `protected` brings back, too, what a tool on the host would act on; `ignored` what git ignores.

        Raises:
            AuditError: it can't be recorded, so nothing is brought back.
        """
        from belljar.sandbox.files.journal import apply_all
        from belljar.sandbox.record import recording

        wanted = [change for change in self._entries if paths is None or change.path in paths]
        deletions = [change for change in reversed(wanted) if change.kind == "deleted"]
        others = [change for change in wanted if change.kind != "deleted"]
        steps: list[JournalStep] = []
        refused: dict[str, str] = {}
        for change in [*deletions, *others]:
            asked = (change.protected and protected) or (change.ignored and ignored)
            why = "" if asked else change.refusal
            # A person may have taken an hour to say yes, and others worked on.
            why = why or self._refusal(change) or self._newer(change.path)
            if not why:
                more, why = self.steps(change, protected=change.protected and protected)
                steps += more
            if why:
                refused[change.path] = why
        chosen = [change.path for change in wanted if change.path not in refused]
        if wanted:
            details = {"count": len(wanted), "protected": protected, **self._recorded(chosen)}
            recording.files("apply", run=self._run, directory=self._source_path, **details)
        try:
            refused |= apply_all(self._source_path, self._source, steps)
        except OSError as error:
            refused |= dict.fromkeys(chosen, f"nothing was applied: {error.strerror or error}")
        applied = [path for path in chosen if path not in refused]
        for path in applied:
            if (now := self.host_status(path)) is not None:
                self._applied[path] = now.st_ctime_ns
        return Applied(tuple(sorted(applied)), tuple(sorted(refused.items())))

    def _recorded(self, paths: list[str]) -> dict[str, Any]:
        """The first paths for an audit record, each with a digest of its content, and how many there are besides."""
        from belljar.sandbox.files.copying import MOST_RECORDED, digest_beneath

        told = [[path, digest_beneath(self._changed, path)] for path in paths[:MOST_RECORDED]]
        return {"paths": told, **({"not_listed": len(paths) - len(told)} if len(paths) > len(told) else {})}

    def steps(self, change: Change, *, protected: bool) -> tuple[list[JournalStep], str]:
        """Steps that bring this change back, and why a part of it has to stay."""
        from belljar.sandbox.files.steps import steps_of

        again = partial(self._judged_again, change, protected=protected)
        try:
            return steps_of(change, self._changed, self._source, self._spared, again)
        except OSError as error:
            return [], error.strerror or str(error)
