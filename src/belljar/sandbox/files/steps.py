"""Turns a change of a jar's files into steps that the journal takes on the host."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import TYPE_CHECKING

from belljar.backends.hostile_files import copy_content, leaves, open_beneath
from belljar.sandbox.files.apply import parent_of, status_beneath
from belljar.sandbox.files.journal import JournalStep, StepRefusedError

if TYPE_CHECKING:
    from belljar.sandbox.files.changes import Change

Spared = Callable[[str, os.stat_result], str]
"""Why a file of the host's must stay, whatever the code did to the directory it is in; empty if it need not."""

Judge = Callable[[str], str]
"""Why a link of this text must not be written; empty if it may."""


def steps_of(change: Change, changed: int, target: int, spared: Spared, judge: Judge) -> tuple[list[JournalStep], str]:
    """Steps that make the host's directory `target` have this change, and why a part of it has to stay."""
    status = status_beneath(target, change.path)
    steps: list[JournalStep] = []
    if change.kind == "deleted":
        return ([], "") if status is None else _deletion(target, change.path, status, spared)
    if status is not None and stat.S_ISDIR(status.st_mode) != (change.what == "directory"):
        steps, why = _deletion(target, change.path, status, spared)
        if why:
            return [], why
        status = None
    if change.what == "directory":
        return ([*steps, JournalStep(change.path, "directory")] if status is None else []), ""
    if change.what == "link":
        return [
            *steps,
            JournalStep(change.path, "link", status, text=lambda: _link_text(changed, change.path, judge)),
        ], ""
    mode = change.mode & 0o777
    return [
        *steps,
        JournalStep(change.path, "file", status, mode, lambda fresh: _copy(changed, change.path, fresh)),
    ], ""


def _deletion(target: int, path: str, status: os.stat_result, spared: Spared) -> tuple[list[JournalStep], str]:
    """Delete a file or a tree, sparing what the code could not see and what is newer: it can't have meant those."""
    if why := spared(path, status):
        return [], why
    if not stat.S_ISDIR(status.st_mode):
        return [JournalStep(path, "delete", status)], ""
    directory = open_beneath(target, path)
    steps, reasons = [], []
    try:
        for name in sorted(os.listdir(directory)):
            more, why = _deletion(target, f"{path}/{name}", os.lstat(name, dir_fd=directory), spared)
            steps += more
            reasons += [why] if why else []
    finally:
        os.close(directory)
    if reasons:
        return steps, f"something in it stays: {reasons[0]}"
    return [*steps, JournalStep(path, "rmdir", status)], ""


def _link_text(changed: int, path: str, judge: Judge) -> str:
    parent, name = parent_of(changed, path)
    try:
        text = os.readlink(name, dir_fd=parent)
    except OSError as error:  # code that still runs may have made it another one
        raise StepRefusedError(error.errno, error.strerror) from error
    finally:
        os.close(parent)
    if leaves(path, text):  # it was another one when it was judged
        raise StepRefusedError(errno.EPERM, "it is a link that leads out of the workspace")
    if why := judge(text):
        raise StepRefusedError(errno.EPERM, why)
    return text


def _copy(changed: int, path: str, fresh: int) -> None:
    try:
        source = open_beneath(changed, path, os.O_RDONLY, own=True)
    except OSError as error:
        raise StepRefusedError(error.errno, error.strerror) from error
    try:
        if not stat.S_ISREG(os.fstat(source).st_mode):
            raise StepRefusedError(errno.EPERM, "it is no plain file any more")
        copy_content(source, fresh)
    finally:
        os.close(source)


__all__ = ["Judge", "Spared", "steps_of"]
