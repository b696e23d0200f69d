"""The files of a snapshot, written into a directory of the host's that has nothing else in it.

By the rules by which changes come back into a directory: beneath a handle, through no link, no link that leads out. A
snapshot that holds anything but files, directories and links is refused before; of modes, only permissions are taken.
"""

from __future__ import annotations

import os

from belljar.backends.hostile_files import leaves, write_at
from belljar.errors import UsageError
from belljar.policy.records import dataclass
from belljar.sandbox.apply import give_to_owner, make_directories, name_it, parent_of
from belljar.sandbox.snapshot_files import Kept, SnapshotFiles


@dataclass(frozen=True, slots=True)
class Restored:
    """What was written, and what was not."""

    directory: str
    written: int
    refused: tuple[tuple[str, str], ...]
    """Paths, and why."""


def restore(files: SnapshotFiles, directory: str) -> Restored:
    """Write them all.

    Raises:
        UsageError: the directory is not empty, or can't be made.
    """
    root = _empty_directory(directory)
    refused: list[tuple[str, str]] = []
    try:
        directories = [kept for kept in files.files.values() if kept.kind == "directory"]
        for kept in sorted(files.files.values(), key=lambda kept: kept.path):
            try:
                _write(root, kept, files)
            except OSError as error:
                refused.append((kept.path, error.strerror or str(error)))
        for kept in sorted(directories, key=lambda kept: kept.path, reverse=True):
            _finish(root, kept, refused)
    finally:
        os.close(root)
    return Restored(os.path.abspath(directory), len(files.files) - len(refused), tuple(refused))


def _empty_directory(path: str) -> int:
    try:
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            pass
        root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise UsageError(f"{path} can't be written to: {error.strerror}") from error
    if os.listdir(root):
        os.close(root)
        raise UsageError(f"{path} is not empty", hint="name a directory that does not exist yet")
    return root


def _write(root: int, kept: Kept, files: SnapshotFiles) -> None:
    if kept.kind == "directory":
        make_directories(root, kept.path)
        return
    parent, name = parent_of(root, kept.path, make=True)
    try:
        if kept.kind == "link":
            if leaves(kept.path, kept.target):
                raise PermissionError(1, "it is a link that leads out of the directory")
            os.symlink(kept.target, name, dir_fd=parent)
            give_to_owner(parent, name)
        else:
            _write_file(parent, name, kept, files)
    finally:
        os.close(parent)


def _write_file(parent: int, name: str, kept: Kept, files: SnapshotFiles) -> None:
    fresh = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=parent)
    try:
        for at, piece in files.stored(kept):
            if piece.count(0) != len(piece):  # what was a hole in the jar is one here
                write_at(fresh, piece, at)
        os.ftruncate(fresh, kept.size)
        os.fchmod(fresh, kept.mode)
        os.utime(fresh, (kept.changed, kept.changed))
        name_it(fresh, parent, name)
    finally:
        os.close(fresh)


def _finish(root: int, kept: Kept, refused: list[tuple[str, str]]) -> None:
    """A directory's own mode, when everything is in it. Its owner can always open it."""
    try:
        parent, name = parent_of(root, kept.path)
        try:
            directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            os.fchmod(directory, kept.mode | 0o700)
        finally:
            os.close(directory)
    except OSError as error:
        if all(path != kept.path for path, _why in refused):
            refused.append((kept.path, error.strerror or str(error)))


__all__ = ["Restored", "restore"]
