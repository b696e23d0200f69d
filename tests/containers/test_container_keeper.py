"""What belljar leaves when it ends in any way, and that nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from belljar.backends.container.engine import leftovers
from belljar.backends.container.engine.cleanup_process import CleanupProcess, labels, owner, sweep
from belljar.backends.container.engine.engine import Engine, find_engine, find_program
from belljar.backends.container.engine.facts import facts
from belljar.backends.container.images.engine_images import BASE_IMAGE
from belljar.limits.naming import is_dead, process_name

PROGRAM = Path(__file__).parent / "keeping.py"
SECONDS = 20.0
"""How long what was left may take to go: it takes two or three; a busy machine more."""


def until(true: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# --- with an engine that only writes down what it is asked -----------------------------------------------------------


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """What the engine was asked."""
    return tmp_path / "notes"


@pytest.fixture
def scribe(tmp_path: Path, notes: Path) -> Engine:
    """An engine that has nothing, and notes every command and a variable of its environment."""
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\necho "$MARK $*" >> {notes}\n')
    program.chmod(0o700)
    return Engine("docker", str(program))


@pytest.fixture
def keeper() -> Iterator[CleanupProcess]:
    """One of the test's own; it ends with the test."""
    one = CleanupProcess()
    yield one
    one.stop()


def _noted(notes: Path) -> list[str]:
    return notes.read_text().splitlines() if notes.exists() else []


def test_what_is_left_is_removed_containers_first(
    keeper: CleanupProcess, scribe: Engine, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environment in which it was made; what is done is left alone."""
    monkeypatch.setenv("MARK", "here")
    keeper.add(scribe.command(), "volume", "v")
    keeper.add(scribe.command(), "container", "c")
    keeper.add(scribe.command(), "container", "removed")
    keeper.done("removed")
    pid = keeper._pid
    keeper.stop()
    assert until(lambda: not is_running(pid))
    assert _noted(notes)[:2] == ["here rm -f -v c", "here volume rm v"]
    assert not any("removed" in line for line in _noted(notes))


@pytest.mark.parametrize(("kind", "made_by"), [("container", "run --name c"), ("volume", "volume create c")])
def test_what_may_still_come_is_waited_for(
    keeper: CleanupProcess, scribe: Engine, notes: Path, kind: Literal["container", "volume"], made_by: str
) -> None:
    """A client that was told to make something, and has not ended, may yet have it made."""
    client = ["sh", "-c", "read nothing", "podman", *made_by.split()]
    with subprocess.Popen(client, stdin=subprocess.PIPE) as alive:
        keeper.add(scribe.command(), kind, "c")
        pid = keeper._pid
        keeper.stop()
        assert not until(lambda: not is_running(pid), grace_seconds() + 2)
        alive.communicate(b"")
    assert until(lambda: not is_running(pid))
    assert sum("rm " in line for line in _noted(notes)) > 4


def test_nothing_left_is_nothing_done(keeper: CleanupProcess, scribe: Engine, notes: Path) -> None:
    """And takes no time."""
    keeper.add(scribe.command(), "container", "c")
    keeper.done("c")
    started = time.monotonic()
    pid = keeper._pid
    keeper.stop()
    assert not is_running(pid)
    assert time.monotonic() - started < grace_seconds()
    assert not _noted(notes)


def grace_seconds() -> float:
    """For as long, a keeper with something to remove looks for late comers."""
    from belljar.backends.container.engine.cleanup_main import GRACE_SECONDS

    return GRACE_SECONDS


def test_the_keeper_holds_nothing_of_ours(keeper: CleanupProcess, scribe: Engine, tmp_path: Path) -> None:
    """A session of its own, so Ctrl-C goes past it; no descriptor but its socket, so no pipe of ours stays open."""
    inherited = os.open(tmp_path / "open", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(inherited, True)
    try:
        keeper.add(scribe.command(), "container", "c")
        keeper.done("c")
        pid = keeper._pid
        assert os.getsid(pid) == pid
        assert until(lambda: str(tmp_path / "open") not in _descriptors(pid))
        assert until(lambda: os.readlink(f"/proc/{pid}/cwd") == "/")
        wanted = ["/dev/null", "/dev/null", "/dev/null", "anon_inode", "socket"]
        assert until(lambda: sorted(name.partition(":")[0] for name in _descriptors(pid)) == wanted)
    finally:
        os.close(inherited)


def _descriptors(pid: int) -> list[str]:
    """Of a process that may be closing some of them."""
    shown = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            shown.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return shown


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_does_not_end_it(keeper: CleanupProcess, scribe: Engine, notes: Path, number: int) -> None:
    """Whoever stops a service stops all its processes; what is left has to be removed all the same."""
    keeper.add(scribe.command(), "container", "c")
    pid = keeper._pid
    assert until(lambda: os.readlink(f"/proc/{pid}/cwd") == "/")  # it has come so far as to ignore them
    os.kill(pid, number)
    keeper.stop()
    assert until(lambda: not is_running(pid))
    assert "rm -f -v c" in _noted(notes)[0]


def test_a_killed_keeper_is_replaced_and_told_again(keeper: CleanupProcess, scribe: Engine, notes: Path) -> None:
    """So what it knew is not forgotten."""
    keeper.add(scribe.command(), "container", "first")
    first = keeper._pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    keeper.add(scribe.command(), "container", "second")
    second = keeper._pid
    assert second != first
    keeper.stop()
    assert until(lambda: not is_running(second))
    assert set(" ".join(_noted(notes)[:2]).split()) >= {"first", "second"}


def test_a_forked_child_leaves_it_to_its_parent(keeper: CleanupProcess, scribe: Engine, notes: Path) -> None:
    """The child's end is not the parent's."""
    keeper.add(scribe.command(), "container", "c")
    pid = os.fork()
    if pid == 0:
        keeper.abandon_after_fork()
        os._exit(0)
    os.waitpid(pid, 0)
    keeper.done("c")
    keeper_pid = keeper._pid
    keeper.stop()
    assert until(lambda: not is_running(keeper_pid))
    assert not _noted(notes)


# --- whose it is -----------------------------------------------------------------------------------------------------


def _dead_process() -> str:
    """The name of a process that has ended."""
    with subprocess.Popen(["sleep", "60"]) as process:
        name = process_name(process.pid)
        process.kill()
    assert is_dead(name)
    return name


OWNERS = [
    ("dead", True),
    ("living", False),
    ("another user's", False),
    ("another namespace's", False),
    ("nonsense", False),
    ("none", False),
]


def _owner(whose: str) -> str:
    dead = _dead_process()
    return {
        "dead": f"{os.getuid()}-{dead}",
        "living": owner(),
        "another user's": f"{os.getuid() + 1}-{dead}",
        "another namespace's": f"{os.getuid()}-1-{dead.partition('-')[2]}",
        "nonsense": "1-2",
        "none": "",
    }[whose]


@pytest.mark.parametrize(("whose", "abandoned"), OWNERS)
def test_whose_is_abandoned(whose: str, *, abandoned: bool) -> None:
    """As docker writes labels, and as podman does. Only this user's, of a process that surely is dead."""
    label = _owner(whose)
    for line in (f"id belljar=1,belljar.owner={label},x=y", f"id map[belljar:1 belljar.owner:{label}]"):
        assert leftovers._is_abandoned(line) is abandoned


def test_sweeping_keeps_away_from_other_machines(monkeypatch: pytest.MonkeyPatch, scribe: Engine, notes: Path) -> None:
    """There, nobody can tell who is dead."""
    program = Path(scribe.program)
    program.write_text(f'#!/bin/sh\necho "$*" >> {notes}\necho \'{{"Name": "elsewhere"}}\'\n')
    monkeypatch.setenv("DOCKER_HOST", "tcp://elsewhere")
    assert sweep(scribe) == []
    assert [line.split()[0] for line in _noted(notes)] == ["info"]


# --- with real engines -----------------------------------------------------------------------------------------------


@dataclass
class Real:
    """An engine, and a prefix for the names of what a test makes in it."""

    engine: Engine
    backend: str
    runtime: str
    prefix: str

    def start(self, how: str, count: int = 2) -> subprocess.Popen[str]:
        """The program, when it has made everything."""
        arguments = [how, self.backend, self.runtime, self.prefix, str(count), BASE_IMAGE]
        process = subprocess.Popen(
            [sys.executable, str(PROGRAM), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        told = process.stdout.readline()
        assert told.startswith("ready"), told
        assert len(self.there()) == count + 1
        return process

    def create(self, name: str, label: str) -> str:
        """A container and a volume that are never used, of an owner."""
        marks = ("--label", "belljar=1", "--label", f"belljar.owner={label}")
        full = f"{self.prefix}-{name}"
        self.engine.run("create", "--pull", "never", "--network", "none", "--name", full, *marks, BASE_IMAGE)
        self.engine.run("volume", "create", *marks, f"{full}-v")
        return full

    def there(self) -> set[str]:
        """The containers and volumes with the prefix."""
        listed = self.engine.run("ps", "-a", "--format", "{{.Names}}").split()
        listed += self.engine.run("volume", "ls", "--format", "{{.Name}}").split()
        return {name for name in listed if name.startswith(self.prefix)}


@pytest.fixture(params=["docker", "podman"])
def real(request: pytest.FixtureRequest, need_backend: Callable[[str], None]) -> Iterator[Real]:
    """Each engine that works here; whatever a test leaves is removed."""
    backend = str(request.param)
    need_backend(backend)
    runtime = "runc" if backend == "podman" and find_program("runc") else "auto"
    engine = find_engine(backend, "auto", runtime)
    one = Real(engine, backend, runtime, f"belljar-test-{secrets.token_hex(4)}")
    yield one
    left = one.there()
    for name in left:
        engine.attempt("rm", "-f", name)
    for name in left:
        engine.attempt("volume", "rm", "-f", name)


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    with process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.parametrize("how", ["killed", "closed", "raises", "keeper killed", "forked", "interrupted"])
def test_nothing_stays_of_a_belljar_that_ends(real: Real, how: str) -> None:
    """Killed, or ended without tidying up: its containers and volume go within seconds."""
    process = real.start(how)
    with _ended(process):
        if how == "killed":
            process.kill()
        elif how == "interrupted":
            process.send_signal(signal.SIGINT)
        else:
            assert process.stdin is not None
            process.stdin.close()
        process.wait(SECONDS)
        assert until(lambda: not real.there()), real.there()


def test_what_it_was_told_to_let_go_stays(real: Real) -> None:
    """`done` means that somebody else removes it, or has."""
    process = real.start("done", count=1)
    with _ended(process):
        process.kill()
        process.wait(SECONDS)
    time.sleep(grace_seconds())
    assert len(real.there()) == 2


def test_one_that_comes_late_goes_too(real: Real) -> None:
    """The engine was asked to make it before belljar died, and makes it after."""
    keeper = CleanupProcess()
    late = f"{real.prefix}-late"
    keeper.add(real.engine.command(), "container", late)
    pid = keeper._pid
    assert keeper._socket is not None
    keeper._socket.close()
    real.engine.run("create", "--pull", "never", "--network", "none", "--name", late, *labels("late"), BASE_IMAGE)
    assert until(lambda: not real.there())
    os.waitpid(pid, 0)


def test_a_sweep_removes_what_the_dead_left(real: Real) -> None:
    """And nothing of the living, of other users, or that can't be judged."""
    made = {whose: real.create(whose.replace("'", "").replace(" ", "-"), _owner(whose)) for whose, _ in OWNERS}
    assert facts(real.engine).local
    swept = sweep(real.engine)
    assert f"{made['dead']}-v" in swept
    stayed = {made[whose] for whose, abandoned in OWNERS if not abandoned}
    assert real.there() == {name for full in stayed for name in (full, f"{full}-v")}


def test_a_sweep_takes_the_volume_that_an_engine_made_by_itself(real: Real) -> None:
    """A container that comes after its volume was removed gets another one, without a label: it goes with it."""
    jar = secrets.token_hex(6)
    marks = ("--label", "belljar=1", "--label", f"belljar.owner={_owner('dead')}", "--label", f"belljar.jar={jar}")
    real.engine.run("volume", "create", f"belljar-{jar}")
    try:
        options = ("--pull", "never", "--network", "none", "--name", f"{real.prefix}-late", *marks)
        real.engine.run("create", *options, "--mount", f"type=volume,src=belljar-{jar},dst=/depot", BASE_IMAGE)
        assert f"belljar-{jar}" in sweep(real.engine)
        assert f"belljar-{jar}" not in real.engine.run("volume", "ls", "--format", "{{.Name}}").split()
        assert not real.there()
    finally:
        real.engine.attempt("volume", "rm", "-f", f"belljar-{jar}")


def test_the_keeper_sweeps_meanwhile(real: Real, keeper: CleanupProcess) -> None:
    """Off the way of whoever starts a jar."""
    real.create("dead", _owner("dead"))
    living = real.create("living", owner())
    keeper.sweep(real.engine)
    assert until(lambda: real.there() == {living, f"{living}-v"})
