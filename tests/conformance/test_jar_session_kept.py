"""What outlives a session: snapshots, and files that are kept when it is ended for being idle."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from belljar import SandboxUnavailableError, Session
from belljar.errors import UsageError
from belljar.sandbox.record.events import Output
from belljar.sandbox.record.result import Outcome
from belljar.sandbox.session.open_sessions import kept_path

OpenSession = Callable[..., Session]


class TestSnapshots:
    """Files that can be had again."""

    MAKE = """
import os
os.makedirs('d/e'); open('d/e/f.txt', 'w').write('content'); os.symlink('e/f.txt', 'd/link')
os.chmod('d/e/f.txt', 0o700); open('bytes', 'wb').write(bytes(range(256))); os.mkdir('closed', 0o000)
"""
    LOOK = """
import os
sorted((os.path.join(top, name), oct(os.lstat(os.path.join(top, name)).st_mode)) for top, dirs, files in os.walk('.')
    for name in dirs + files)
"""

    def test_restore_brings_everything_back(self, session: Session) -> None:
        """Kinds, modes and content, and nothing that was made since."""
        session.run(self.MAKE)
        before = session.run(self.LOOK).value
        snapshot = session.snapshot()
        session.run("import shutil; shutil.rmtree('d'); open('bytes', 'w').write('x'); open('new', 'w')")
        session.restore(snapshot)
        assert session.run(self.LOOK).value == before
        assert session.run("open('bytes', 'rb').read() == bytes(range(256)), open('d/link').read()").value == (
            "(True, 'content')"
        )
        snapshot.remove()
        with pytest.raises(UsageError, match="no snapshot"):
            session.restore(snapshot)

    def test_fork_of_files(self, session: Session) -> None:
        """In a jar of its own: neither sees what the other does then."""
        session.run("x = 1; open('a', 'w').write('1')")
        with session.fork() as fork:
            assert fork.shares_jar_with == ""
            assert fork.run("open('a').read(), 'x' in globals()").value == "('1', False)"
            fork.run("open('a', 'w').write('2')")
            assert session.run("open('a').read()").value == "'1'"

    def test_of_a_copy_on_write_workspace(self, open_session: OpenSession, project: Path) -> None:
        """The changes alone, deletions among them; the host's directory is untouched."""
        (project / "kept").write_text("kept")
        (project / "removed").write_text("removed")
        (project / "replaced").mkdir()
        (project / "replaced/old").write_text("old")
        session = open_session(workspace=project)
        session.run(
            "import os, shutil; os.unlink('removed'); shutil.rmtree('replaced'); os.mkdir('replaced');"
            "open('replaced/new', 'w').write('new'); open('kept', 'a').write(' more')"
        )
        look = "{p: open(p).read() for p in ('kept', 'removed', 'replaced/old', 'replaced/new') if os.path.exists(p)}"
        wanted = "{'kept': 'kept more', 'replaced/new': 'new'}"
        snapshot = session.snapshot("changes")
        with session.fork() as fork:
            assert fork.run(f"import os; {look}").value == wanted
        session.run("open('kept', 'w').write('spoiled')")
        session.restore("changes")
        assert session.run(f"import os; {look}").value == wanted
        assert (project / "kept").read_text() == "kept"
        with open_session() as other:
            other.run("x = 1; open('own', 'w').write('own')")
            with pytest.raises(UsageError, match="holds changes of"):
                other.restore(snapshot)
            assert other.run("open('own').read(), x").value == "('own', 1)"
        snapshot.remove()

    def test_a_snapshot_that_is_cut_changes_nothing(self, session: Session, tmp_path: Path) -> None:
        """What can't be restored leaves files and variables as they are."""
        session.run("x = 1; open('a', 'w').write('1' * 20000)")
        snapshot = session.snapshot()
        cut = tmp_path / "cut.tar"
        cut.write_bytes(Path(snapshot.path).read_bytes()[:12000])
        snapshot.remove()
        with pytest.raises(SandboxUnavailableError, match="could not be restored"):
            session.restore(str(cut))
        assert session.run("len(open('a').read()), x").value == "(20000, 1)"

    def test_a_steps_time_is_not_for_restoring(self, session: Session, open_session: OpenSession) -> None:
        """However short it is."""
        session.files.write("a", "1")
        snapshot = session.snapshot()
        assert open_session({"proc": {"timeout_ms": "1ms"}}, files=snapshot).files.read("a") == b"1"
        snapshot.remove()

    def test_a_huge_hole_costs_no_file(self, open_session: OpenSession) -> None:
        """A file that is small in the jar is so in the snapshot, and in the next jar; the others are kept with it."""
        policy = {"fs": {"size_mb": 20}, "proc": {"file_size_mb": "4g"}}
        session = open_session(policy)
        session.files.write("other", "1")
        session.run("import os; hole = os.open('hole', os.O_CREAT | os.O_RDWR); os.truncate(hole, 3 << 30)")
        session.run("os.pwrite(hole, b'data', 2 << 30)")
        snapshot = session.snapshot()
        assert os.stat(snapshot.path).st_size < 1 << 20
        again = open_session(policy, files=snapshot)
        assert again.files.read("other") == b"1"
        told = again.run("import os; f = open('hole', 'rb'); f.seek(2 << 30); f.read(5), os.stat('hole').st_size")
        assert told.value == f"({b'data' + bytes(1)!r}, {3 << 30})"
        snapshot.remove()


def wait_until_evicted(session: Session) -> None:
    """Until it was ended for being idle or old."""
    deadline = time.monotonic() + 20
    while session.state != "evicted":
        assert time.monotonic() < deadline, session.state
        time.sleep(0.02)


class TestEviction:
    """Sessions end by themselves, and their files are kept for a time."""

    WITHOUT = {
        "no step, idle": ("", "idle_s"),
        "no step, old": ("", "max_age_s"),
        "crashed, idle": ("import os; os._exit(3)", "idle_s"),
    }

    @pytest.mark.parametrize(("before", "clock"), WITHOUT.values(), ids=WITHOUT)
    def test_without_an_interpreter(self, open_session: OpenSession, before: str, clock: str) -> None:
        """One that has run nothing yet, or whose interpreter has ended, does not stay for ever."""
        session = open_session({"session": {clock: "1.5s"}})
        session.files.write("kept", "k")
        if before:
            assert session.run(before).state_lost
        wait_until_evicted(session)
        with pytest.raises(UsageError, match=clock):
            session.run("1")
        session.restart()
        assert session.files.read("kept") == b"k"

    @pytest.mark.parametrize("before", ["", "import os; os._exit(3)"], ids=["no step", "crashed"])
    def test_one_without_an_interpreter_makes_room(self, open_session: OpenSession, before: str) -> None:
        """Its place is another's as soon as it is wanted."""
        policy = {"session": {"max_sessions": 1}}
        session = open_session(policy)
        if before:
            assert session.run(before).state_lost
        assert open_session(policy).run("1").value == "1"
        assert session.state == "evicted"

    def test_not_while_a_command_works(self, open_session: OpenSession) -> None:
        """What runs beside the interpreter is no idleness either, and gives its place to nobody."""
        session = open_session({"session": {"idle_s": 0.3, "max_sessions": 1}})
        stream = session.stream_beside(argv=["sh", "-c", "echo up; sleep 1; echo done"])
        printed = next(stream)
        assert isinstance(printed, Output)
        with pytest.raises(SandboxUnavailableError, match="max_sessions"):
            open_session({"session": {"max_sessions": 1}})
        assert [event.data for event in stream if isinstance(event, Output)] == [b"done\n"]

    def test_idle(self, open_session: OpenSession) -> None:
        """Its processes are gone; another session has its files."""
        session = open_session({"session": {"idle_s": 0.5}})
        session.run("x = 1; open('kept', 'w').write('k')")
        snapshot = session.snapshot()
        wait_until_evicted(session)
        beside: list[Callable[[], object]] = [
            session.snapshot,
            session.fork,
            lambda: session.files,
            lambda: session.exec(["true"]),
            lambda: session.stream_beside("1"),
        ]
        for call in beside:
            with pytest.raises(UsageError, match="idle_s"):
                call()
        with pytest.raises(UsageError, match="idle"):
            session.run("x")
        with Session.resume(session.id, backend=session.backend_name) as resumed:
            assert resumed.run("open('kept').read(), 'x' in globals()").value == "('k', False)"
        session.restore(snapshot)
        snapshot.remove()
        assert session.run("open('kept').read(), 'x' in globals()").value == "('k', False)"

    def test_taken_up_with_all_files_or_not_at_all(self, open_session: OpenSession) -> None:
        """If they can't be had it stays ended, and they stay where they are."""
        session = open_session({"session": {"idle_s": 1}})
        session.files.write("a", "1")
        session.files.write("b", "2" * 20000)
        wait_until_evicted(session)
        kept = Path(kept_path(session.id))
        whole = kept.read_bytes()
        kept.write_bytes(whole[:12000])
        for _time in range(2):
            with pytest.raises(SandboxUnavailableError, match="could not be restored"):
                session.restart()
            assert session.state == "evicted"
        kept.write_bytes(whole)
        session.restart()
        assert [entry.path for entry in session.files.list()] == ["a", "b"]
        assert not kept.exists()

    def test_not_while_it_works(self, open_session: OpenSession) -> None:
        """A step that takes longer than a session may be idle is not idleness."""
        session = open_session({"session": {"idle_s": 0.3}})
        assert session.run("import time; time.sleep(1); 'done'").value == "'done'"

    def test_age(self, open_session: OpenSession) -> None:
        """However busy it is."""
        session = open_session({"session": {"max_age_s": "2s"}})
        result = session.run("import time\nopen('kept', 'w')\nwhile True: time.sleep(0.1)")
        assert (result.outcome, result.state_lost) == (Outcome.TIMEOUT, True)
        wait_until_evicted(session)
        with pytest.raises(UsageError, match="max_age_s"):
            session.run("1")

    def test_one_too_many(self, open_session: OpenSession) -> None:
        """The one that was idle for longest goes; if none is idle, the new one is refused."""
        policy = {"session": {"max_sessions": 2}}
        first, second = open_session(policy), open_session(policy)
        first.run("1")
        second.run("1")
        third = open_session(policy)
        assert (first.state, second.state) == ("evicted", "idle")
        third.run("1")
        stream = (
            second.stream("import time; print(1); time.sleep(300)"),
            third.stream("import time; print(1); time.sleep(300)"),
        )
        for events in stream:
            next(events)
        with pytest.raises(SandboxUnavailableError, match="max_sessions"):
            open_session(policy)
        for events in stream:
            events.close()  # type: ignore[attr-defined]
