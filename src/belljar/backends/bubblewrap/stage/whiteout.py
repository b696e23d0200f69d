"""Denied names as a layer of whiteouts, to be laid over a host directory by overlayfs.

A mask mounted on a file is lost when the file is replaced. A whiteout denies the *name*: whatever stands under it in
the layer below, now or later, is not there. Runs in the stage, on directories that the user owns; follows no link.
"""

from __future__ import annotations

import contextlib
import os
import stat

from belljar.backends.denied_walk import Denied, find_denied
from belljar.policy.globs import DenyGlobs

MAX_COVERED_DIRECTORIES = 4000
"""Directories that get whiteouts for names that do not exist yet."""
_MOST_NAMES, _FIRST_NAMES = 50_000, 16
"""Whiteouts for such names, in all. Directories beyond that get only the first names of the list: the rest is denied as
soon as it appears."""
_HEXADECIMAL = frozenset("0123456789abcdef")


class Whiteouts:
    """The layer for one host directory. It lives as long as the stage, and follows what the host does meanwhile."""

    def __init__(self, layer: str, root: str, host_root: str, jar_root: str, globs: DenyGlobs) -> None:
        self._layer = layer
        self._root = root
        self._roots = (host_root, jar_root)
        self._globs = globs
        self._names = names_to_deny(globs)
        self._room = _MOST_NAMES
        self._whiteout = f"{layer}.whiteout"
        self.directories: list[str] = []
        """Those that are covered: in each, the denied names are taken."""
        self._covered: set[str] = set()
        self.complete = True
        """Whether every directory is covered."""
        self._found = Denied()

    def build(self, found: Denied) -> None:
        """Make the layer, an empty directory so far, say what was found."""
        os.mknod(self._whiteout, stat.S_IFCHR, 0)
        self._found = found
        self._cover(found)

    def is_unchanged(self, directory: str) -> bool:
        """Return True if nothing can have appeared in a directory since it was looked into."""
        try:
            return self._found.is_unchanged(directory, os.lstat(os.path.join(self._root, directory)))
        except OSError:
            return False

    def _cover(self, found: Denied) -> None:
        room = MAX_COVERED_DIRECTORIES - len(self.directories)
        self.complete = self.complete and len(found.directories) <= room
        for directory in found.directories[:room]:
            self.directories.append(directory)
            self._covered.add(directory)
            self._merge(directory)
            self._deny_names(directory)
        for path in found.paths:
            self._merge(os.path.dirname(path))
            self._deny(path)

    def appeared(self, path: str) -> list[str]:
        """Something new on the host: deny it, or what is in it. The directories that are covered from now on."""
        if path in self._covered:
            return []
        covered = len(self.directories)
        host_root, jar_root = self._roots
        if (
            self._globs.may_end_at(os.path.basename(path))
            and self._globs.denies(f"{host_root}/{path}", f"{jar_root}/{path}") is not None
        ):
            self._merge(os.path.dirname(path))
            self._deny(path)
        elif os.path.isdir(os.path.join(self._root, path)) and not os.path.islink(os.path.join(self._root, path)):
            self._cover(find_denied(self._root, host_root, jar_root, self._globs, path))
        return self.directories[covered:]

    def forget(self, path: str) -> None:
        """A directory of this name is new: what was covered under it before was another one."""
        gone = {directory for directory in self._covered if directory == path or directory.startswith(f"{path}/")}
        self._covered -= gone
        self.directories = [directory for directory in self.directories if directory not in gone]

    def _deny_names(self, directory: str) -> None:
        target = os.open(os.path.join(self._layer, directory), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            whole = self._room > 0 and not self._holds_objects(directory)
            names = self._names if whole else self._names[:_FIRST_NAMES]
            self._room -= len(names)
            for name in names:
                try:
                    os.link(self._whiteout, name, dst_dir_fd=target)
                except FileExistsError:
                    continue
        finally:
            os.close(target)

    def _holds_objects(self, directory: str) -> bool:
        """Return True for one of the 256 directories in which git has its objects: nobody makes other names there."""
        above, name = os.path.split(f"{self._roots[0]}/{directory}")
        return len(name) == 2 and set(name) <= _HEXADECIMAL and os.path.basename(above) == "objects"

    def _deny(self, path: str) -> None:
        """Take a name. One inode serves them all: only directory entries are spent."""
        with contextlib.suppress(FileExistsError):
            os.link(self._whiteout, os.path.join(self._layer, path))

    def _merge(self, relative: str) -> None:
        """A directory of the layer that shows the one below it, with its mode (overlayfs shows the upper one's)."""
        missing = []
        while relative and not os.path.lexists(os.path.join(self._layer, relative)):
            missing.append(relative)
            relative = os.path.dirname(relative)
        for directory in reversed(missing):
            try:
                mode = stat.S_IMODE(os.lstat(os.path.join(self._root, directory)).st_mode) & 0o777
            except (FileNotFoundError, NotADirectoryError):
                mode = 0o755  # gone since the walk (git packs its objects): if it comes again, its names are taken
            os.mkdir(os.path.join(self._layer, directory))
            os.chmod(os.path.join(self._layer, directory), mode | 0o300)


def names_to_deny(globs: DenyGlobs) -> list[str]:
    """Names that are denied in every directory, also where they do not exist yet.

    Of a pattern like `**/id_rsa*` these are the name it begins with and the public half of a key; what else it matches
    is found by the walk.
    """
    stems = [pattern.removeprefix("**/") for pattern in globs.patterns if not pattern.startswith("/")]
    stems = [stem[:-1] for stem in stems if stem.endswith("*") and not set(stem[:-1]) & set("*?[]{}/\\")]
    return list(dict.fromkeys([*globs.literal_names(), *stems, *(f"{stem}.pub" for stem in stems)]))
