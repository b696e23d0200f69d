"""What is old is removed: days of the audit log, with the inputs and outputs of runs. The chain begins at an *anchor*.

The anchor is written before anything is removed, and names the last day that goes: a process that is killed in between
leaves files that nobody reads, and that the next one removes. The record of it has what metrics had counted of those
days; the run store forgets them when it reads that. Policies and plans go when no record names them any more.
"""

from __future__ import annotations

import calendar
import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from belljar.audit import outputs
from belljar.audit.chain import Link, decode
from belljar.audit.counters import to_record
from belljar.audit.log import day_files, directory, read_head, record
from belljar.audit.store import RunStore
from belljar.audit.stored import inputs, plans, policies
from belljar.audit.verify import ANCHOR, anchor, pruned_signatures, verify
from belljar.errors import UsageError
from belljar.state import state_directory

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
    sizes = _sizes(path)
    going = _chosen(path, sizes, older_days, most_bytes)
    printed = _printed(sizes, going, most_bytes)
    if not going and not printed:
        return Pruned((), 0)
    _tell(path, going, printed)
    removed, size = _remove(file for name in going for file in (os.path.join(path, name), _inputs_of(name)))
    for day in printed:
        gone, bytes_ = outputs.remove(day)
        removed.append(gone)
        size += bytes_
    if going:
        unused, bytes_ = _remove(_unused(path))
        removed, size = removed + unused, size + bytes_
    return Pruned(tuple(removed), size)


def _tell(path: str, going: list[str], printed: list[str]) -> None:
    """What is about to go is written down, and where the chain begins then."""
    told: dict[str, Any] = {"through": going[-1] if going else None, "files": len(going), "outputs": printed}
    if not going:
        record("pruned", **told)
        return
    last = _last_link(path, going)
    with RunStore() as store:
        totals = to_record(store.past_without(last.seq))
    record("pruned", **told, upto=last.seq, totals=totals)
    _write_anchor(path, last, going[-1], _signatures(path, going))


def _remove(files: Iterator[str]) -> tuple[list[str], int]:
    removed, size = [], 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            size += os.path.getsize(file)
            os.unlink(file)
            removed.append(file)
    return removed, size


# --- how much there is ---


def _sizes(path: str) -> dict[str, int]:
    """What each day takes, with its inputs and outputs, and its share of what is kept for all of them."""
    logs = {name: os.path.getsize(os.path.join(path, name)) for name in day_files(path)}
    index = os.path.join(state_directory(), "runs.sqlite")
    shared = sum(map(_size, (index, f"{index}-wal", *_texts())))
    whole = sum(logs.values()) or 1
    return {
        name: size + _size(_inputs_of(name)) + outputs.size_of(_day(name)) + shared * size // whole
        for name, size in logs.items()
    }


def _size(file: str) -> int:
    try:
        return os.path.getsize(file)
    except FileNotFoundError:
        return 0


def _day(name: str) -> str:
    return name.partition(".")[0]


def _inputs_of(name: str) -> str:
    return os.path.join(inputs(), _day(name))


# --- what goes ---


def _chosen(path: str, sizes: dict[str, int], older_days: float | None, most_bytes: int | None) -> list[str]:
    files = [name for name in list(sizes)[:-1] if _day(name) < _written_day(path)]
    going = []
    if older_days is not None:
        limit = time.strftime("%Y-%m-%d", time.gmtime(time.time() - older_days * _DAY))
        going = [name for name in files if _day(name) < limit]
    if most_bytes is not None:
        total = sum(size for name, size in sizes.items() if name not in going)
        for name in [one for one in files if one not in going]:
            if total <= most_bytes:
                break
            total -= sizes[name]
            going.append(name)
    return sorted(going)


def _written_day(path: str) -> str:
    """The day that is being written, as the head has it: a file of a later name may be there, with nothing in it."""
    try:
        with open(os.path.join(path, "head"), "rb") as file:
            head = read_head(file.read(256))
    except FileNotFoundError:
        head = None
    return head.day if head is not None else ""


def _printed(sizes: dict[str, int], going: list[str], most_bytes: int | None) -> list[str]:
    """The days whose outputs go: those of the log's days that go, and what is too much besides."""
    last = _day(going[-1]) if going else ""
    days = outputs.days()
    chosen = [day for day in days if day <= last]
    if most_bytes is None:
        return chosen
    total = sum(size for name, size in sizes.items() if name not in going)
    for day in days[len(chosen) :]:
        if total <= most_bytes:
            break
        total -= outputs.size_of(day)
        chosen.append(day)
    return chosen


def _texts() -> Iterator[str]:
    """The files of all policies and plans."""
    for place in (policies(), plans()):
        with contextlib.suppress(FileNotFoundError), os.scandir(place) as entries:
            yield from (entry.path for entry in entries if entry.is_file(follow_symlinks=False))


def _unused(path: str) -> Iterator[str]:
    """Those that no record names, and that nobody has looked for since before the first day that is left.

    A process that lives since then may name one in its next run, and would not write it again. Then all of them stay.
    """
    with RunStore() as store:  # which forgets what was removed
        named = store.referred_to()
    first = _beginning_of(_day(day_files(path)[0])) - _DAY
    if not _lives_since(first):
        for file in _texts():
            if _day(os.path.basename(file)) not in named and os.path.getmtime(file) < first:
                yield file


def _beginning_of(day: str) -> float:
    try:
        return calendar.timegm(time.strptime(day, "%Y-%m-%d"))
    except ValueError:  # a file of another name, with nothing in it
        return 0.0


def _lives_since(moment: float) -> bool:
    """Whether a belljar process of this user began before: each has a socket while it lives."""
    with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(state_directory(), "control")) as entries:
        for entry in entries:
            if os.path.exists(f"/proc/{entry.name.partition('-')[0]}") and entry.stat().st_mtime < moment:
                return True
    return False


# --- where the chain begins ---


def _last_link(path: str, going: list[str]) -> Link:
    """The last record that goes. A day may have none, if who began it was killed."""
    for name in reversed(going):
        line = b""
        with open(os.path.join(path, name), "rb") as file:
            for one in file:
                line = one if one.endswith(b"\n") else line
        if line:
            found = decode(line)
            return Link(found["seq"], found["digest"])
    return anchor(path)


def _signatures(path: str, going: list[str]) -> list[dict[str, Any]]:
    """Return the last signature of each key among the records to remove, which `verify` needs for those that stay."""
    found = {str(one.get("public_key")): one for one in pruned_signatures(path)}
    for name in going:
        with open(os.path.join(path, name), "rb") as file:
            for line in file:
                if b'"event":"signed"' in line and (one := decode(line))["event"] == "signed":
                    found[str(one.get("public_key"))] = one
    return list(found.values())


def _write_anchor(path: str, last: Link, name: str, signed: list[dict[str, Any]]) -> None:
    told = {"seq": last.seq, "digest": last.digest, "through": name, "signed": signed}
    text = json.dumps(told, separators=(",", ":"))
    unfinished = os.path.join(path, f"{ANCHOR}.{os.getpid()}")
    with open(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(text + "\n")
    os.rename(unfinished, os.path.join(path, ANCHOR))
