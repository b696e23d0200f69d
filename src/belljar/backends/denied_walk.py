"""What is denied in a directory of the host's, found by walking it. Follows no link."""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Container, Iterator, Mapping

from belljar.policy.globs import DenyGlobs

_SETTLED_NS = 2_000_000_000
"""A directory changed less than this ago may change again with the same ctime: file systems count in coarse ticks."""
Stamp = tuple[int, int, int]
"""Device, inode and ctime of a directory. Whoever adds, removes or renames a name in it changes the ctime."""


class Listing:
    """What matters of one directory: which names in it are denied, which are directories to look into."""

    __slots__ = ("denied", "directories", "names", "sockets", "stamp")

    def __init__(
        self, stamp: Stamp | None, names: int, denied: list[str], directories: list[str], sockets: list[str]
    ) -> None:
        self.stamp = stamp
        """What the directory was when it was listed; None if a later change may not show in that."""
        self.names = names
        """How many there are."""
        self.denied = denied
        self.directories = directories
        self.sockets = sockets


class Denied:
    """What a walk found, as paths relative to where it began."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.sockets: list[str] = []
        """Sockets and named pipes: who opens one talks to a process of the host's."""
        self.directories: list[str] = []
        """Every directory that stays visible, the nearest to the top first."""
        self.names = 0
        """How many names the walk saw, of those that stay visible."""
        self.listings: dict[str, Listing] = {}
        """Every directory that was looked into."""
        self.listed_again = 0
        """Directories that were read, because nothing was known of them or they have changed."""

    def is_unchanged(self, directory: str, status: os.stat_result) -> bool:
        """Return True if a directory certainly has the names that it had when the walk saw it."""
        listing = self.listings.get(directory)
        return listing is not None and listing.stamp is not None and listing.stamp == stamp_of(status)


def stamp_of(status: os.stat_result) -> Stamp:
    """What tells whether a directory is the same and has the same names."""
    return status.st_dev, status.st_ino, status.st_ctime_ns


def find_denied(
    root: str,
    host_root: str,
    jar_root: str,
    globs: DenyGlobs,
    start: str = "",
    *,
    known: Mapping[str, Listing] | None = None,
    covered: Container[str] = (),
) -> Denied:
    """Walk `root` (`host_root` on the host, `jar_root` in the jar) from `start` on, and list what is denied in it.

    Args:
        root: the directory.
        host_root: its path on the host.
        jar_root: its path in the jar.
        globs: what is denied.
        start: where to begin, beneath it.
        known: what an earlier walk with the same paths and globs saw. It counts for directories that are the same.
        covered: directories over which the jar has another mount: what is in them does not count as visible.
    """
    found = Denied()
    settled_before = time.time_ns() - _SETTLED_NS
    queue = [(start, False)]
    for relative, hidden in queue:  # grows while it is walked: breadth first, with no recursion to exhaust
        listing = known.get(relative) if known else None
        path = os.path.join(root, relative)
        if listing is None or not _is_same(path, listing):
            found.listed_again += 1
            listing = _list(path, relative, host_root, jar_root, globs, settled_before)
        if not hidden:
            found.directories.append(relative)
        if listing is None:
            continue
        found.listings[relative] = listing
        prefix = f"{relative}/" if relative else ""
        hides = hidden or relative in covered
        found.names += 0 if hides else listing.names
        found.paths += [prefix + name for name in listing.denied]
        found.sockets += [prefix + name for name in listing.sockets]
        queue += [(prefix + name, hides) for name in listing.directories]
    found.paths.extend(_other_names(root, found))
    return found


def _is_same(path: str, listing: Listing) -> bool:
    try:
        return listing.stamp == stamp_of(os.lstat(path))
    except OSError:
        return False


def _list(  # noqa: PLR0917 - as its caller
    path: str, relative: str, host_root: str, jar_root: str, globs: DenyGlobs, settled_before: int
) -> Listing | None:
    """Read a directory. Return None for one that can't be read."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise
        return None  # what the stage can't list, the guest can't either: they are the same user
    try:
        status = os.fstat(directory)  # before its names are read
        with os.scandir(directory) as entries:
            listing = _sorted(list(entries), relative, host_root, jar_root, globs)
    except OSError:
        return None
    finally:
        os.close(directory)
    listing.stamp = stamp_of(status) if status.st_ctime_ns < settled_before else None
    return listing


def _sorted(entries: list[os.DirEntry[str]], relative: str, host_root: str, jar_root: str, globs: DenyGlobs) -> Listing:
    denied, directories, sockets = [], [], []
    prefix = f"{relative}/" if relative else ""
    may_end_at = globs.may_end_at
    for entry in entries:
        name = entry.name
        if may_end_at(name) and globs.denies(f"{host_root}/{prefix}{name}", f"{jar_root}/{prefix}{name}") is not None:
            denied.append(name)
        elif entry.is_dir(follow_symlinks=False):
            directories.append(name)
        elif not entry.is_file(follow_symlinks=False) and _is_door(entry):
            sockets.append(name)
    return Listing(None, len(entries), denied, directories, sockets)


def _is_door(entry: os.DirEntry[str]) -> bool:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)


def _other_names(root: str, found: Denied) -> Iterator[str]:
    """Hard links: further names of denied files."""
    wanted = set()
    for path in found.paths:
        try:
            status = os.lstat(os.path.join(root, path))
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            wanted.add((status.st_dev, status.st_ino))
    if not wanted:
        return
    denied = set(found.paths)
    for directory in found.directories:
        try:
            entries = [(entry.name, entry.stat(follow_symlinks=False)) for entry in os.scandir(f"{root}/{directory}")]
        except OSError:  # closed to us and so to the guest, or gone
            continue
        for name, status in entries:
            below = f"{directory}/{name}" if directory else name
            if below not in denied and (status.st_dev, status.st_ino) in wanted:
                yield below
