"""The home of an agent, kept from one call to the next: one for each project and agent, in the state directory.

    homes/KEY/about.json   which project and agent: written by belljar
    homes/KEY/lock         held while a home is chosen or replaced
    homes/KEY/home/tree    the agent's directories, such as `.claude`, which jars see copy on write
    homes/KEY/home/apart   files beside them, such as `.claude.json`, which belljar writes into each jar
    homes/KEY/old-N        a home that was replaced while a jar still shows it

A jar never writes here. When its run ends, its changes and the newest home become a new directory, which takes the
place of the old one by rename. A live mount would need no copying, but nothing could bound what is written there, a run
that is killed would have changed it already, and two runs would see each other's half-written files.

What an agent wrote is hostile. Later jars of the same project see it, and the host never reads it as settings. Only
regular files and links that stay inside are taken, with new modes and no attributes. Files with denied names, which are
where programs keep credentials, and files that hold the key of the model are left out.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from belljar.backends.contract import ChangedTree
from belljar.backends.hostile_files import bounds
from belljar.coding_agents.home_store import (
    MOST_FILE_BYTES,
    File,
    close,
    forget_least_used,
    is_same,
    listed,
    locked,
    make_directory,
    place,
    read,
    replace,
    restore,
    sweep,
    write,
)
from belljar.guest import tree

MOST_BYTES = 256 << 20
"""Of one home. The files that were changed last are kept."""
MOST_FILES = 20_000
_OPAQUE = "user.overlay.opaque"


@dataclass(frozen=True)
class Kept:
    """What an agent keeps of itself. The rest of a home is forgotten: packages, caches, settings of other programs."""

    directories: tuple[str, ...]
    files: tuple[str, ...] = ()


_AGENTS = {
    "claude": Kept((".claude",), (".claude.json",)),
    "codex": Kept((".codex",)),
    "gemini": Kept((".gemini",)),
}


def is_kept(agent: str) -> bool:
    """Return True if an agent of this name has a home that is kept."""
    return agent in _AGENTS


class KeptHome:
    """The home of one agent in one project, in use by one run."""

    any_link = False
    """Whether links are kept that lead out of the home."""

    def __init__(self, project: str, agent: str, what: Kept | None = None) -> None:
        """Make the directories, if they are not there. `what` is what an agent of that name keeps, unless given.

        Raises:
            OSError: the state directory can't be written.
        """
        self._what = what or _AGENTS[agent]
        self._place = place(project, agent)
        self._about = json.dumps({"project": project, "agent": agent}).encode()
        self._lock = self._use = -1
        self._base: Mapping[str, os.stat_result] = {}
        self.files: Mapping[str, bytes] = {}
        """Content of the files that belljar writes into the jar, by name. Known from `begin` on."""
        close(self._made())

    def _made(self) -> int:
        """Have a home there, and return a descriptor that holds its lock."""
        lock = locked(self._place, fcntl.LOCK_EX)
        try:
            restore(self._place)
            home = os.open(os.path.join(self._place, "home"), tree.READ)
            try:
                for name in self._what.directories:
                    os.close(make_directory(home, f"tree/{name}"))
            finally:
                os.close(home)
            write(os.path.join(self._place, "about.json"), self._about)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def begin(self) -> None:
        """Choose the newest home. Nobody replaces it until `mounted` is called, and nobody removes it before `close`.

        Raises:
            OSError: the state directory can't be written.
        """
        forget_least_used(self._place)
        self._lock = self._made()
        self._closing = weakref.finalize(self, close, self._lock)
        sweep(self._place)
        self._use = os.open(os.path.join(self._place, "home"), tree.READ)
        self._closing.detach()
        self._closing = weakref.finalize(self, close, self._lock, self._use)
        fcntl.flock(self._use, fcntl.LOCK_SH)
        self._base = listed(self._use)
        there = [name for name in self._what.files if f"apart/{name}" in self._base]
        self.files = {name: read(self._use, f"apart/{name}") for name in there}

    @property
    def mounts(self) -> dict[str, str]:
        """The directories that the jar shows copy on write, by name in the home."""
        return {name: os.path.join(self._place, "home/tree", name) for name in self._what.directories}

    @property
    def file_names(self) -> tuple[str, ...]:
        """The files that are kept besides, by name in the home."""
        return self._what.files

    def mounted(self) -> None:
        """The jar has its view of the home: from here on others may replace it."""
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def close(self) -> None:
        """Say that no jar shows it any more."""
        self._closing()

    def keep(
        self,
        changed: Mapping[str, ChangedTree],
        files: Mapping[str, bytes],
        *,
        denied: Callable[[str, str], bool],
        secrets: Collection[bytes],
    ) -> int:
        """Make the home of the next call from the changes of this run. Return how many files there is no room for.

        Another run may have replaced the home meanwhile. Then of each file that both changed the newer one stays.

        Args:
            changed: what the run changed in each of `mounts`.
            files: the content of the files that are kept besides.
            denied: returns True for a path in a directory that is not kept: names where credentials are.
            secrets: what no kept file may contain.

        Raises:
            OSError: it can't be written. The home of before stays.

        """
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        restore(self._place)
        now = os.open(os.path.join(self._place, "home"), tree.READ)
        try:
            there = listed(now)
            found = {name: LeftFiles.of(one) for name, one in changed.items()}
            merged = self._merged(there, found, denied)
            for name, data in files.items():
                if data != self.files.get(name):
                    merged[f"apart/{name}"] = File(len(data), time.time_ns(), data=data)
            kept = self._bounded(merged)
            if any(one.is_new for one in kept.values()) or kept.keys() != there.keys():
                replace(self._place, now, kept, secrets)
        finally:
            os.close(now)
            fcntl.flock(self._lock, fcntl.LOCK_UN)
        return len(merged) - len(kept)

    def _merged(
        self, now: Mapping[str, os.stat_result], found: Mapping[str, LeftFiles], denied: Callable[[str, str], bool]
    ) -> dict[str, File]:
        """The files of the next home, by path in `home`."""
        kept = {path: File(status.st_size, status.st_mtime_ns) for path, status in now.items()}
        for name, one in found.items():
            start = f"tree/{name}/"
            for path, status in self._base.items():
                if path.startswith(start) and one.lacks(path[len(start) :]) and is_same(now.get(path), status):
                    del kept[path]
            for path, status in one.files.items():
                before, other = self._base.get(start + path), now.get(start + path)
                newer = other is not None and other.st_mtime_ns > status.st_mtime_ns and not is_same(before, other)
                if not newer and not denied(name, path):
                    size, runs = status.st_size, bool(status.st_mode & 0o100)
                    kept[start + path] = File(
                        size, status.st_mtime_ns, one.root, path, executable=runs, any_link=self.any_link
                    )
        above = {"/".join(names[:depth]) for names in (path.split("/") for path in kept) for depth in range(len(names))}
        return {path: file for path, file in kept.items() if path not in above}

    def _bounded(self, files: dict[str, File]) -> dict[str, File]:
        """As many of the newest files as there is room for."""
        kept: dict[str, File] = {}
        size = 0
        for path, file in sorted(files.items(), key=lambda item: item[1].mtime_ns, reverse=True):
            if len(kept) < MOST_FILES and file.size <= MOST_FILE_BYTES and size + file.size <= MOST_BYTES:
                kept[path] = file
                size += file.size
        return kept


@dataclass(frozen=True)
class LeftFiles:
    """What a run left in a directory: the files that it made or changed, and how to tell what it removed."""

    root: int
    files: Mapping[str, os.stat_result]
    gone: Collection[str]
    """Where an overlay hides what is beneath it."""
    emptied: Collection[str]
    """Directories that were made anew."""
    there: Collection[str] | None
    """Every path, where the tree is no overlay's layer; None where it is one, or was not looked at in whole."""
    cut: bool
    """Whether there are more files than were looked at."""

    @classmethod
    def of(cls, changed: ChangedTree) -> LeftFiles:
        """Walk the tree."""
        files, gone, emptied, paths = {}, set(), set(), set(changed.untouched)
        within = bounds()
        for path, directory, name, status in tree.walk(changed.descriptor, within, own=True):
            paths.add(path)
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                files[path] = status
            elif stat.S_ISCHR(status.st_mode) and status.st_rdev == 0 and changed.layered:
                gone.add(path)
            elif stat.S_ISDIR(status.st_mode) and changed.layered and _is_opaque(directory, name):
                emptied.add(path)
        knows = not changed.layered and changed.whole and not within.cut
        cut = bool(within.cut) or not changed.whole
        return cls(changed.descriptor, files, gone, emptied, paths if knows else None, cut)

    def lacks(self, path: str) -> bool:
        """Return True if the run removed a path that its home had."""
        if path in self.files:
            return False
        if self.there is not None:
            return path not in self.there
        names = path.split("/")
        above = ["/".join(names[:depth]) for depth in range(1, len(names))]
        return path in self.gone or any(one in self.gone or one in self.emptied or one in self.files for one in above)


def _is_opaque(directory: int, name: str) -> bool:
    try:
        descriptor = tree.open_name(directory, name, tree.READ, own=True)
    except OSError:
        return False
    try:
        return os.getxattr(descriptor, _OPAQUE) == b"y"
    except OSError:
        return False
    finally:
        os.close(descriptor)
