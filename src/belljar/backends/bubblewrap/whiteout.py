"""Denied names as a layer of whiteouts, to be laid over a host directory by overlayfs.

A mask mounted on a file is lost when the file is replaced. A whiteout denies the *name*: whatever stands under it in
the layer below, now or later, is not there. Runs in the stage, on directories that the user owns; follows no link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from belljar.policy.globs import DenyGlobs

MAX_COVERED_DIRECTORIES = 4000
"""Directories that get whiteouts for names that do not exist yet."""


class Denied:
    """What a walk found, as paths relative to where it began."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.directories: list[str] = []
        """Every directory that stays visible, the nearest to the top first."""


def find_denied(root: str, host_root: str, jar_root: str, globs: DenyGlobs) -> Denied:
    """Walk `root` (which is `host_root` on the host and `jar_root` in the jar) and list what is denied in it."""
    found = Denied()
    queue = [""]
    for relative in queue:  # grows while it is walked: breadth first, with no recursion to exhaust
        found.directories.append(relative)
        try:
            entries = list(os.scandir(os.path.join(root, relative)))
        except OSError:  # what the stage can't list, the guest can't either: they are the same user
            continue
        for entry in entries:
            below = f"{relative}/{entry.name}" if relative else entry.name
            if globs.denies(f"{host_root}/{below}", f"{jar_root}/{below}") is not None:
                found.paths.append(below)
            elif entry.is_dir(follow_symlinks=False):
                queue.append(below)
    found.paths.extend(_other_names(root, found))
    return found


def _other_names(root: str, found: Denied) -> Iterator[str]:
    """Hard links: further names of denied files."""
    wanted = set()
    for path in found.paths:
        status = os.lstat(os.path.join(root, path))
        if stat.S_ISREG(status.st_mode) and status.st_nlink > 1:
            wanted.add((status.st_dev, status.st_ino))
    if not wanted:
        return
    denied = set(found.paths)
    for directory in found.directories:
        for entry in os.scandir(os.path.join(root, directory)):
            below = f"{directory}/{entry.name}" if directory else entry.name
            status = entry.stat(follow_symlinks=False)
            if below not in denied and (status.st_dev, status.st_ino) in wanted:
                yield below


def build_layer(layer: str, root: str, found: Denied, globs: DenyGlobs) -> bool:
    """Make the whiteouts beneath `layer`, an empty directory. False if they don't look ahead in all directories."""
    names = names_to_deny(globs)
    covered = found.directories[:MAX_COVERED_DIRECTORIES] if names else []
    whiteout = os.path.join(layer, ".whiteout")
    os.mknod(whiteout, stat.S_IFCHR, 0)
    for directory in covered:
        _merge_directory(layer, root, directory)
        for name in names:
            _link(whiteout, os.path.join(layer, directory, name))
    for path in found.paths:
        _merge_directory(layer, root, os.path.dirname(path))
        _link(whiteout, os.path.join(layer, path))
    os.unlink(whiteout)
    return len(covered) == len(found.directories) or not names


def names_to_deny(globs: DenyGlobs) -> list[str]:
    """Names that are denied in every directory, also where they do not exist yet.

    Of a pattern like `**/id_rsa*` these are the name it begins with and the public half of a key; what else it matches
    is found by the walk.
    """
    stems = [pattern.removeprefix("**/") for pattern in globs.patterns if not pattern.startswith("/")]
    stems = [stem[:-1] for stem in stems if stem.endswith("*") and not set(stem[:-1]) & set("*?[]{}/\\")]
    return list(dict.fromkeys([*globs.literal_names(), *stems, *(f"{stem}.pub" for stem in stems)]))


def _link(whiteout: str, path: str) -> None:
    """One inode serves every name: only directory entries are spent."""
    try:
        os.link(whiteout, path)
    except FileExistsError:
        return


def _merge_directory(layer: str, root: str, relative: str) -> None:
    """A directory of the layer that shows the one below it, with its mode (overlayfs shows the upper one's)."""
    missing = []
    while relative and not os.path.lexists(os.path.join(layer, relative)):
        missing.append(relative)
        relative = os.path.dirname(relative)
    for directory in reversed(missing):
        mode = stat.S_IMODE(os.lstat(os.path.join(root, directory)).st_mode) & 0o777
        os.mkdir(os.path.join(layer, directory))
        os.chmod(os.path.join(layer, directory), mode | 0o300)
