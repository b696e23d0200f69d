"""Whether the audit log is as it was written: the first record that is changed, missing, out of order or cut off.

Others may write meanwhile. So where the log stands is read at one moment, under the lock that whoever writes holds;
what was acknowledged by then never changes again, and is read without it. What lies behind that was left by a process
that was killed before it could renew the head: what the next one adopts, or takes back, is in order.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from belljar.audit.chain import START, BrokenRecordError, Link, decode, follow
from belljar.audit.log import Head, day_files, read_head
from belljar.audit.reading import lines
from belljar.policy.digest import sha256

ANCHOR = "anchor"
"""The file that says where the chain begins, once older days were removed."""
TEXTS = {"policy": "policies", "plan": "plans"}
"""Records that refer to a text by its digest, and where those texts are."""
_TOLD_AT_ONCE = 10_000
_PATIENCE_SECONDS, _TICK_SECONDS = 2.0, 0.005
"""For whoever writes. One that was stopped in the middle of it holds nobody up for longer."""


@dataclass(frozen=True, slots=True)
class LogVerdict:
    """What was found."""

    ok: bool
    records: int
    link: Link
    """The last record that is as it was written."""
    where: str = ""
    """File and line of the first that is not."""
    problem: str = ""
    unacknowledged: int = 0
    """Records at the end, which a process wrote that was killed before it heard so. Whoever writes next keeps them."""
    signed_seq: int | None = None
    """The last record that a signature covers, if signatures were asked for. Records after it may be anybody's."""
    unsigned: int = 0
    """Records that no signature covers."""
    removed_unsigned: int = 0
    """The last record that was pruned, if no signature covers the record of that: it may be forged."""


@dataclass(frozen=True, slots=True)
class _Moment:
    """Where the log stood: its beginning, its head, how much of each file was acknowledged, and what lies behind."""

    start: Link
    damaged: bool
    """Whether where it begins can't be told."""
    head: Head | None
    problem: str
    """With the head."""
    sizes: dict[str, int]
    left: dict[str, bytes]


def verify(path: str, seen: Callable[[int], None] | None = None) -> LogVerdict:
    """Look at every record in the directory. `seen` is told now and then how many were."""
    while True:
        moment = _moment(path)
        verdict = _Walk(path, moment, seen).verdict()
        if verdict.ok or anchor(path) == moment.start:
            return verdict
        # Old days were removed while it was read: it begins elsewhere now.


class _Walk:
    """Along the chain, record by record."""

    def __init__(self, path: str, moment: _Moment, seen: Callable[[int], None] | None) -> None:
        self._path, self._moment, self._seen = path, moment, seen
        self._link = moment.start
        self._count = 0
        self._texts: set[tuple[str, str]] = set()
        """Policies and plans that are as they were written."""
        self._at: dict[str, int] = {}
        """The last line of each file."""

    def verdict(self) -> LogVerdict:
        """What is found."""
        where = ANCHOR
        try:
            if self._moment.damaged:
                raise BrokenRecordError("the file is damaged: where the log begins can't be told")
            for name, number, line in lines(self._path, until=self._moment.sizes):
                where, self._at[name] = f"{name}:{number}", number
                self._take(line)
            where = f"{(day_files(self._path) or ['the log'])[-1]}, at its end"
            self._check_head()
            acknowledged = self._count
            for place, line in self._left():
                where = place
                if line.endswith(b"\n"):  # half a record is taken back by whoever writes next
                    self._take(line)
        except BrokenRecordError as error:
            return LogVerdict(ok=False, records=self._count, link=self._link, where=where, problem=str(error))
        return LogVerdict(ok=True, records=self._count, link=self._link, unacknowledged=self._count - acknowledged)

    def _take(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            raise BrokenRecordError("it is cut off")
        record = decode(line)
        link = follow(self._link, record)
        self._check_text(record)
        self._link = link
        self._count += 1
        if self._seen is not None and self._count % _TOLD_AT_ONCE == 0:
            self._seen(self._count)

    def _check_text(self, record: dict[str, Any]) -> None:
        """Once for each: many runs have the same plan."""
        event = str(record.get("event"))
        text = event, str(record.get(event))
        if event in TEXTS and text not in self._texts:
            if problem := _text_problem(self._path, *text):
                raise BrokenRecordError(problem)
            self._texts.add(text)

    def _check_head(self) -> None:
        """That what was acknowledged ends where the head says."""
        head, link = self._moment.head, self._link
        if self._moment.problem:
            raise BrokenRecordError(self._moment.problem)
        if head is None:
            return
        if head.link.seq > link.seq:
            raise BrokenRecordError(f"the log was cut: its last record is {link.seq}, and {head.link.seq} were written")
        if head.link != link:
            raise BrokenRecordError(
                f"it has records that nobody acknowledged: the last one that was is {head.link.seq}"
            )

    def _left(self) -> Iterator[tuple[str, bytes]]:
        for name, data in self._moment.left.items():
            for number, line in enumerate(io.BytesIO(data), self._at.get(name, 0) + 1):
                yield f"{name}:{number}", line


# --- where the log stands ---


def _moment(path: str) -> _Moment:
    try:
        with open(os.path.join(path, "head"), "rb", buffering=0) as file, _nobody_writes(file):
            return _look(path, file.read(256) or b"")
    except FileNotFoundError:
        return _look(path, None)


@contextlib.contextmanager
def _nobody_writes(file: IO[bytes]) -> Iterator[None]:
    until = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() >= until:
                break
            time.sleep(_TICK_SECONDS)
        except OSError:  # a copy, where there are no locks, and nobody who writes
            break
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # not left to closing: a process that was forked just now has it, too
            fcntl.flock(file, fcntl.LOCK_UN)


def _look(path: str, text: bytes | None) -> _Moment:
    """All that changes, while nobody writes."""
    start, removed, damaged = _beginning(path)
    head = read_head(text or b"")
    sizes: dict[str, int] = {}
    left: dict[str, bytes] = {}
    for name in day_files(path):
        with contextlib.suppress(FileNotFoundError):
            if name > removed:
                size = sizes[name] = os.path.getsize(os.path.join(path, name))
                if head is not None and (day := name.partition(".")[0]) >= head.day:
                    sizes[name] = min(size, head.size) if day == head.day else 0
                if size > sizes[name]:
                    left[name] = _from(os.path.join(path, name), sizes[name])
    begun = start != START or any(sizes.values())
    return _Moment(start, damaged, head, _head_problem(text, head, begun=begun), sizes, left)


def _from(path: str, offset: int) -> bytes:
    with open(path, "rb") as file:
        file.seek(offset)
        return file.read()


def _head_problem(text: bytes | None, head: Head | None, *, begun: bool) -> str:
    """A head is made, empty, before anything is written, and filled before the first record is."""
    if head is not None or (not text and not begun):
        return ""
    if text is None:
        return "the file `head` is missing: records after this one may be, too"
    return "the file `head` is damaged: whether records after this one are missing can't be told"


def anchor(path: str) -> Link:
    """Where the chain begins: before the first record of all, or after the last one that was removed."""
    return _beginning(path)[0]


def pruned_signatures(path: str) -> list[dict[str, Any]]:
    """The last signature by each key among the records that were removed."""
    try:
        with open(os.path.join(path, ANCHOR), encoding="ascii") as file:
            told = json.load(file).get("signed", [])
    except (OSError, ValueError, AttributeError, RecursionError):
        return []
    return [one for one in told if isinstance(one, dict)] if isinstance(told, list) else []


def _beginning(path: str) -> tuple[Link, str, bool]:
    """That, the last day's file that was removed, or is to be, and whether it can't be told."""
    try:
        with open(os.path.join(path, ANCHOR), encoding="ascii") as file:
            told = json.load(file)
        return Link(int(told["seq"]), str(told["digest"])), str(told["through"]), False
    except FileNotFoundError:
        return START, "", False
    except (ValueError, KeyError, TypeError, RecursionError):
        return START, "", True


def _text_problem(path: str, event: str, digest: str) -> str:
    """The full text of a policy or plan lies beside the log, under its digest."""
    name = digest.removeprefix("sha256:")
    if not name.isalnum():
        return f"it names no {event}"
    try:
        with open(os.path.join(path, TEXTS[event], f"{name}.json"), "rb") as file:
            return "" if sha256(file.read()) == name else f"the text of the {event} {digest} was changed"
    except FileNotFoundError:
        return f"the text of the {event} {digest} is missing"
