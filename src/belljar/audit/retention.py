"""What is old is removed: days of the audit log, with the inputs and outputs of runs. The chain begins at an *anchor*.

The anchor is written before anything is removed, and names the last day that goes: a process that is killed in between
leaves files that nobody reads, and that the next one removes.
"""

from __future__ import annotations

import contextlib
import os
import time

from belljar.audit import outputs
from belljar.audit.chain import BrokenRecordError, decode
from belljar.audit.log import day_files, directory, record
from belljar.audit.stored import inputs
from belljar.audit.verify import ANCHOR, verify
from belljar.errors import UsageError
from belljar.policy import json_text
from belljar.policy.records import dataclass

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed."""

    files: tuple[str, ...]
    size: int


def prune(*, older_days: float | None = None, most_bytes: int | None = None) -> Pruned:
    """Remove the oldest days, by age and by size. The day that is being written stays.

    If that is still too large, what runs printed is removed, the oldest day's first: it is no part of the chain.

    Raises:
        UsageError: the log is not in order: removing a part of it could hide that.
    """
    path = directory()
    verdict = verify(path)
    if not verdict.ok:
        raise UsageError(
            f"the log is not as it was written ({verdict.where}: {verdict.problem}), and nothing of it is removed",
            hint="keep a copy of it, and find out why",
        )
    going = _chosen(path, older_days, most_bytes)
    printed = _printed(path, going, most_bytes)
    if not going and not printed:
        return Pruned((), 0)
    record("pruned", through=going[-1] if going else None, files=len(going), outputs=printed)
    removed, size = [], 0
    if going:
        _write_anchor(path, going[-1])
    for name in going:
        for file in (os.path.join(path, name), os.path.join(inputs(), name.partition(".")[0])):
            with contextlib.suppress(FileNotFoundError):
                size += os.path.getsize(file)
                os.unlink(file)
                removed.append(file)
    for day in printed:
        gone, bytes_ = outputs.remove(day)
        removed.append(gone)
        size += bytes_
    return Pruned(tuple(removed), size)


def _printed(path: str, going: list[str], most_bytes: int | None) -> list[str]:
    """The days whose outputs go: those of the log's days that go, and what is too much besides."""
    last = going[-1].partition(".")[0] if going else ""
    days = outputs.days()
    chosen = [day for day in days if day <= last]
    if most_bytes is None:
        return chosen
    total = sum(_size(path, name) for name in day_files(path) if name not in going)
    for day in days[len(chosen) :]:
        if total <= most_bytes:
            break
        total -= outputs.size_of(day)
        chosen.append(day)
    return chosen


def _chosen(path: str, older_days: float | None, most_bytes: int | None) -> list[str]:
    files = day_files(path)[:-1]
    going = []
    if older_days is not None:
        limit = time.strftime("%Y-%m-%d", time.gmtime(time.time() - older_days * _DAY))
        going = [name for name in files if name.partition(".")[0] < limit]
    if most_bytes is not None:
        total = sum(_size(path, name) for name in day_files(path) if name not in going)
        for name in [one for one in files if one not in going]:
            if total <= most_bytes:
                break
            total -= _size(path, name)
            going.append(name)
    return sorted(going)


def _size(path: str, name: str) -> int:
    size = os.path.getsize(os.path.join(path, name))
    with contextlib.suppress(FileNotFoundError):
        size += os.path.getsize(os.path.join(inputs(), name.partition(".")[0]))
    return size + outputs.size_of(name.partition(".")[0])


def _write_anchor(path: str, last: str) -> None:
    """The last record of the last day that goes."""
    line = b""
    with open(os.path.join(path, last), "rb") as file:
        for line in file:  # noqa: B007 - the last one is what is wanted
            pass
    try:
        found = decode(line)
    except BrokenRecordError as error:
        raise UsageError(f"{last} has no last record: {error}") from error
    text = json_text.dumps({"seq": found["seq"], "digest": found["digest"], "through": last})
    unfinished = os.path.join(path, f"{ANCHOR}.{os.getpid()}")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text + "\n")
    os.rename(unfinished, os.path.join(path, ANCHOR))
