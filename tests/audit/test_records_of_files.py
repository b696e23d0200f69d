"""What is done with the files of a jar is in the log first: kept, brought back, saved, removed, restored, bundled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.cli.main import main
from belljar.errors import AuditError
from belljar.sandbox.files.snapshots import opened, path_of
from belljar.sandbox.incident.orders import carry_out
from belljar.sandbox.record.stream import Handle

pytestmark = pytest.mark.backend("bubblewrap")


def of_files() -> list[dict[str, Any]]:
    """The records that are about files."""
    events = ("snapshot", "snapshotted", "snapshot_removed", "restore", "apply", "save")
    return [record for record in records(directory()) if record["event"] in events]


def told() -> list[str]:
    """What they are."""
    return [record["event"] for record in of_files()]


@contextmanager
def no_log() -> Iterator[None]:
    """The audit log can't be written, and is gone."""
    shutil.rmtree(directory())
    Path(directory()).write_text("in the way")
    yield
    os.unlink(directory())


def kept(name: str) -> None:
    """A snapshot of a file."""
    with Session() as session:
        session.files.write("made", b"1")
        session.snapshot(name)


def test_a_snapshot_of_a_session() -> None:
    """And none where it can't be recorded."""
    with Session() as session:
        session.run("open('made', 'w').write('1')")
        session.snapshot("one")
        assert told() == ["snapshot", "snapshotted"]
        assert {record["session"] for record in of_files()} == {session.id}
        assert (of_files()[1]["files"], of_files()[1]["size"]) == (1, 1)
        with no_log(), pytest.raises(AuditError):
            session.snapshot("two")
        assert not os.path.exists(path_of("two"))


def test_a_snapshot_whose_end_cannot_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not kept."""
    from belljar.sandbox.record import recording

    inner = recording.files

    def files(event: str, **details: Any) -> None:
        if event == "snapshotted":
            raise AuditError("no room")
        inner(event, **details)

    monkeypatch.setattr(recording, "files", files)
    with Session() as session:
        session.run("1")
        with pytest.raises(AuditError):
            session.snapshot("one")
    assert not os.path.exists(path_of("one"))
    assert told() == ["snapshot"]


def test_a_snapshot_of_a_run() -> None:
    """From another process: it is that process's order, and this one's record."""
    with Sandbox() as jar, jar.stream("import time; print(1, flush=True); time.sleep(1000)") as stream:
        next(stream)
        order = {"op": "snapshot", "run": "some-run", "name": "one"}
        assert carry_out(order, stream.handle, None)["id"] == "one"
        assert [(record["event"], record["run"]) for record in of_files()] == [
            ("snapshot", "some-run"),
            ("snapshotted", "some-run"),
        ]
        with no_log():
            assert "audit log can't be written" in carry_out({**order, "name": "two"}, stream.handle, None)["error"]
        assert not os.path.exists(path_of("two"))
        with suppress(AuditError):
            stream.close()


def test_removing_one() -> None:
    """By the command, or by a program."""
    kept("one")
    with no_log():
        assert main(["snapshot", "rm", "one"]) == 125
    assert opened(path_of("one")).files == 1
    assert main(["snapshot", "rm", "one"]) == 0
    assert of_files()[-1]["path"] == path_of("one")
    assert told() == ["snapshot_removed"]


def test_restoring_one(tmp_path: Path) -> None:
    """Into a directory of the host's, or into a session."""
    kept("one")
    with no_log():
        assert main(["restore", "one", str(tmp_path / "here")]) == 125
    assert not (tmp_path / "here").exists()
    assert main(["restore", "one", str(tmp_path / "here")]) == 0
    assert (tmp_path / "here" / "made").read_bytes() == b"1"
    assert (told(), of_files()[0]["directory"]) == (["restore"], str(tmp_path / "here"))
    with Session() as session:
        session.restore("one")
        assert of_files()[-1]["session"] == session.id


def test_applying_changes(tmp_path: Path) -> None:
    """Before the host's directory is touched, with the run that made them."""
    with Sandbox(workspace=tmp_path) as jar:
        result = jar.run("open('made', 'w').write('1')")
        with jar.changes() as changes:
            with no_log(), pytest.raises(AuditError):
                changes.apply()
            assert list(tmp_path.iterdir()) == []
            assert changes.apply().applied == ("made",)
    (record,) = of_files()
    assert (record["event"], record["run"], record["count"]) == ("apply", result.run_id, 1)
    assert [len(digest) for _path, digest in record["paths"]] == [64]
    assert record["directory"] == str(tmp_path)


SAVING: dict[str, Callable[[Path], str]] = {
    "Sandbox": lambda place: _by_sandbox(place),
    "Pool": lambda place: _by_pool(place),
    "the command": lambda place: _by_command(place),
}
MAKES = "open('made', 'w').write('1')"


def _by_sandbox(place: Path) -> str:
    with Sandbox() as jar:
        result = jar.run(MAKES)
        with no_log(), pytest.raises(AuditError):
            jar.save_artifacts(result, place)
        assert not place.exists()
        jar.save_artifacts(result, place)
        return result.run_id


def _by_pool(place: Path) -> str:
    with Pool(size=1) as pool:
        return pool.run(MAKES, artifacts=place).run_id


def _by_command(place: Path) -> str:
    words = [sys.executable, "-m", "belljar", "run", "--artifacts", str(place), "-c", MAKES]
    subprocess.run(words, check=True)
    return next(str(record["run"]) for record in records(directory()) if record["event"] == "created")


@pytest.mark.parametrize("save", SAVING.values(), ids=SAVING)
def test_saving_artifacts(tmp_path: Path, save: Callable[[Path], str]) -> None:
    """Before they are copied, and where to."""
    run_id = save(tmp_path / "kept")
    assert (tmp_path / "kept" / "made").read_bytes() == b"1"
    (record,) = of_files()
    assert (record["event"], record["run"], record["count"]) == ("save", run_id, 1)
    assert record["directory"] == str(tmp_path / "kept")


class TestQuarantine:
    """A run stands still, whether or not that can be recorded."""

    @pytest.mark.parametrize("then", ["kill", "keep", "resume"])
    def test_without_a_log(self, then: str) -> None:
        """The bundle is there, and whoever asked hears that the log has nothing of it."""
        with Sandbox() as jar, jar.stream("import time; print(1, flush=True); time.sleep(1000)") as stream:
            next(stream)
            with no_log():
                order = {"op": "quarantine", "run": "some-run", "reason": "a test", "then": then}
                done = carry_out(order, stream.handle, None)
            assert "error" not in done, done
            assert done["still"]
            assert "audit log can't be written" in done["unrecorded"]
            assert stream.handle.kept_still is (then != "resume")
            with suppress(AuditError):
                stream.close()

    def test_what_is_said_of_the_run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """If the bundle can't be written: that it stands still, if it does."""
        from belljar.sandbox.incident import quarantine

        monkeypatch.setattr(quarantine, "directory", lambda: "/proc/nowhere")
        order = {"op": "quarantine", "run": "some-run", "reason": "a test", "then": "kill"}
        with Sandbox() as jar, jar.stream("import time; print(1, flush=True); time.sleep(1000)") as stream:
            next(stream)
            assert "it stands still until" in carry_out(order, stream.handle, None)["hint"]
            assert "it goes on" in carry_out({**order, "then": "resume"}, stream.handle, None)["hint"]
        assert "just ended" in carry_out(order, Handle(), None)["error"]

    def test_moved(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """The log says where the bundle is, and that of the next one is another's place."""
        with Sandbox() as jar:
            run = jar.run("1").run_id
        assert main(["quarantine", run, "--output", str(tmp_path / "bundle.tar")]) == 0
        assert capsys.readouterr().out == f"{tmp_path / 'bundle.tar'}\n"
        found = {record["event"]: record for record in records(directory()) if record.get("run") == run}
        assert found["quarantine_moved"]["path"] == str(tmp_path / "bundle.tar")
        assert found["quarantine_moved"]["was"] == found["quarantined"]["path"]
        assert found["quarantine_moved"]["sha256"] == found["quarantined"]["sha256"]
        assert (tmp_path / "bundle.tar").exists()
