"""The run store: an index of the audit log in SQLite, brought up to date by whoever reads it.

Nothing writes to it while code runs: the log is what is written then. So it can be thrown away at any time, and one
that is damaged is made anew from the log. Where it can't be written, or another process does not let go of it, it is
made in memory, for this once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

from belljar.audit.chain import BrokenRecordError, decode
from belljar.audit.counters import Sums, added, from_record, sums
from belljar.audit.log import day_files, directory
from belljar.audit.printable import encodable
from belljar.errors import UsageError
from belljar.state import private_directory, state_directory

_SCHEMA = """
create table if not exists place (file text, offset integer, events integer, runs integer, samples integer);
create table if not exists runs (
    run text primary key, kind text, created real, ended real, backend text, policy text, plan text, language text,
    code text, owner integer, outcome text, exit_code integer, reason text, duration real, cpu_seconds real,
    peak_memory_bytes integer, start_seconds real, bytes_read integer, bytes_written integer, stdout_bytes integer,
    stderr_bytes integer, denials integer default 0, egress integer default 0, artifacts integer default 0, script text
);
create table if not exists events (seq integer primary key, run text, time real, event text, record text);
create table if not exists samples (
    run text, seconds real, cpu_seconds real, memory_bytes integer, processes integer, primary key (run, seconds)
);
create table if not exists past (totals text);
create index if not exists by_run on events (run);
create index if not exists by_time on runs (created);
"""
_VERSION = 5
_PATIENCE_SECONDS = 10.0
_DAMAGE = (
    sqlite3.SQLITE_ERROR,  # other tables than ours
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_NOTADB,
)
_IN_THE_WAY = (errno.ELOOP, errno.EISDIR, errno.ENXIO)
"""A link, a directory, a socket."""
_COLUMNS = ("kind", "backend", "policy", "language", "code", "owner", "script")
_ENDED = (
    "outcome",
    "exit_code",
    "reason",
    "duration",
    "cpu_seconds",
    "peak_memory_bytes",
    "start_seconds",
    "bytes_read",
    "bytes_written",
    "stdout_bytes",
    "stderr_bytes",
    "denials",
)


class _DamagedError(Exception):
    """It is not what we wrote."""


class _UnusableError(Exception):
    """It can't be written, or someone else has it. That says nothing about what is in it."""


@contextlib.contextmanager
def _judged() -> Iterator[None]:
    """Which of the two it is that the database says. Raises _DamagedError, _UnusableError."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)
        if code is None:  # a fault of ours
            raise
        damaged = code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ
        raise (_DamagedError if damaged else _UnusableError)(str(error)) from error


@contextlib.contextmanager
def _judged_place() -> Iterator[None]:
    """The same, of where it lies."""
    try:
        yield
    except OSError as error:
        raise (_DamagedError if error.errno in _IN_THE_WAY else _UnusableError)(str(error)) from error


class RunStore:
    """The store of this user. Close it, or use it as a context."""

    def __init__(self, path: str | None = None, log: str | None = None) -> None:
        self.path = path or os.path.join(state_directory(), "runs.sqlite")
        self._log = log or directory()
        self.rebuilt = False
        """Whether it was damaged, and made anew."""
        self.in_memory = False
        """Whether it could not be written, and is here for this once."""
        self._forgotten = False
        try:
            try:
                self._open()
            except _DamagedError:
                self._rebuild()
        except (_DamagedError, _UnusableError):
            self.in_memory = True
            self._database = _connected(":memory:")
            self._database.executescript(_SCHEMA)
            self._catch_up()
        if self._forgotten and not self.in_memory:
            with contextlib.suppress(sqlite3.Error):  # what was deleted is gone, if not its room
                self._database.execute("vacuum")

    def _open(self) -> None:
        with _judged_place():
            private_directory(os.path.dirname(self.path))
            _make_file(self.path)
        with _judged():
            self._database = _connected(self.path)
            try:
                self._prepare()
                self._catch_up()
            except BaseException:
                self._database.close()
                raise

    def _prepare(self) -> None:
        database = self._database
        database.execute("pragma journal_mode = wal")
        database.execute("pragma synchronous = normal")
        if database.execute("pragma user_version").fetchone()[0] not in (0, _VERSION):
            raise _DamagedError("made by another version")
        database.executescript(_SCHEMA)
        database.execute(f"pragma user_version = {_VERSION}")
        if database.execute("pragma quick_check(1)").fetchone()[0] != "ok":
            raise _DamagedError("not in order")

    def _rebuild(self) -> None:
        """By one process at a time: another may just have done it."""
        with _alone_in(os.path.dirname(self.path)):
            with contextlib.suppress(_DamagedError):
                self._open()
                return
            with _judged_place():
                for suffix in ("-wal", "-shm", ""):
                    _remove(self.path + suffix)
            self._open()
            self.rebuilt = True

    def close(self) -> None:
        """Let go of it."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    # --- bringing up to date ---

    def _catch_up(self) -> None:
        database = self._database
        database.execute("begin immediate")  # another reader may do the same
        try:
            name, offset, *counted = database.execute("select * from place").fetchone() or ("", 0, 0, 0, 0)
            if counted != self._counts():
                raise _DamagedError("rows are missing, or were added")
            for day in [one for one in day_files(self._log) if one >= name]:
                offset = self._read(day, offset if day == name else 0)
                name = day
            database.execute("delete from place")
            database.execute("insert into place values (?, ?, ?, ?, ?)", (name, offset, *self._counts()))
            database.execute("commit")
        except BaseException:
            if database.in_transaction:  # on a disk that is full it is taken back already
                database.execute("rollback")
            raise

    def _counts(self) -> list[int]:
        return [self.ask(f"select count(*) from {table}")[0][0] for table in ("events", "runs", "samples")]  # noqa: S608

    def _read(self, day: str, offset: int) -> int:
        # One that is gone was removed meanwhile, because it was old.
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self._log, day), "rb") as file:
            if offset:
                file.seek(offset)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset += len(line)
                with contextlib.suppress(BrokenRecordError):
                    self._take(decode(line))
        return offset

    def _take(self, record: dict[str, Any]) -> None:
        event, run = str(record.get("event")), record.get("run")
        self._database.execute(
            "insert or replace into events values (?, ?, ?, ?, ?)",
            (record["seq"], _storable(run), record["time"], _storable(event), json.dumps(record)),
        )
        if not isinstance(run, str):
            if event == "pruned" and isinstance(upto := record.get("upto"), int):
                self._forget(upto)
                self._set_past(record.get("totals"))
            return
        run = _storable(run)
        self._database.execute("insert or ignore into runs (run, created) values (?, ?)", (run, record["time"]))
        if event == "created":
            self._set(run, {"created": record["time"], **{name: record.get(name) for name in _COLUMNS}})
        elif event in ("finished", "refused"):
            self._set(run, {"ended": record["time"], **{name: record.get(name) for name in _ENDED}})
            # Where its beginning is on a day that was removed.
            known = "update runs set backend = coalesce(backend, ?), policy = coalesce(policy, ?) where run = ?"
            self._database.execute(known, (_storable(record.get("backend")), _storable(record.get("policy")), run))
        elif event == "lost":
            self._set(run, {"ended": record["time"], "outcome": "lost", "reason": record.get("reason")})
        elif event == "usage":
            self._database.executemany(
                "insert or replace into samples values (?, ?, ?, ?, ?)",
                ((run, *sample) for sample in record.get("samples", ())),
            )
        elif event == "plan":
            self._set(run, {"plan": record.get("plan")})
        elif event == "artifacts":
            self._set(run, {"artifacts": record.get("count")})
        elif event == "egress":
            self._database.execute("update runs set egress = egress + 1 where run = ?", (run,))

    def _set(self, run: str, values: dict[str, Any]) -> None:
        names = ", ".join(f"{name} = ?" for name in values)  # names of ours
        plain = map(_storable, values.values())
        self._database.execute(f"update runs set {names} where run = ?", (*plain, run))  # noqa: S608 - see above

    # --- what was removed ---

    def _forget(self, upto: int) -> None:
        """What the log has no more: the records up to that one, and the runs of which nothing else is there."""
        ask = self._database.execute
        ask("delete from events where seq <= ?", (upto,))
        ask("delete from runs where run not in (select run from events where run is not null)")
        ask("delete from samples where run not in (select run from runs)")
        self._forgotten = True

    def _set_past(self, totals: Any) -> None:
        self._database.execute("delete from past")
        self._database.execute("insert into past values (?)", (json.dumps(totals),))

    def past(self) -> Sums:
        """What was counted of runs that are not here any more."""
        rows = self.ask("select totals from past")
        return from_record(json.loads(rows[0][0])) if rows else {}

    def past_without(self, upto: int) -> Sums:
        """What that will be when the records up to this one are gone. Nothing is written for it."""
        self._database.execute("begin")  # so that both are counted at one moment
        try:
            before = sums(self.ask)
            # Names of `temp` come before those of the store.
            self.ask(f"create temp view events as select * from main.events where seq > {int(upto)}")  # noqa: S608
            self.ask("create temp view runs as select * from main.runs where run in (select run from temp.events)")
            return added(self.past(), added(before, sums(self.ask), sign=-1))
        finally:
            self._database.execute("rollback")

    def referred_to(self) -> set[str]:
        """The digests of all policies and plans that records name."""
        asked = "select distinct json_extract(record, '$.policy'), json_extract(record, '$.plan') from events"
        return {str(digest).removeprefix("sha256:") for row in self.ask(asked) for digest in row if digest}

    # --- asking ---

    def ask(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """The rows of a statement of belljar's own."""
        return self._database.execute(statement, values).fetchall()

    def runs(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """The last ones, the newest first."""
        rows = self._database.execute("select * from runs order by created desc, run desc limit ?", (limit,))
        return [dict(row) for row in rows]

    def run(self, name: str) -> dict[str, Any] | None:
        """Return the run of that name, or the only one whose name ends or begins so; None if there is none.

        Raises:
            UsageError: several runs fit.
        """
        row = self._database.execute("select * from runs where run = ?", (name,)).fetchone()
        if row is None and name:
            rows = self._database.execute(
                "select * from runs where substr(run, 1, ?) = ? or substr(run, -?) = ? order by created desc limit 4",
                (len(name), name, len(name), name),
            ).fetchall()
            if len(rows) > 1:
                raise several(name, [str(found["run"]) for found in rows])
            row = rows[0] if rows else None
        return None if row is None else dict(row)

    def samples(self, run: str) -> list[dict[str, Any]]:
        """What a run used over time."""
        asked = "select seconds, cpu_seconds, memory_bytes, processes from samples where run = ? order by seconds"
        return [dict(row) for row in self._database.execute(asked, (run,))]

    def events(self, run: str) -> Iterator[dict[str, Any]]:
        """The records of a run, in order."""
        for row in self._database.execute("select record from events where run = ? order by seq", (run,)):
            yield json.loads(row["record"])


def several(name: str, runs: Sequence[str]) -> UsageError:
    """Return the error for a part of a name that fits more than one run."""
    shown = ", ".join(runs[:3]) + (", …" if len(runs) > 3 else "")
    return UsageError(f"{name!r} fits more than one run: {shown}", hint="type more of its name")


def _connected(path: str) -> sqlite3.Connection:
    database = sqlite3.connect(path, timeout=_PATIENCE_SECONDS, isolation_level=None)
    database.row_factory = sqlite3.Row
    return database


def _make_file(path: str) -> None:
    """Have it there, as a file of ours that only its owner can read. Raises OSError, _DamagedError."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _DamagedError("it is no file")
    finally:
        os.close(descriptor)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        if os.path.isdir(path) and not os.path.islink(path):
            os.rmdir(path)  # one with something in it is nothing of ours, and stays
        else:
            os.unlink(path)


@contextlib.contextmanager
def _alone_in(place: str) -> Iterator[None]:
    """While nobody else makes an index anew there. Raises _UnusableError."""
    descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + _PATIENCE_SECONDS
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > until:
                    raise _UnusableError("another process makes it anew") from error
                time.sleep(0.01)
        yield
    finally:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _storable(value: Any) -> Any:
    """What SQLite takes. It has no lone surrogates, as which Python carries bytes that are no UTF-8."""
    if isinstance(value, str):
        return encodable(value)
    fits = value is None or isinstance(value, float) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
    return value if fits else json.dumps(value)
