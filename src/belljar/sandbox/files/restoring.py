"""The files of a snapshot, written into a directory of the host's that has nothing else in it.

By the rules, and by the writer, by which changes come back into a directory: beneath a handle, through no link, no link
that leads out, nothing that a tool would act on by itself. A snapshot that holds anything but files, directories and
links is refused before; of modes, only permissions are taken.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from belljar.backends.hostile_files import write_at
from belljar.errors import UsageError
from belljar.policy.paths import PathError, real_path
from belljar.sandbox.files.apply import make_directories, parent_of, write_file, write_link
from belljar.sandbox.files.host_directory import OutgoingFiles, check_target, open_real
from belljar.sandbox.files.snapshot_files import SnapshotFile, SnapshotFiles


@dataclass(frozen=True, slots=True)
class Restored:
    """What was written, and what was not."""

    directory: str
    written: int
    refused: tuple[tuple[str, str], ...]
    """Paths, and why."""


def restore(files: SnapshotFiles, directory: str, *, protected: bool = False) -> Restored:
    """Write them all; with `protected` also those that a tool on the host would act on by itself.

    Raises:
        UsageError: the directory is not empty, is the user's home, or can't be made.
    """
    root = _empty_directory(directory)
    refused: list[tuple[str, str]] = []
    try:
        rules = OutgoingFiles(root, directory, files.files, protected=protected)
        directories = [kept for kept in files.files.values() if kept.kind == "directory"]
        for kept in sorted(files.files.values(), key=lambda kept: kept.path):
            try:
                if why := rules.why(kept.path, kept.kind, kept.target):
                    raise PermissionError(1, why)
                _write(root, kept, files)
            except OSError as error:
                refused.append((kept.path, error.strerror or str(error)))
        left_out = {path for path, _why in refused}
        for kept in sorted(directories, key=lambda kept: kept.path, reverse=True):
            if kept.path not in left_out:
                _finish(root, kept, refused)
    finally:
        os.close(root)
    return Restored(os.path.abspath(directory), len(files.files) - len(refused), tuple(refused))


def _empty_directory(path: str) -> int:
    check_target(path)
    directory, name = os.path.split(os.path.abspath(path))
    try:
        parent = open_real(real_path(directory))  # follows no link that code could have made
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=parent)
            root = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        finally:
            os.close(parent)
    except PathError as error:
        raise UsageError(f"{path} can't be written to: {error}") from None
    except OSError as error:
        raise UsageError(f"{path} can't be written to: {error.strerror}") from error
    if os.listdir(root):
        os.close(root)
        raise UsageError(f"{path} is not empty", hint="name a directory that does not exist yet")
    return root


def _write(root: int, kept: SnapshotFile, files: SnapshotFiles) -> None:
    if kept.kind == "directory":
        make_directories(root, kept.path)
        return
    if kept.kind == "link":
        parent, name = parent_of(root, kept.path, make=True)
        try:
            write_link(parent, name, kept.target)
        finally:
            os.close(parent)
        return

    def fill(fresh: int) -> None:
        for at, piece in files.stored(kept):
            if piece.count(0) != len(piece):  # what was a hole in the jar is one here
                write_at(fresh, piece, at)
        os.ftruncate(fresh, kept.size)
        os.utime(fresh, (kept.changed, kept.changed))

    write_file(root, kept.path, fill, mode=kept.mode, replace=False)


def _finish(root: int, kept: SnapshotFile, refused: list[tuple[str, str]]) -> None:
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
        refused.append((kept.path, error.strerror or str(error)))


__all__ = ["Restored", "restore"]
