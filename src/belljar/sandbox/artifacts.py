"""Copying files out of a jar: regular files only, through no link on either side, each created anew."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from belljar.backends.hostile_files import copy_content, open_beneath, parts
from belljar.errors import UsageError
from belljar.policy.paths import PathError, real_path
from belljar.sandbox.kept_files import KeptFiles


def save(changed: int, paths: Sequence[str], directory: str | KeptFiles) -> list[str]:
    """Copy the files at `paths` beneath the descriptor `changed` into `directory`; the paths that were written."""
    if isinstance(directory, KeptFiles):
        return directory.take(changed, paths)
    try:
        real = real_path(directory)
    except PathError as error:
        raise UsageError(f"artifacts can't be saved in {directory}: {error}") from None
    os.makedirs(real, exist_ok=True)
    target = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return [os.path.join(directory, path) for path in paths if _copy(changed, target, path)]
    finally:
        os.close(target)


def _copy(changed: int, target: int, path: str) -> bool:
    """False if the file is gone or is no plain file any more."""
    try:
        source = open_beneath(changed, path, os.O_RDONLY, own=True)
    except OSError:  # gone, or a path that leads elsewhere
        return False
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            return False
        directory, _, name = path.rpartition("/")
        parent = _directories(target, directory)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            written = os.open(name, flags, 0o644, dir_fd=parent)
        finally:
            os.close(parent)
        try:
            copy_content(source, written)
        finally:
            os.close(written)
    finally:
        os.close(source)
    return True


def _directories(target: int, path: str) -> int:
    current = os.dup(target)
    for name in parts(path):
        try:
            os.mkdir(name, dir_fd=current)
        except FileExistsError:
            pass
        following = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        os.close(current)
        current = following
    return current
