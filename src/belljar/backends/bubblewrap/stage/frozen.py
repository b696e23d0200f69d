"""A directory of the host's with the names that it has now, as a layer of overlayfs: no other name ever shows.

Whiteouts deny the names that somebody thought of, in the directories that were there. Here it is the other way round:
the layer has every directory, link and file that the code may see, the files without content but with a word that says
where in the host's directory it lies (`lowerdir=names::data`; as an ordinary user, from Linux 6.16 on). What the host
makes later, under whatever name, in a new directory or an old one, is not in the layer, and so is not there.

Runs in the stage, on directories that the user can read; follows no link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from belljar.backends import kernel
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.stage.jar_root import create

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from belljar.backends.denied_walk import Denied

MOST_NAMES = 20_000
"""More are left to whiteouts: each takes ten microseconds when the jar is opened."""
_ELSEWHERE, _WHERE = "user.overlay.metacopy", "user.overlay.redirect"
_RULES = kernel.RESOLVE_BENEATH | kernel.RESOLVE_NO_SYMLINKS | kernel.RESOLVE_NO_MAGICLINKS


class TooManyNamesError(Exception):
    """There are more than can be listed in a moment."""


def freeze(layer: str, root: str, found: Denied, denies: Callable[[str], bool]) -> None:
    """Have all of `root` in the layer, an empty directory so far, but what was found to be denied.

    `denies` judges again: a name may have been made since the walk.

    Raises:
        TooManyNamesError: the directory has more than MOST_NAMES.
    """
    if found.names > MOST_NAMES:
        raise TooManyNamesError
    known = set(found.paths)

    def hidden(below: str) -> bool:
        return below in known or denies(below)

    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    before = os.umask(0)
    modes: list[tuple[str, os.stat_result]] = []
    left = MOST_NAMES
    try:
        for directory in found.directories:
            into = os.path.join(layer, directory)
            status = _made(into, top, directory)
            if status is None:
                continue
            modes.append((into, status))
            left = _freeze_directory(into, top, directory, hidden, left)
        for into, status in reversed(modes):  # last: what is in them could not have been made in a closed one
            os.chmod(into, stat.S_IMODE(status.st_mode) & 0o777)
            os.utime(into, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.umask(before)
        os.close(top)


def _made(into: str, top: int, directory: str) -> os.stat_result | None:
    """The status of a directory of the host's that has its like in the layer now; None if it is gone."""
    try:
        status = os.stat(directory or ".", dir_fd=top, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            return None
        if directory:
            os.mkdir(into, 0o700)
    except (FileNotFoundError, NotADirectoryError):  # it, or the one that it was in
        return None
    return status


def _freeze_directory(into: str, top: int, directory: str, hidden: Callable[[str], bool], left: int) -> int:
    try:
        opened = kernel.openat2(top, directory or ".", os.O_RDONLY | os.O_DIRECTORY, resolve=_RULES)
    except OSError:  # closed to us, and so to the code: they are the same user
        return left
    made = os.open(into, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(opened):
            below = f"{directory}/{name}" if directory else name
            if hidden(below):
                continue
            left -= 1
            if left < 0:
                raise TooManyNamesError
            _freeze_entry(opened, made, name, below)
    finally:
        os.close(opened)
        os.close(made)
    return left


def _freeze_entry(directory: int, made: int, name: str, below: str) -> None:
    """A file or a link. Directories come by themselves; what is neither is nothing that code could use."""
    try:
        status = os.lstat(name, dir_fd=directory)
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=directory), name, dir_fd=made)
            os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns), dir_fd=made, follow_symlinks=False)
    except FileNotFoundError:  # gone since it was listed
        return
    if not stat.S_ISREG(status.st_mode):
        return
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    file = os.open(name, flags, stat.S_IMODE(status.st_mode) & 0o777, dir_fd=made)
    try:
        os.ftruncate(file, status.st_size)
        os.setxattr(file, _ELSEWHERE, b"")
        os.setxattr(file, _WHERE, b"/" + os.fsencode(below))
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    finally:
        os.close(file)


def freezing_works() -> bool:
    """Judge by behaviour: a file has its content, and what is made below later is not there."""
    data, layer, target = (f"{layout.SCRATCH}/frozen-{name}" for name in ("data", "names", "target"))
    if os.path.exists(target):
        return not os.path.exists(f"{layout.SCRATCH}/not-frozen")
    from belljar.backends.denied_walk import Denied

    os.makedirs(f"{data}/directory")
    for place in (layer, target):
        os.mkdir(place)
    create(f"{data}/directory/file", b"content")
    found = Denied()
    found.directories = ["", "directory"]
    mounted = False
    try:
        freeze(layer, data, found, lambda _below: False)
        kernel.mount("overlay", target, "overlay", kernel.MS_RDONLY, f"{lower_options(layer, data)},userxattr")
        mounted = True
        create(f"{data}/later")
        with open(f"{target}/directory/file", "rb") as file:
            works = file.read() == b"content" and os.listdir(target) == ["directory"]
    except OSError:
        works = False
    finally:
        if mounted:
            kernel.unmount(target)
    if not works:
        create(f"{layout.SCRATCH}/not-frozen")
    return works


def lower_options(layer: str, root: str) -> str:
    """For overlayfs: the names, and the data behind them."""
    return f"lowerdir={layer}::{root}"
