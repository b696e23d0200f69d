"""Copying files out of a jar into a directory of the host's: regular files, through no link on either side.

What may be written is judged as for `apply` (`host_directory.py`), and written by the same writer (`apply.py`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from belljar.backends.hostile_files import copy_content, open_beneath
from belljar.policy.models import Policy
from belljar.sandbox.files.apply import parent_of, write_file
from belljar.sandbox.files.host_directory import OutgoingFiles, open_target
from belljar.sandbox.files.kept_files import KeptFiles

IS_THERE = "there is a file of that name already"
_GONE = "it is no plain file any more"

Own = dict[str, tuple[int, int, int]]
"""Files that were written before, for the same Sandbox: by path, what tells whether it is still that file."""


class Saved(list[str]):
    """The paths that were written. `refused` has the files that were not, each with the reason."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: list[tuple[str, str]] = []
        """By path in the jar."""

    @property
    def were_there(self) -> bool:
        """Whether a file was left out because one of that name was there."""
        return any(why == IS_THERE for _path, why in self.refused)


def save(
    changed: int | None,
    paths: Sequence[str],
    directory: str | KeptFiles,
    policy: Policy,
    *,
    data: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
    protected: bool = False,
    own: Own | None = None,
) -> Saved:
    """Copy the files at `paths` beneath the descriptor `changed` into a directory, and write `data` there.

    Args:
        changed: what the jar holds of its workspace.
        paths: files of it.
        directory: where to, or what keeps them in memory.
        policy: of the run: names that it denies are not written.
        data: more files: content by path.
        overwrite: whether files that are there may be replaced.
        protected: whether to write what a tool on the host would act on.
        own: files that were written there before, which may be replaced as long as nobody else changed them.

    Raises:
        UsageError: the directory can't be written to.
    """
    if isinstance(directory, KeptFiles):
        kept = Saved()
        kept.extend(directory.take(changed, paths) if changed is not None else ())
        return kept
    target = open_target(directory)
    own = {} if own is None else own
    saved = Saved()
    try:
        rules = OutgoingFiles(
            target,
            directory,
            [*paths, *(data or ())],
            globs=policy.fs.deny_globs,
            jar_path=policy.fs.workdir,
            protected=protected,
        )

        def write(path: str, fill: Callable[[int], None]) -> None:
            place = os.path.join(os.path.realpath(directory), path)
            try:
                if why := rules.why(path):
                    raise PermissionError(1, why)
                replace = overwrite or (place in own and own[place] == _identity(target, path))
                own[place] = _told(write_file(target, path, fill, replace=replace))
                saved.append(os.path.join(directory, path))
            except FileExistsError:
                saved.refused.append((path, IS_THERE))
            except OSError as error:
                saved.refused.append((path, error.strerror or str(error)))

        for name, content in (data or {}).items():
            write(name, partial(_fill, content))
        if changed is not None:
            for path in paths:
                write(path, partial(_copy, changed, path))
    finally:
        os.close(target)
    return saved


def _copy(changed: int, path: str, fresh: int) -> None:
    """Raises OSError if the file is gone or is no plain file any more."""
    source = open_beneath(changed, path, os.O_RDONLY, own=True)
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise PermissionError(1, _GONE)
        copy_content(source, fresh)
    finally:
        os.close(source)


def _fill(content: bytes, fresh: int) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fresh, rest) :]


def _identity(target: int, path: str) -> tuple[int, int, int] | None:
    try:
        parent, name = parent_of(target, path)
    except OSError:
        return None
    try:
        return _told(os.lstat(name, dir_fd=parent))
    except OSError:
        return None
    finally:
        os.close(parent)


def _told(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_ctime_ns
