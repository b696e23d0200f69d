"""Verifying the audit log while it is written, and after writers that did not finish."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from audit_writers import WRITER, day_file, lines_of, write

from belljar.audit.log import AuditLog, Head, day_files, directory, record
from belljar.audit.reading import records
from belljar.audit.retention import prune
from belljar.audit.verify import verify


class TestUnfinished:
    """What a process left that was killed in the middle."""

    def test_a_record_without_its_head(self, tmp_path: Path) -> None:
        """It was written, and the head was not renewed: it is adopted."""
        log = write(tmp_path, 2)
        head = (tmp_path / "head").read_bytes()
        log.append({"event": "third"})
        (tmp_path / "head").write_bytes(head)
        AuditLog(str(tmp_path)).append({"event": "fourth"})
        assert verify(str(tmp_path)).ok
        assert [one["event"] for one in records(str(tmp_path))][2:] == ["third", "fourth"]

    def test_half_a_record(self, tmp_path: Path) -> None:
        """Nobody was told that it is there: it is taken back."""
        write(tmp_path, 2)
        with day_file(tmp_path).open("ab") as file:
            file.write(b'{"seq":3,"time":1')
        AuditLog(str(tmp_path)).append({"event": "third"})
        assert verify(str(tmp_path)).ok
        assert verify(str(tmp_path)).records == 3

    @pytest.mark.parametrize("days", [0, 1, 2], ids=["the clock went back", "the same day", "a day later"])
    @pytest.mark.parametrize("left", ["whole", "half", "nothing"])
    @pytest.mark.parametrize("who", ["the same process", "another"])
    def test_at_the_change_of_the_day(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, left: str, who: str
    ) -> None:
        """What is in the new day's file, and not in the head, is adopted or taken back as on any other day."""
        begun, log = 86_400.0 * 20_000, AuditLog(str(tmp_path))
        monkeypatch.setattr("belljar.audit.log.time.time", lambda: begun)
        for number in range(2):
            log.append({"event": "test", "number": number})
        head = (tmp_path / "head").read_bytes()
        monkeypatch.setattr("belljar.audit.log.time.time", lambda: begun + 86_400)
        AuditLog(str(tmp_path)).append({"event": "third"})
        (tmp_path / "head").write_bytes(head)
        file = tmp_path / day_files(str(tmp_path))[-1]
        os.truncate(file, {"whole": file.stat().st_size, "half": 40, "nothing": 0}[left])
        monkeypatch.setattr("belljar.audit.log.time.time", lambda: begun + 86_400 * days)
        if who == "another" or not days:
            log = AuditLog(str(tmp_path))
        log.append({"event": "fourth"})
        log.append({"event": "fifth"})
        assert verify(str(tmp_path)).ok, verify(str(tmp_path))
        assert [one["event"] for one in records(str(tmp_path))][2:] == [
            *(["third"] if left == "whole" else []),
            "fourth",
            "fifth",
        ]

    def test_a_day_is_in_the_head_before_its_first_record(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So whoever is killed there has its record looked for, also if the clock goes back."""
        begun, log = 86_400.0 * 20_000, AuditLog(str(tmp_path))
        monkeypatch.setattr("belljar.audit.log.time.time", lambda: begun)
        log.append({"event": "first"})
        other = AuditLog(str(tmp_path))
        monkeypatch.setattr("belljar.audit.log.time.time", lambda: begun + 86_400)
        renewed: list[Head] = []
        renew = other._renew
        monkeypatch.setattr(other, "_renew", lambda head: (renewed.append(head), renew(head)))
        other.append({"event": "second"})
        assert [(head.link.seq, head.day, head.size > 0) for head in renewed] == [
            (1, "2024-10-05", False),
            (2, "2024-10-05", True),
        ]
        (tmp_path / "head").write_bytes(renewed[0].encode())  # as if it had been killed then
        monkeypatch.setattr("belljar.audit.log.time.time", lambda: begun)
        log.append({"event": "third"})
        assert verify(str(tmp_path)).ok, verify(str(tmp_path))
        assert [one["event"] for one in records(str(tmp_path))] == ["first", "second", "third"]

    def test_the_file_of_a_later_day_that_is_someone_elses(self, tmp_path: Path) -> None:
        """Is not written into, and stays for `verify` to find."""
        write(tmp_path, 2)
        (tmp_path / "2999-01-01.jsonl").write_bytes(lines_of(tmp_path)[0])
        AuditLog(str(tmp_path)).append({"event": "third"})
        assert len((tmp_path / "2999-01-01.jsonl").read_bytes().splitlines()) == 1
        verdict = verify(str(tmp_path))
        assert (verdict.records, verdict.where) == (3, "2999-01-01.jsonl:1")

    def test_a_lost_head_is_made_again_for_writing(self, tmp_path: Path) -> None:
        """From the last file; who verified before knew."""
        write(tmp_path, 2)
        (tmp_path / "head").unlink()
        AuditLog(str(tmp_path)).append({"event": "third"})
        assert verify(str(tmp_path)).ok


class TestVerifyingWhatIsWritten:
    """Others write while it is read, and are killed: none of that is tampering."""

    def test_while_others_write(self, tmp_path: Path) -> None:
        """However often it is asked, it is in order."""
        write(tmp_path, 1)
        command = [sys.executable, "-c", WRITER, str(tmp_path), "w", "1000000"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            reader = threading.Thread(target=writer.stdout.read)
            reader.start()
            try:
                until, found = time.monotonic() + 1.5, []
                while time.monotonic() < until:
                    found.append(verify(str(tmp_path)))
            finally:
                writer.kill()
                reader.join()
        assert [verdict for verdict in found if not verdict.ok] == []
        assert found[-1].records > found[0].records

    LEFT: dict[str, tuple[Callable[[bytes], bytes], int]] = {
        "a record": (lambda line: line, 1),
        "half a record": (lambda line: line[:-20], 0),
        "all but its end": (lambda line: line[:-1], 0),
    }

    @pytest.mark.parametrize(("left", "records"), LEFT.values(), ids=LEFT)
    @pytest.mark.parametrize("day", ["the same day", "the next day"])
    def test_after_a_writer_was_killed(
        self, monkeypatch: pytest.MonkeyPatch, day: str, left: Callable[[bytes], bytes], records: int
    ) -> None:
        """What the next one adopts or takes back is in order already; so it can be pruned."""
        path = Path(directory())
        record("first")
        record("second")
        head = (path / "head").read_bytes()
        now = time.time() + (86_400 if day == "the next day" else 0)
        monkeypatch.setattr("belljar.audit.log.time.time", lambda: now)
        record("third")
        (path / "head").write_bytes(head)
        file = path / day_files(str(path))[-1]
        *others, last = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join(others) + left(last))
        verdict = verify(str(path))
        assert (verdict.ok, verdict.records, verdict.unacknowledged) == (True, 2 + records, records), verdict
        prune(older_days=1)
        record("fourth")
        verdict = verify(str(path))
        assert (verdict.ok, verdict.records, verdict.unacknowledged) == (True, 3 + records, 0), verdict

    @pytest.mark.parametrize(
        ("added", "problem"),
        [
            (b'{"seq":6,"time":1\n', "not a record"),
            (b'{"seq":6}\n{"seq"', "not a record"),
            (b"\n", "not a record"),
        ],
    )
    def test_what_nobody_would_adopt(self, tmp_path: Path, added: bytes, problem: str) -> None:
        """Is found, behind a record that somebody left as well."""
        log = write(tmp_path, 4)
        head = (tmp_path / "head").read_bytes()
        log.append({"event": "left"})
        (tmp_path / "head").write_bytes(head)
        with day_file(tmp_path).open("ab") as file:
            file.write(added)
        verdict = verify(str(tmp_path))
        assert (verdict.ok, verdict.records) == (False, 5)
        assert verdict.where.endswith(".jsonl:6")
        assert problem in verdict.problem

    def test_a_writer_that_stands_still(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Is not waited for without end."""
        monkeypatch.setattr("belljar.audit.verify._PATIENCE_SECONDS", 0.05)
        write(tmp_path, 2)
        with (tmp_path / "head").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            assert verify(str(tmp_path)).ok

    def test_nobody_is_held_up_by_it(self, tmp_path: Path) -> None:
        """It lets go before it reads all of it."""
        log = write(tmp_path, 2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("belljar.audit.verify._TOLD_AT_ONCE", 1)
            verdict = verify(str(tmp_path), lambda _count: log.append({"event": "meanwhile"}) and None)
        assert (verdict.ok, verdict.records) == (True, 2)

    def test_a_log_that_nobody_has_written_to_yet(self, tmp_path: Path) -> None:
        """Who was killed before its first record has left an empty head, or one of a day without records."""
        (tmp_path / "head").touch()
        assert verify(str(tmp_path)).ok
        AuditLog(str(tmp_path)).append({"event": "first"})
        assert verify(str(tmp_path)).records == 1
