"""What is old goes from everywhere: the run store, policies and plans; and what was counted stays counted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from belljar.audit import stored
from belljar.audit.counters import Sums, added, from_record, sums, to_record
from belljar.audit.log import audit_log, day_files, directory, record
from belljar.audit.retention import prune
from belljar.audit.store import RunStore
from belljar.audit.verify import verify
from belljar.state import state_directory

DAYS = 6


def write_run(day: int, number: int, policy: str) -> None:
    """A run that ended well, or did not, with some traffic."""
    run = f"{day}-{number}"
    plan = "sha256:" + stored.store(stored.plans(), b"plan of day %d" % day, ".json")
    egress = {"event": "egress", "run": run, "allowed": number > 0, "kind": "tcp", "reason": "listed"}
    audit_log().append(
        {"event": "created", "run": run, "kind": "run", "backend": "bubblewrap", "policy": policy, "owner": 1},
        {"event": "plan", "run": run, "plan": plan},
        {**egress, "bytes_in": 100, "bytes_out": 10, "at": time.time()},
        {"event": "usage", "run": run, "samples": [[1.0, 0.1, 1000, 1]]},
        {
            "event": "finished",
            "run": run,
            "outcome": "ok" if number else "failed",
            "backend": "bubblewrap",
            "policy": policy,
            "duration": 0.1 * (day + 1),
            "stdout_bytes": 7,
            "text": "x" * 2000,
        },
    )


@pytest.fixture
def log() -> Path:
    """Six days of three runs each, the last of which is today; every second day had the same policy."""
    now = time.time()
    with pytest.MonkeyPatch.context() as patch:
        for day in range(DAYS):
            moment = now - 86_400 * 10 * (DAYS - 1 - day)
            patch.setattr("belljar.audit.log.time.time", lambda moment=moment: moment)
            text = b'"even"' if day % 2 == 0 else b'"of day %d"' % day
            policy = "sha256:" + stored.store(stored.policies(), text, ".json")
            record("policy", policy=policy)
            for number in range(3):
                write_run(day, number, policy)
    for file in [*Path(stored.plans()).iterdir(), *Path(stored.policies()).iterdir()]:
        os.utime(file, (now - 86_400 * 100,) * 2)
    return Path(directory())


def numbers() -> Sums:
    """All that metrics count."""
    with RunStore() as store:
        found = from_record(to_record(added(sums(store.ask), store.past())))
    return {
        name: {labels: [round(one, 3) for one in row] for labels, row in rows.items()} for name, rows in found.items()
    }


def texts(place: str) -> set[str]:
    """What is stored there."""
    return {file.read_text() for file in Path(place).iterdir()}


def test_the_run_store_forgets(log: Path) -> None:
    """Runs, records and samples of days that are gone, and it gets smaller."""
    with RunStore() as store:
        assert len(store.runs()) == 18
    before = os.path.getsize(store.path)
    prune(older_days=25)
    with RunStore() as store:
        assert sorted({row["run"][0] for row in store.runs()}) == ["3", "4", "5"]
        assert len(store.runs()) == 9
        (first,) = store.ask("select min(seq) from events")[0]
        assert first == json.loads((log / "anchor").read_text())["seq"] + 1
        assert store.ask("select count(*) from samples")[0][0] == 9
        assert not store.rebuilt
    assert os.path.getsize(Path(state_directory(), "runs.sqlite")) < before
    assert verify(str(log)).ok


def test_no_counter_falls(log: Path) -> None:
    """Not by pruning, not by pruning again, not by making the store anew."""
    before = numbers()
    assert before["belljar_runs"]
    for days in (25, 15, 5):
        prune(older_days=days)
        assert numbers() == before
        Path(state_directory(), "runs.sqlite").unlink()
        assert numbers() == before
    write_run(7, 1, "sha256:0")
    assert sum(count for (count,) in numbers()["belljar_runs"].values()) == 19
    assert verify(str(log)).ok


def test_a_run_that_was_there_before_and_ends_after(log: Path) -> None:
    """Is counted once, and is known by what its end tells."""
    day = log / day_files(str(log))[0]
    assert b'"run":"0-0"' in day.read_bytes()
    audit_log().append({"event": "finished", "run": "0-0", "outcome": "ok", "backend": "docker", "policy": "p"})
    before = numbers()
    prune(older_days=25)
    assert numbers() == before
    with RunStore() as store:
        row = store.run("0-0")
        assert row is not None
    Path(state_directory(), "runs.sqlite").unlink()
    with RunStore() as store:
        row = store.run("0-0")
        assert row is not None
        assert (row["backend"], row["policy"], row["outcome"]) == ("docker", "p", "ok")
    assert sum(count for (count,) in numbers()["belljar_runs"].values()) == 18


def test_killed_after_it_was_told(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is there, and the files are, too: the next one removes them, and nothing is counted twice."""
    before = numbers()

    def killed(*_arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("belljar.audit.retention._write_anchor", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(older_days=25)
    assert len(day_files(str(log))) == DAYS
    assert numbers() == before
    prune(older_days=25)
    assert len(day_files(str(log))) == DAYS - 3
    assert numbers() == before
    assert verify(str(log)).ok


def test_policies_and_plans(log: Path) -> None:
    """Those that no record names go; those of days that are left stay, whoever stored them."""
    done = prune(older_days=25)
    assert texts(stored.policies()) == {'"even"', '"of day 3"', '"of day 5"'}
    assert texts(stored.plans()) == {"plan of day 3", "plan of day 4", "plan of day 5"}
    assert len([file for file in done.files if file.endswith(".json")]) == 4
    assert verify(str(log)).ok


def test_policies_of_who_lives_since_then(log: Path) -> None:
    """A process may name one again without writing it: while one lives that is so old, they stay."""
    control = Path(state_directory(), "control")
    control.mkdir(mode=0o700)
    socket = control / f"{os.getpid()}-1.sock"
    socket.touch()
    os.utime(socket, (time.time() - 86_400 * 70,) * 2)
    prune(older_days=35)
    assert len(texts(stored.plans())) == DAYS
    socket.rename(control / "4194305-1.sock")  # a number that no process has
    prune(older_days=25)
    assert len(texts(stored.plans())) == 3
    assert verify(str(log)).ok


@pytest.mark.usefixtures("log")
def test_policies_that_were_just_looked_for() -> None:
    """Who has stored one, and has not run anything yet, will find it."""
    stored._KNOWN.clear()
    stored.store(stored.policies(), b'"of day 1"', ".json")
    stored.store(stored.policies(), b'"new"', ".json")
    prune(older_days=25)
    assert {'"of day 1"', '"new"'} <= texts(stored.policies())


def test_the_run_store_counts_by_size(log: Path) -> None:
    """What is left is no larger, the store and the plans included."""
    with RunStore() as store:
        pass
    index = os.path.getsize(store.path)
    logs = sum(path.stat().st_size for path in log.glob("*.jsonl"))
    prune(most_bytes=logs + index // 2)
    assert len(day_files(str(log))) < DAYS
    assert len(day_files(str(log))) > 1


def test_a_day_without_records(log: Path) -> None:
    """Who began it was killed: it goes like any other."""
    (log / "2001-01-01.jsonl").touch()
    name = time.strftime("%Y-%m-%d", time.gmtime(time.time() - 86_400 * 26))
    (log / f"{name}.jsonl").touch()
    prune(older_days=5000)
    assert verify(str(log)).ok
    prune(older_days=25)
    assert len(day_files(str(log))) == 3
    assert verify(str(log)).ok
    record("later")
    assert verify(str(log)).ok


def test_a_file_of_another_name(log: Path) -> None:
    """With nothing in it, it is no reason to fail, or to remove the day that is being written."""
    (log / "2999-copy.jsonl").touch()
    (log / "2020-copy.jsonl").touch()
    assert prune(most_bytes=1).files
    assert len(day_files(str(log))) == 2
    (log / "2021-copy.jsonl").touch()
    assert prune(most_bytes=1).files
    record("later")
    assert verify(str(log)).ok


def test_totals_that_are_none() -> None:
    """What a record holds instead is nothing."""
    for told in (None, [], {"a": 1}, {"a": [1]}, {"a": [[["x"], ["y"]]]}, {"a": [[["x"], None]]}):
        assert from_record(told) == {}
    assert added({"a": {(): [1.0, 2.0]}}, {"a": {(): [1.0]}}) == {"a": {(): [1.0, 2.0]}}
