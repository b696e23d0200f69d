"""The audit log, read: its records in order, those that someone asks for, and new ones as they come."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

from belljar.audit.chain import BrokenRecordError, decode
from belljar.audit.log import day_files

_LONGEST_LINE = 64 << 20
_TICK_SECONDS = 0.1


def lines(path: str, *, since: str = "", until: Mapping[str, int] | None = None) -> Iterator[tuple[str, int, bytes]]:
    """Every line of the log in a directory, with its file and number; `since` is the first day (2026-01-31), and
    `until` says which files count, and how much of each.
    """
    for name in day_files(path) if until is None else until:
        if name >= since:
            # One that is gone was removed meanwhile, because it was old.
            with contextlib.suppress(FileNotFoundError), open(os.path.join(path, name), "rb") as file:
                left, number = sys.maxsize if until is None else until[name], 0
                while line := file.readline(min(_LONGEST_LINE, left)):
                    number += 1
                    left -= len(line)
                    yield name, number, line


def records(path: str, *, since: str = "", until: Mapping[str, int] | None = None) -> Iterator[dict[str, Any]]:
    """Every record that is whole. What is not, `verify` names."""
    for _name, _number, line in lines(path, since=since, until=until):
        try:
            yield decode(line)
        except BrokenRecordError:
            continue


def ends(path: str) -> dict[str, int]:
    """Where each file of the log ends now: what was written until then is before, and the rest comes later."""
    return {name: os.path.getsize(os.path.join(path, name)) for name in day_files(path)}


def matches(record: Mapping[str, Any], wanted: Mapping[str, str]) -> bool:
    """Whether every member that is wanted is as it is wanted: `event=denied`, `run=…`, `details.host=…`."""
    return all(_text(_member(record, name)) == value for name, value in wanted.items())


def _member(record: Any, name: str) -> Any:
    for part in name.split("."):
        if not isinstance(record, Mapping):
            return None
        record = record.get(part)
    return record


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, Mapping | list):
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def follow_log(path: str, after: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Records that were written behind these ends, as they come. It has no end."""
    name = max(after, default="")
    offset = after.get(name, 0)
    while True:
        for day in [one for one in day_files(path) if one >= name]:
            if day != name:
                name, offset = day, 0
            with contextlib.suppress(FileNotFoundError), open(os.path.join(path, day), "rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    offset += len(line)
                    try:
                        yield decode(line)
                    except BrokenRecordError:
                        continue
        time.sleep(_TICK_SECONDS)
