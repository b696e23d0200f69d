"""The directories in which the homes of agents are kept: chosen, replaced whole, and forgotten. See `kept_home`."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from belljar.backends.hostile_files import bounds, leaves, open_beneath
from belljar.guest import tree
from belljar.state import private_directory, state_directory

MOST_FILE_BYTES = 64 << 20
MOST_HOMES = 200
"""The homes that were used last are kept."""
_DAY = 86_400.0


@dataclass(frozen=True)
class File:
    """A file or link of the next home: of the home of now, of a jar, or with the content `data`."""

    size: int
    mtime_ns: int
    root: int = -1
    """The descriptor of the jar's directory that it is beneath."""
    path: str = ""
    executable: bool = False
    any_link: bool = False
    """Whether it may be a link that leads out of the home."""
    data: bytes | None = None

    @property
    def is_new(self) -> bool:
        """Return True if the home of now does not have it."""
        return self.root >= 0 or self.data is not None


def is_same(one: os.stat_result | None, other: os.stat_result | None) -> bool:
    """Return True if two homes share a file: what did not change is linked from one to the next."""
    return one is not None and other is not None and (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def place(project: str, agent: str) -> str:
    """Where the home of an agent in a project is."""
    key = hashlib.sha256(f"{agent}\0{project}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return os.path.join(_homes(), key)


def _homes() -> str:
    return os.path.join(state_directory(), "homes")


def locked(where: str, how: int) -> int:
    """A descriptor of the lock of a home, which is made if it is missing. Raises BlockingIOError with LOCK_NB."""
    while True:
        private_directory(where)
        path = os.path.join(where, "lock")
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue  # removed meanwhile
        try:
            fcntl.flock(descriptor, how)
            with contextlib.suppress(FileNotFoundError):
                if is_same(os.fstat(descriptor), os.stat(path)):
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # the home was removed while we waited


def restore(where: str) -> None:
    """Have a home there: the last one, if a process was killed as it replaced it, or an empty one."""
    if not os.path.isdir(os.path.join(where, "home")):
        if numbers := _old(where):
            os.rename(os.path.join(where, f"old-{max(numbers)}"), os.path.join(where, "home"))
        else:
            _make_empty(os.path.join(where, "new"))
            os.rename(os.path.join(where, "new"), os.path.join(where, "home"))


def _old(where: str) -> list[int]:
    """The numbers of the homes that were replaced. Half of one that is being removed has no number."""
    return [int(name[4:]) for name in os.listdir(where) if name.startswith("old-") and name[4:].isdigit()]


def _make_empty(path: str) -> None:
    _remove(path)
    for directory in (path, os.path.join(path, "tree"), os.path.join(path, "apart")):
        os.mkdir(directory, 0o700)


def listed(home: int) -> dict[str, os.stat_result]:
    """Every file and link of a home, by path."""
    return {path: status for path, _at, _name, status in tree.walk(home, bounds()) if not stat.S_ISDIR(status.st_mode)}


def replace(where: str, now: int, files: Mapping[str, File], secrets: Collection[bytes]) -> None:
    """Make the next home, and put it in the place of the one of now."""
    path = os.path.join(where, "new")
    _make_empty(path)
    new = os.open(path, tree.READ)
    try:
        by_directory = itertools.groupby(sorted(files), key=os.path.dirname)
        for directory, targets in by_directory:
            _take_all({os.path.basename(one): files[one] for one in targets}, directory, now, new, secrets)
    except BaseException:
        _remove(path)
        raise
    finally:
        os.close(new)
    os.rename(os.path.join(where, "home"), os.path.join(where, f"old-{max(_old(where), default=0) + 1}"))
    os.rename(path, os.path.join(where, "home"))
    sweep(where)


def _take_all(files: Mapping[str, File], directory: str, now: int, new: int, secrets: Collection[bytes]) -> None:
    """Put the files of one directory into the next home, by name. One that holds a secret or leads out is left out."""
    parent = make_directory(new, directory)
    above = -1
    try:
        for name, file in files.items():
            if file.is_new:
                _take(file, parent, name, secrets)
                continue
            if above < 0:
                above = open_beneath(now, directory)
            os.link(name, name, src_dir_fd=above, dst_dir_fd=parent, follow_symlinks=False)
    finally:
        close(*(one for one in (above, parent) if one >= 0))


def _take(file: File, parent: int, name: str, secrets: Collection[bytes]) -> None:
    data, link = (file.data, None) if file.data is not None else _content(file)
    if link is not None and (file.any_link or not leaves(file.path, link)):
        os.symlink(link, name, dir_fd=parent)
    elif data is not None and not any(secret in data for secret in secrets):
        _write_at(parent, name, data, 0o700 if file.executable else 0o600, min(file.mtime_ns, time.time_ns()))


def _content(file: File) -> tuple[bytes | None, str | None]:
    """The content of a file of the jar's, or the target of a link; neither if it is something else by now."""
    above, _, name = file.path.rpartition("/")
    try:
        parent = open_beneath(file.root, above, own=True)
    except OSError:
        return None, None
    try:
        if stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
            return None, os.readlink(name, dir_fd=parent)
        descriptor = open_beneath(parent, name, os.O_RDONLY, own=True)
    except OSError:
        return None, None
    finally:
        os.close(parent)
    with os.fdopen(descriptor, "rb") as opened:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None, None
        data = opened.read(file.size + 1)
    return (data if len(data) <= file.size else None), None


def make_directory(root: int, path: str) -> int:
    """Open a directory, made with those above it, for nobody else."""
    current = os.dup(root)
    for name in path.split("/") if path else ():
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=current)
            following = os.open(name, tree.READ, dir_fd=current)
        finally:
            os.close(current)
        current = following
    return current


def _write_at(parent: int, name: str, data: bytes, mode: int, mtime_ns: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, mode, dir_fd=parent), "wb") as file:
        file.write(data)
        file.flush()
        os.fchmod(file.fileno(), mode)
        os.utime(file.fileno(), ns=(mtime_ns, mtime_ns))


def write(path: str, data: bytes) -> None:
    """Write a file of belljar's own, whole or not at all."""
    unfinished = f"{path}.{os.getpid()}"
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
        file.write(data)
    os.rename(unfinished, path)


def read(root: int, path: str) -> bytes:
    """The content of a file of a home, through no link."""
    with os.fdopen(open_beneath(root, path, os.O_RDONLY), "rb") as file:
        return file.read(MOST_FILE_BYTES)


def close(*descriptors: int) -> None:
    """Close descriptors."""
    for descriptor in descriptors:
        os.close(descriptor)


# --- forgetting ------------------------------------------------------------------------------------------------------


def sweep(where: str) -> bool:
    """Remove the homes that were replaced and that no jar shows. Return True if none is left."""
    left = False
    for name in os.listdir(where):
        if name.startswith(("old-", "new.")):
            descriptor = os.open(os.path.join(where, name), tree.READ)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(os.path.join(where, name))
            except BlockingIOError:
                left = True
            finally:
                os.close(descriptor)
    return not left


def _remove(path: str) -> None:
    if os.path.lexists(path):
        parent = os.open(os.path.dirname(path), tree.READ)
        try:
            tree.remove_tree(parent, os.path.basename(path))
        finally:
            os.close(parent)


def forget(project: str, agent: str) -> bool:
    """Forget the home of an agent in a project. Return False if there was none.

    A run that is under way goes on, and keeps what it changes from now on.
    """
    where = place(project, agent)
    if not os.path.isdir(where):
        return False
    lock = locked(where, fcntl.LOCK_EX)
    try:
        return _forget(where)
    finally:
        os.close(lock)


def _forget(where: str) -> bool:
    """Forget a home whose lock is held. Return True if there was something in it."""
    restore(where)
    home = os.open(os.path.join(where, "home"), tree.READ)
    try:
        anything = bool(listed(home))
        replace(where, home, {}, ())
    finally:
        os.close(home)
    if sweep(where):
        _remove(where)
    return anything


def forget_least_used(but: str) -> None:
    """Make room for the home at `but`, if there are as many as there may be."""
    used = sorted((one for one in _places() if one[0] != but), key=lambda one: one[1])
    for where, _moment in used[: max(0, len(used) - MOST_HOMES + 1)]:
        _forget_unused(where)


def _forget_unused(where: str) -> bool:
    """Forget a home, unless a run uses it."""
    try:
        lock = locked(where, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    try:
        restore(where)
        home = os.open(os.path.join(where, "home"), tree.READ)
        try:
            fcntl.flock(home, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        finally:
            os.close(home)
        _forget(where)
        return True
    finally:
        os.close(lock)


def _places() -> Iterator[tuple[str, float]]:
    """Every home, and when it was used last."""
    with contextlib.suppress(FileNotFoundError), os.scandir(_homes()) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                yield entry.path, os.stat(os.path.join(entry.path, "about.json")).st_mtime


def prune(older_days: float) -> list[str]:
    """Forget the homes that no run used for so many days; their directories."""
    limit = time.time() - older_days * _DAY
    return [where for where, used in list(_places()) if used < limit and _forget_unused(where)]
