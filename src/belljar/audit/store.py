"""The run store: an index of the audit log in SQLite, brought up to date by whoever reads it.

Nothing writes to it while code runs: the log is what is written then. So it can be thrown away at any time, and one
that is damaged is made anew from the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator
from typing import Any, Self

from belljar.audit.chain import BrokenRecordError, decode
from belljar.audit.log import day_files, directory
from belljar.audit.printable import encodable
from belljar.audit.state import private_directory, state_directory

_SCHEMA = """
create table if not exists place (file text, offset integer);
create table if not exists runs (
    run text primary key, kind text, created real, ended real, backend text, policy text, plan text, language text,
    code text, owner integer, outcome text, exit_code integer, reason text, duration real, cpu_seconds real,
    peak_memory_bytes integer, start_seconds real, bytes_read integer, bytes_written integer, stdout_bytes integer,
    stderr_bytes integer, denials integer default 0, egress integer default 0, artifacts integer default 0
);
create table if not exists events (seq integer primary key, run text, time real, event text, record text);
create table if not exists samples (
    run text, seconds real, cpu_seconds real, memory_bytes integer, processes integer, primary key (run, seconds)
);
create index if not exists by_run on events (run);
create index if not exists by_time on runs (created);
"""
_VERSION = 2
_COLUMNS = ("kind", "backend", "policy", "language", "code", "owner")
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


class RunStore:
    """The store of this user. Close it, or use it as a context."""

    def __init__(self, path: str | None = None, log: str | None = None) -> None:
        self.path = path or os.path.join(private_directory(state_directory()), "runs.sqlite")
        self._log = log or directory()
        self.rebuilt = False
        """Whether it was damaged, and made anew."""
        try:
            self._open()
        except sqlite3.DatabaseError:
            self._rebuild()

    def _open(self) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._database = sqlite3.connect(self.path, timeout=10, isolation_level=None)
        self._database.row_factory = sqlite3.Row
        self._database.execute("pragma journal_mode = wal")
        self._database.execute("pragma synchronous = normal")
        if self._database.execute("pragma user_version").fetchone()[0] not in (0, _VERSION):
            raise sqlite3.DatabaseError("made by another version")
        self._database.executescript(_SCHEMA)
        self._database.execute(f"pragma user_version = {_VERSION}")
        if self._database.execute("pragma quick_check(1)").fetchone()[0] != "ok":
            raise sqlite3.DatabaseError("damaged")
        self._catch_up()

    def _rebuild(self) -> None:
        with contextlib.suppress(AttributeError):
            self._database.close()
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + suffix)
        self.rebuilt = True
        self._open()

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
            place = database.execute("select file, offset from place").fetchone() or ("", 0)
            name, offset = place[0], place[1]
            for day in [one for one in day_files(self._log) if one >= name]:
                offset = self._read(day, offset if day == name else 0)
                name = day
            database.execute("delete from place")
            database.execute("insert into place values (?, ?)", (name, offset))
            database.execute("commit")
        except BaseException:
            database.execute("rollback")
            raise

    def _read(self, day: str, offset: int) -> int:
        with open(os.path.join(self._log, day), "rb") as file:
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
            return
        run = _storable(run)
        self._database.execute("insert or ignore into runs (run, created) values (?, ?)", (run, record["time"]))
        if event == "created":
            self._set(run, {"created": record["time"], **{name: record.get(name) for name in _COLUMNS}})
        elif event in ("finished", "refused"):
            self._set(run, {"ended": record["time"], **{name: record.get(name) for name in _ENDED}})
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

    # --- asking ---

    def ask(self, statement: str, *values: object) -> list[sqlite3.Row]:
        """The rows of a statement of belljar's own."""
        return self._database.execute(statement, values).fetchall()

    def runs(self, *, limit: int = 50) -> list[dict[str, Any]]:
        """The last ones, the newest first."""
        rows = self._database.execute("select * from runs order by created desc, run desc limit ?", (limit,))
        return [dict(row) for row in rows]

    def run(self, name: str) -> dict[str, Any] | None:
        """The run of that name, or the only one whose name ends or begins so."""
        row = self._database.execute("select * from runs where run = ?", (name,)).fetchone()
        if row is None and len(name) >= 4:
            rows = self._database.execute(
                "select * from runs where substr(run, 1, ?) = ? or substr(run, -?) = ? limit 2",
                (len(name), name, len(name), name),
            ).fetchall()
            row = rows[0] if len(rows) == 1 else None
        return None if row is None else dict(row)

    def samples(self, run: str) -> list[dict[str, Any]]:
        """What a run used over time."""
        asked = "select seconds, cpu_seconds, memory_bytes, processes from samples where run = ? order by seconds"
        return [dict(row) for row in self._database.execute(asked, (run,))]

    def events(self, run: str) -> Iterator[dict[str, Any]]:
        """The records of a run, in order."""
        for row in self._database.execute("select record from events where run = ? order by seq", (run,)):
            yield json.loads(row["record"])


def _storable(value: Any) -> Any:
    """What SQLite takes. It has no lone surrogates, as which Python carries bytes that are no UTF-8."""
    if isinstance(value, str):
        return encodable(value)
    fits = value is None or isinstance(value, float) or (isinstance(value, int) and -(1 << 63) <= value < 1 << 63)
    return value if fits else json.dumps(value)
