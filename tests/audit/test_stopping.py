"""Stopping works whatever state the audit log and its disk are in, says what it could not do, and is quick."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from belljar import Pool
from belljar.audit import killswitch
from belljar.audit.log import audit_log, directory
from belljar.audit.reading import records
from belljar.errors import AuditError, KillSwitchError
from belljar.sandbox.record.control import started_at
from belljar.sandbox.record.remote import asked, kill, running

pytestmark = pytest.mark.backend("bubblewrap")
COMMAND = [sys.executable, "-m", "belljar"]
HOST = """
from belljar import Sandbox
with Sandbox() as jar:
    jar.run('import time; time.sleep(1000)')
"""


@contextmanager
def host() -> Iterator[subprocess.Popen[bytes]]:
    """Another process, with a run in progress."""
    process = subprocess.Popen([sys.executable, "-c", HOST], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while process.pid not in {run["owner"] for run in running()}:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def held_log() -> Iterator[None]:
    """Somebody writes to the log, and does not end."""
    audit_log().append({"event": "before"})
    with Path(directory(), "head").open("rb") as head:
        fcntl.flock(head, fcntl.LOCK_EX)
        yield


def belljar(*words: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, timeout=60)


def stopped(process: subprocess.Popen[bytes]) -> None:
    """Have it stand still: it answers nobody."""
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


STOPS: dict[str, list[str]] = {
    "kill": ["kill", "RUN"],
    "kill --all": ["kill", "--all"],
    "killswitch on": ["killswitch", "on", "--reason", "a test"],
}


@pytest.mark.parametrize("words", STOPS.values(), ids=STOPS)
def test_while_the_log_is_held(words: list[str]) -> None:
    """The run is ended, soon, and that it is not in the log is told."""
    with host(), held_log():
        run = str(running()[0]["run"])
        began = time.monotonic()
        done = belljar(*(run if word == "RUN" else word for word in words))
        assert time.monotonic() - began < 5
        assert [run.get("state") for run in running()] == ["ended"]  # its process waits for the log, too
        assert (done.returncode, "still there" in done.stderr) == (1, False)
        assert "this is not in the audit log: " in done.stderr
        assert bool(killswitch.why()) is (words[0] == "killswitch")


FULL = """
import json, os, subprocess, sys, time
state = os.environ["BELLJAR_STATE_DIR"]
belljar = [sys.executable, "-m", "belljar"]
host = subprocess.Popen([sys.executable, "-c", sys.argv[1]], stderr=subprocess.DEVNULL)
def running():
    return [one["run"] for one in json.loads(subprocess.run([*belljar, "ps", "--json"], capture_output=True).stdout)]
while not running(): time.sleep(0.05)
with open(f"{state}/ballast", "wb", buffering=0) as file:
    for size in (4096, 1):
        try:
            while True: file.write(b"x" * size)
        except OSError:
            pass
log = [f"{state}/audit/{name}" for name in os.listdir(f"{state}/audit") if name.endswith(".jsonl")][0]
with open(log, "ab") as file:  # the rest of its last block is taken, too: not one record fits
    file.write(b" " * (-os.path.getsize(log) % 4096 - 1) + b"\\n")
words = [word if word != "RUN" else running()[0] for word in sys.argv[2:]]
done = subprocess.run([*belljar, *words], capture_output=True, text=True)
print(json.dumps([done.returncode, done.stdout, done.stderr, running(), sorted(os.listdir(state))]))
host.kill()
host.wait()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk has to be mounted, which only root may do")
@pytest.mark.parametrize("words", STOPS.values(), ids=STOPS)
def test_on_a_full_disk(tmp_path: Path, words: list[str]) -> None:
    """The run is ended; the kill switch is on, without its reason, and leaves nothing half beside it."""
    inside = f'mount -t tmpfs -o size=512k none {tmp_path} && exec {sys.executable} -c "$0" "$@"'
    environment = {**os.environ, "BELLJAR_STATE_DIR": str(tmp_path)}
    command = ["unshare", "--mount", "sh", "-c", inside, FULL, HOST, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    code, _output, errors, remaining, files = json.loads(done.stdout)
    assert (code, remaining) == (1, [])
    assert "this is not in the audit log: the audit log can't be written: No space left on device" in errors
    assert [name for name in files if name.startswith("killswitch")] == ["killswitch"] * (words[0] == "killswitch")
    assert ("on, without its reason" in errors) is (words[0] == "killswitch")


UNABLE = """
import sys
from belljar import Pool
from belljar.audit import killswitch
from belljar.cli.main import main
def turn_on(reason):
    raise OSError(30, "Read-only file system", killswitch.path())
killswitch.turn_on = turn_on
sys.exit(main(sys.argv[1:]))
"""


def test_it_cannot_be_turned_on() -> None:
    """What runs is ended all the same, and neither the command nor the log says that it is on."""
    with host():
        words = [sys.executable, "-c", UNABLE, "killswitch", "on", "--reason", "a test"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (1, "off; 1 run ended\n")
        assert "what is started now runs" in done.stderr
        assert running() == []
    assert [record["on"] for record in records(directory()) if record["event"] == "killswitch"] == [False]


def test_nobody_can_tell_whether_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is; and what is certainly not there is off."""
    monkeypatch.setenv(killswitch.VARIABLE, f"/{'x' * 300}")
    assert killswitch.why()
    monkeypatch.setenv(killswitch.VARIABLE, "/nowhere/at/all")
    assert not killswitch.why()
    monkeypatch.setenv(killswitch.VARIABLE, "/dev/null/beneath")
    assert not killswitch.why()


class TestHostsThatDoNotAnswer:
    """Several at once."""

    def test_they_are_killed_together(self) -> None:
        """Within a second, not one second each."""
        with ExitStack() as stack:
            hosts = [stack.enter_context(host()) for _ in range(3)]
            for one in hosts:
                stopped(one)
            began = time.monotonic()
            done = kill("*", "now", answer_seconds=0.4)
            assert time.monotonic() - began < 1
            assert sorted(done.ended) == sorted(f"process {one.pid}" for one in hosts)
            assert [one.wait() for one in hosts] == [-9] * 3

    def test_one_that_has_ended(self) -> None:
        """A process that nobody has waited for yet is gone: it is neither killed nor said to be silent."""
        with host() as one:
            one.kill()
            os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
            assert started_at(one.pid) == ""
            assert asked().silent == ()
            assert kill("*", "now").ended == []

    def test_ps(self) -> None:
        """Lists what they ran, as far as the log knows, and says so."""
        with host() as one, host() as other:
            run = next(run["run"] for run in running() if run["owner"] == one.pid)
            stopped(one)
            rows = {row["owner"]: row for row in json.loads(belljar("ps", "--json").stdout)}
            assert (rows[one.pid]["run"], rows[one.pid]["state"]) == (run, "not answering")
            assert rows[other.pid]["state"] == "running"
            listed = belljar("ps", "--all").stdout.splitlines()
            assert [line.split()[1:3] for line in listed if run in line] == [["not", "answering"]]
            assert "kill --all" in belljar("kill", run).stderr


def told_in_json(*words: str) -> dict[str, Any]:
    """What a command says to programs."""
    told: dict[str, Any] = json.loads(belljar(*words, "--json").stdout)
    return told


def test_the_kill_switch_in_json() -> None:
    """As with every other command: `on` and `off` print documents."""
    on = {"on": True, "reason": "a test", "ended": [], "remaining": [], "recorded": True}
    assert told_in_json("killswitch", "on", "--reason", "a test") == on
    assert told_in_json("killswitch", "off") == {"on": False, "was_on": True, "reason": ""}
    assert told_in_json("killswitch", "off")["was_on"] is False


SPEAKS_NO_MORE = """
import os, signal
from belljar.sandbox.record.control import CONTROL
inner = CONTROL._obey
def obey(order):
    if order["op"] == "kill":
        return {"killed": [name for name in CONTROL._runs]}  # and does nothing
    return inner(order)
CONTROL._obey = obey
"""


def test_runs_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was told to end and has not is not said to be gone."""
    monkeypatch.setattr("belljar.sandbox.record.remote._GONE_SECONDS", 0.3)
    monkeypatch.setattr(sys.modules[__name__], "HOST", SPEAKS_NO_MORE + HOST)
    with host():
        (run,) = running()
        done = kill(run["run"], "now")
        assert (done.ended, done.remaining) == ([], [run["run"]])


STAGE = "belljar-stage"


@pytest.mark.parametrize("language", ["python", "bash"])
def test_jars_that_wait(language: str) -> None:
    """A pool keeps none while the switch is on, and makes others for its first run when it is off."""
    with Pool(size=3) as pool:
        assert pool.run("echo=1", language=language).ok
        deadline = time.monotonic() + 60
        while not pool.statistics().waiting:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        killswitch.turn_on("a test")
        quiet = 0
        while quiet < 20:  # one may be on its way
            assert time.monotonic() < deadline
            quiet = 0 if STAGE in children() else quiet + 1
            time.sleep(0.01)
        assert not pool.statistics().waiting
        with pytest.raises(KillSwitchError):
            pool.run("echo=1", language=language)
        assert STAGE not in children()
        killswitch.turn_off()
        assert pool.run("echo=2", language=language).ok


def test_a_pool_that_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one lets go of its jars all the same."""
    told, release = threading.Event(), threading.Event()
    with Pool(size=1) as stuck, Pool(size=1) as other:
        monkeypatch.setattr(stuck, "drop_waiting", lambda: told.set() or release.wait(60))
        deadline = time.monotonic() + 40
        while not other.statistics().waiting:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        killswitch.turn_on("a test")
        assert told.wait(20)
        while other.statistics().waiting:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        release.set()


def children() -> list[str]:
    """The names of all processes beneath this one."""
    found, waiting = [], [os.getpid()]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
            found.append(Path(f"/proc/{pid}/comm").read_text().strip())
    return found


def test_a_lock_that_this_thread_holds() -> None:
    """An object that is finalised while its thread writes may have an end to record: that fails, and does not hang."""
    log = audit_log()
    log.append({"event": "before"})
    with log._lock, pytest.raises(AuditError, match="somebody else writes"):
        log.append({"event": "in between"}, patience=0.1)
    log.append({"event": "after"})
    assert [record["event"] for record in records(directory())] == ["before", "after"]
