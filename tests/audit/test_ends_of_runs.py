"""A run that has begun has an end in the audit log, however it ends: left early, interrupted, broken, forgotten."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from belljar import Pool, Sandbox, Session
from belljar.audit.log import directory
from belljar.audit.reading import records
from belljar.audit.store import RunStore
from belljar.audit.verify import verify
from belljar.backends.bubblewrap.host.client import LAUNCHER
from belljar.backends.bubblewrap.launcher.launcher import _GRACE_SECONDS
from belljar.errors import AuditError, SandboxUnavailableError

pytestmark = pytest.mark.backend("bubblewrap")
SLEEPS = "import time; print(1, flush=True); time.sleep(1000)"


def of_runs() -> list[dict[str, Any]]:
    """The records of all runs."""
    return [record for record in records(directory()) if "run" in record]


def events() -> list[str]:
    """What they are."""
    return [record["event"] for record in of_runs()]


def the_end() -> dict[str, Any]:
    """The record of the only run's end; there is one."""
    (end,) = [record for record in of_runs() if record["event"] in ("finished", "lost", "refused")]
    assert verify(directory()).ok
    return end


def awaited(condition: Callable[[], object]) -> None:
    """Until it is so."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


LEFT: dict[str, Callable[[], Any]] = {"Sandbox": Sandbox, "Pool": lambda: Pool(size=1)}


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_a_loop_that_is_left(make: Callable[[], Any]) -> None:
    """It was killed, with what it had used by then, and the index knows it."""
    with make() as jar:
        for _event in jar.stream(SLEEPS):
            break
        assert events() == ["created", "plan", "started", "canaries", "killed", "finished"]
        end = the_end()
    assert (end["outcome"], end["reason"]) == ("killed", "nobody waited for it any more, or its Sandbox closed")
    assert end["peak_memory_bytes"] > 0 or "proc.mem_mb" in end["weaker"]  # no group counts it, and it was short
    assert end["stdout_bytes"] > 0
    with RunStore() as store:
        assert [row["outcome"] for row in store.runs()] == ["killed"]


@pytest.mark.parametrize("make", LEFT.values(), ids=LEFT)
def test_an_end_that_cannot_be_recorded(make: Callable[[], Any]) -> None:
    """The run is ended all the same, and whoever left it hears of it."""
    with make() as jar:
        stream = jar.stream(SLEEPS)
        next(stream)
        shutil.rmtree(directory())
        Path(directory()).write_text("in the way")
        with pytest.raises(AuditError):
            stream.close()
        os.unlink(directory())
        assert jar.run("print(2)").stdout == "2\n"


def test_a_step_that_is_left() -> None:
    """Has an end as well, and so has its session."""
    with Session() as session:
        for _event in session.stream(SLEEPS):
            break
        assert events()[-2:] == ["step", "stepped"]
        assert of_runs()[-1]["outcome"] == "killed"
        assert session.run("1").ok
    assert events()[-3:] == ["stepped", "canaries", "finished"]


def test_a_launcher_that_is_killed() -> None:
    """The run is lost, and so is the next one on that Sandbox: it never started."""
    with Sandbox() as jar:
        stream = jar.stream(SLEEPS)
        next(stream)
        os.kill(LAUNCHER._pid, signal.SIGKILL)
        with pytest.raises(SandboxUnavailableError):
            list(stream)
        assert the_end()["event"] == "lost"
        with pytest.raises(SandboxUnavailableError):
            jar.run("1")
    assert [event for event in events() if event in ("started", "lost", "finished")] == ["started", "lost"] * 2


FORGOTTEN = {
    "a stream": "s = Sandbox().stream(code); next(s); keep.append(s); sys.exit()",
    "a session": "s = Session(); s.run('1'); keep.append(s); sys.exit()",
    "a thread": "threading.Thread(target=lambda: Pool(size=1).run(code), daemon=True).start(); wait(); sys.exit()",
}
PROGRAM = """
import os, sys, threading, time
from belljar import Pool, Sandbox, Session
from belljar.sandbox.record.remote import running
keep, code = [], sys.argv[1]
def wait():
    while not running(): time.sleep(0.01)
"""


@pytest.mark.parametrize("what", FORGOTTEN)
def test_a_program_that_ends(what: str) -> None:
    """What it left open has ended with it, at once: nobody has to give it up first."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + FORGOTTEN[what], SLEEPS], capture_output=True, text=True, check=False
    )
    took = time.monotonic() - began
    assert (done.returncode, done.stderr) == (0, "")
    assert the_end()["outcome"] == "killed"
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", PROGRAM + "Session().run('1')"], capture_output=True, check=False)
    assert took < _GRACE_SECONDS + time.monotonic() - began  # the control: what starting takes now


WRITING = """
import threading, time
from belljar import Sandbox
from belljar.sandbox.record import recording
log, writing = recording.audit_log(), threading.Event()
class Slow:
    __getattr__ = lambda self, name: getattr(log, name)
    def append(self, *told, **options):
        if "finished" in str(told):
            writing.set()
            time.sleep(0.1)
        return log.append(*told, **options)
recording.audit_log = Slow
threading.Thread(target=Sandbox().run, args=["print(1)"], daemon=True).start()
writing.wait(60)
"""


def test_a_program_that_ends_while_a_thread_writes() -> None:
    """The end that a daemon thread was writing is in the log."""
    done = subprocess.run([sys.executable, "-c", WRITING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert the_end()["outcome"] == "ok"


WAITS = {"a run": "Sandbox().run(code)", "a step": "Session().run(code)", "a map": "list(Pool(size=1).map([code]))"}
SLEEPER = """
import signal
def interrupt():
    wait()
    asleep = 0
    while asleep < 5:  # the main thread sleeps, in five looks one after the other
        time.sleep(0.01)
        with open(f"/proc/self/task/{os.getpid()}/stat") as file:
            asleep = asleep + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
"""


@pytest.mark.parametrize("what", WAITS)
def test_a_signal_that_wakes_nobody(what: str) -> None:
    """The kernel may give it to another thread, or just before the first one sleeps: the run ends all the same."""
    program = PROGRAM + SLEEPER + WAITS[what]
    done = subprocess.run(
        [sys.executable, "-c", program, SLEEPS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in done.stderr
    assert the_end()["outcome"] == "killed"


SIGNALS = {"SIGINT": (130, "was interrupted"), "SIGTERM": (143, "ended"), "SIGHUP": (129, "ended")}


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("words", [["run", "-c", SLEEPS], ["run", "--json", "-c", SLEEPS], ["exec", "sleep", "1000"]])
def test_a_command_that_is_told_to_end(name: str, words: list[str]) -> None:
    """Its run was killed, with what it had used by then."""
    code, reason = SIGNALS[name]
    command = subprocess.Popen(
        [sys.executable, "-m", "belljar", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    awaited(lambda: "started" in events())
    command.send_signal(signal.Signals[name])
    _output, errors = command.communicate(timeout=60)
    assert (command.returncode, errors) == (code, b"")
    end = the_end()
    assert end["outcome"] == "killed"
    assert reason in end["reason"]
    assert "killed" in events()


def test_a_command_whose_reader_goes() -> None:
    """`belljar run … | head` ends the run."""
    words = [sys.executable, "-m", "belljar", "run", "-c", "while True: print('x' * 9999)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as command:
        assert command.stdout is not None
        command.stdout.read(1000)
        command.stdout.close()
        assert command.wait(60) == 141
    assert the_end()["outcome"] == "killed"


def test_a_jar_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is in the log before anything is made for it, and so is that it was lost; it never started."""

    def opened(*_arguments: object) -> None:
        assert events() == ["created", "plan"]
        raise SandboxUnavailableError("no room")

    with Sandbox() as jar:
        monkeypatch.setattr(type(jar._backend), "open", opened)
        with pytest.raises(SandboxUnavailableError, match="no room"):
            jar.run("1")
    assert events() == ["created", "plan", "lost"]
    assert the_end()["reason"] == "no room"


LATER = """
import os, shutil, sys
from belljar import Sandbox
from belljar.audit.log import directory
from belljar.errors import AuditError
with Sandbox() as jar:
    stream = jar.stream("print(1, flush=True); input()", stdin="\\n")
    next(stream)
    shutil.rmtree(directory())
    open(directory(), "w").close()
    try:
        list(stream)
    except AuditError as error:
        print(error.__notes__[0][:11])
    os.unlink(directory())
"""


def test_an_end_that_is_recorded_later() -> None:
    """If it could not be when it came: when the process ends. It is not said to have been killed then."""
    done = subprocess.run([sys.executable, "-c", LATER], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the end of \n", "")
    end = the_end()
    assert end["event"] == "lost"
    assert end["reason"].startswith("its end could not be recorded when it came: the audit log can't be written")
