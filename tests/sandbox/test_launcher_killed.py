"""The launcher alone is killed, at any moment: its stages and jars end, the program is told and goes on.

Afterwards there is no process, no mount, no control group and no temporary directory of its. The tests' own process is
the reaper of what loses its parent, so nothing can hide from them.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import belljar
from belljar import Sandbox, SandboxUnavailableError
from belljar.backends.bubblewrap.host.client import LAUNCHER
from belljar.backends.bubblewrap.host.facts import find_bwrap
from belljar.backends.bubblewrap.shared import layout, parent_death, wire
from belljar.backends.bubblewrap.shared.orphans import end_abandoned
from belljar.backends.bubblewrap.stage.jar_run import COMMAND
from belljar.backends.kernel_uid import FIRST_UID
from belljar.limits.detect import Mechanism, detect
from belljar.limits.naming import is_of

pytestmark = pytest.mark.backend("bubblewrap")

PACKAGE = str(Path(belljar.__file__).parent.parent)
VICTIM = str(Path(__file__).with_name("launcher_victim.py"))
PATIENCE_SECONDS = 80.0 if os.environ.get("BELLJAR_TEST_VM") else 8.0
PROMPT_SECONDS = PATIENCE_SECONDS / 2
_PR_SET_CHILD_SUBREAPER = 36
DIED = "launcher process has died"


# --- looking ---------------------------------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    return found


def _below(pid: int) -> list[int]:
    return [found for child in _children(pid) for found in (child, *_below(child))]


def _state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _named(pid: int, *names: str) -> list[int]:
    return [found for found in _below(pid) if _name(found) in names]


def _groups(launcher: int) -> list[str]:
    """Control groups that the launcher made and that are still there, in a scope of systemd's too.

    One of another user's may have its number, from a launcher that had it before.
    """
    found = []
    for top in set(detect().directories.values()) or {"/sys/fs/cgroup"}:
        for directory, names, _files in os.walk(top):
            found += [f"{directory}/{name}" for name in names if name.startswith("belljar-") and is_of(name, launcher)]
    return [path for path in found if os.geteuid() == 0 or _owner(path) == os.geteuid()]


def _owner(path: str) -> int:
    with suppress(OSError):
        return os.stat(path).st_uid
    return -1


def _mounts() -> list[str]:
    """Those of belljar's stages; a container engine may come and go with its own meanwhile."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if line.partition(" - ")[2].split(" ")[1:2] == ["belljar"]]


def _is_pending(pid: int, number: int) -> bool:
    """Return True if the signal was sent to the process and has not reached it."""
    lines = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line)
    return bool((int(lines["SigPnd"], 16) | int(lines["ShdPnd"], 16)) >> (number - 1) & 1)


def _wait_for(what: Callable[[], object]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not what() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(what())


class Scene:
    """What was there before, and whether all that came since is gone."""

    def __init__(self, temporary: Path) -> None:
        self.temporary = temporary
        self._before = set(_below(os.getpid()))
        self._mounts = _mounts()

    def alive(self) -> list[int]:
        """Processes that are new since; our own present launcher is not counted.

        The kernel's list of children leaves some out while others die: only nobody in three looks is nobody.
        """
        for pause in (0.02, 0.02, 0):
            if found := self._seen():
                return found
            time.sleep(pause)
        return []

    def _seen(self) -> list[int]:
        known = {*self._before, LAUNCHER._pid if LAUNCHER._socket else 0}
        for pid in set(_children(os.getpid())) - known:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        return [pid for pid in _below(os.getpid()) if pid not in known and _state(pid) not in "ZX"]

    def is_clean(self, launcher: int) -> None:
        """Nothing of the dead launcher's is left."""
        assert _wait_for(lambda: not self.alive()), [(pid, _name(pid)) for pid in self.alive()]
        assert _wait_for(lambda: not _groups(launcher)), _groups(launcher)
        assert _mounts() == self._mounts
        assert list(self.temporary.iterdir()) == []


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """No launcher yet; this process reaps all its descendants; an empty directory for temporary files."""
    LAUNCHER.stop()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    there = Scene(temporary)
    yield there
    LAUNCHER.stop()
    left = there.alive()
    for pid in left:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def _kill_launcher() -> int:
    """Kill it, and see that it is dead; nobody has waited for it yet."""
    launcher = LAUNCHER._pid
    os.kill(launcher, signal.SIGKILL)
    assert _wait_for(lambda: _state(launcher) in "ZX")
    return launcher


def _next_one_works() -> None:
    with Sandbox(backend="bubblewrap") as jar:
        assert jar.run("print('alive')").stdout == "alive\n"


def _is_told(call: Callable[[], object]) -> None:
    """The call says what happened, at once, and as one error."""
    began = time.monotonic()
    with pytest.raises(SandboxUnavailableError, match=DIED) as caught:
        call()
    assert "new Sandbox" in caught.value.hint
    assert time.monotonic() - began < PROMPT_SECONDS


# --- moments ---------------------------------------------------------------------------------------------------------


def test_killed_before_the_first_stage(scene: Scene) -> None:
    """A launcher that died unused is replaced, and nobody has to try twice."""
    _next_one_works()
    launcher = _kill_launcher()
    _next_one_works()
    assert LAUNCHER._pid != launcher
    scene.is_clean(launcher)


def test_killed_before_the_run(scene: Scene) -> None:
    """The mounts are there and nothing runs: the stage ends by itself, and the run that comes is told."""
    with Sandbox(backend="bubblewrap") as jar:
        jar.files.write("f", "x")
        launcher = _kill_launcher()
        assert _wait_for(lambda: not scene.alive())
        _is_told(lambda: jar.run("pass"))
        scene.is_clean(launcher)
        _next_one_works()


def test_killed_while_a_jar_waits_at_its_gate(scene: Scene) -> None:
    """Between two runs: the jar that waits for the next one goes with its stage, though nobody asks."""
    with Sandbox(backend="bubblewrap") as jar:
        assert jar.run("pass").ok
        assert _wait_for(lambda: _named(LAUNCHER._pid, "sh"))  # the control: the gate is there
        launcher = _kill_launcher()
        assert _wait_for(lambda: not scene.alive())
        _is_told(lambda: jar.run("pass"))
        scene.is_clean(launcher)
        _next_one_works()


@pytest.mark.parametrize("code", ["import time; time.sleep(300)", "while True: pass", "while True: print('x' * 999)"])
def test_killed_while_code_runs(scene: Scene, code: str) -> None:
    """Code that sleeps, computes or streams: the run ends at once, and its caller has an error and no result."""
    with Sandbox(backend="bubblewrap", overrides=["proc.output_mb=1000"]) as jar:
        with jar.stream(f"print('on', flush=True)\n{code}") as events:
            assert getattr(next(iter(events)), "data", b"").startswith(b"on")
            launcher = LAUNCHER._pid
            os.kill(launcher, signal.SIGKILL)
            _is_told(lambda: [None for _event in events])
            if detect().mechanism is not Mechanism.V2_SYSTEMD:  # else systemd sweeps, when it comes to it
                assert _groups(launcher) == []
        scene.is_clean(launcher)
        _next_one_works()


def test_every_sandbox_of_it_is_told(scene: Scene) -> None:
    """What is asked of a Sandbox whose launcher died is answered with the reason, again and again; closing it works."""
    with Sandbox(backend="bubblewrap") as first, Sandbox(backend="bubblewrap") as second:
        assert first.run("pass").ok
        second.files.write("f", "x")
        launcher = _kill_launcher()
        assert _wait_for(lambda: not scene.alive())  # a stage answers until it has heard of it
        for _ in range(2):
            _is_told(lambda: first.run("pass"))
            _is_told(lambda: first.files.list())
            _is_told(lambda: second.files.read("f"))
            _is_told(lambda: second.files.write("f", "y"))
        _next_one_works()  # while the old ones are still open
        _is_told(lambda: second.run("pass"))
    scene.is_clean(launcher)


def test_all_threads_are_told(scene: Scene) -> None:
    """Runs of one Sandbox in several threads: each of them hears why."""
    told: list[BaseException] = []
    with Sandbox(backend="bubblewrap") as jar:
        jar.files.write("f", "x")

        def run() -> None:
            try:
                jar.exec(["sleep", "300"])
            except BaseException as error:  # noqa: BLE001 - judged below
                told.append(error)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert _wait_for(lambda: len(_named(LAUNCHER._pid, "sleep")) == 3)
        launcher = _kill_launcher()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    assert [type(error) for error in told] == [SandboxUnavailableError] * 3
    assert all(DIED in str(error) for error in told)
    scene.is_clean(launcher)


def test_closing_is_enough_to_sweep(scene: Scene) -> None:
    """Nobody asks for another run: the groups go when the Sandbox is closed."""
    with Sandbox(backend="bubblewrap") as jar:
        assert jar.run("pass").ok
        launcher = _kill_launcher()
    scene.is_clean(launcher)


def test_the_end_of_the_program_is_enough_to_sweep(scene: Scene) -> None:
    """Nor is anything closed: they go when belljar is told to stop, as it is when the program ends."""
    jar = Sandbox(backend="bubblewrap")
    assert jar.run("pass").ok
    launcher = _kill_launcher()
    LAUNCHER.stop()
    scene.is_clean(launcher)
    jar.close()


@pytest.mark.slow
@pytest.mark.parametrize("step_ms", [3, 17])
def test_killed_at_any_moment_of_a_first_run(scene: Scene, step_ms: int) -> None:
    """While the launcher starts, stages, checks the jar, opens the gate, cleans up: a result or an error, and no trace.

    The delays are counted from the start of the launcher; what is tried is the moment itself.
    """
    for number in range(16):
        began = time.monotonic()
        LAUNCHER.start()
        launcher = LAUNCHER._pid
        killer = threading.Timer(number * step_ms / 1000, os.kill, (launcher, signal.SIGKILL))
        killer.start()
        with suppress(SandboxUnavailableError), Sandbox(backend="bubblewrap") as jar:
            assert jar.run("print(1)").stdout == "1\n"
            jar.run("print(2)")
        killer.join()
        assert time.monotonic() - began < PATIENCE_SECONDS
        LAUNCHER.stop()
        scene.is_clean(launcher)
    _next_one_works()


@pytest.mark.slow
def test_killed_around_the_making_of_a_jar(scene: Scene) -> None:
    """Two runs back to back in a staged Sandbox, so that the kill meets bubblewrap at every step of its own."""
    for number in range(24):
        with Sandbox(backend="bubblewrap") as jar:
            jar.files.write("f", "x")
            launcher = LAUNCHER._pid
            killer = threading.Timer(number / 1000, os.kill, (launcher, signal.SIGKILL))
            killer.start()
            with suppress(SandboxUnavailableError):
                jar.run("pass", stdin=b"")
                jar.run("pass", stdin=b"")
            killer.join()
        assert _wait_for(lambda pid=launcher: _state(pid) in "ZX")  # type: ignore[misc]
        LAUNCHER.stop()
        scene.is_clean(launcher)


# --- other programs ---------------------------------------------------------------------------------------------------


def _environment(scene: Scene, tmp_path: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("XDG_RUNTIME_DIR", "PYTHONPATH") if name in os.environ}
    own = {"HOME": str(tmp_path), "TMPDIR": str(scene.temporary), "BELLJAR_STATE_DIR": str(tmp_path / "state")}
    return {**kept, "PATH": "/usr/bin:/bin", **own}


def _start_victim(scene: Scene, tmp_path: Path) -> subprocess.Popen[str]:
    """The program, once its code runs and its other jar waits."""
    command = [sys.executable, "-I", VICTIM, PACKAGE]
    victim = subprocess.Popen(
        command, env=_environment(scene, tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert victim.stdout is not None
    assert select.select([victim.stdout], [], [], 30)[0]
    assert "on" in victim.stdout.readline()
    assert _wait_for(lambda: _named(victim.pid, "sh"))  # the gate of the jar that waits
    return victim


def test_the_program_is_told_and_goes_on(scene: Scene, tmp_path: Path) -> None:
    """A program of its own: an error that it can catch, and then a new launcher."""
    with _start_victim(scene, tmp_path) as victim:
        (launcher,) = _named(victim.pid, "belljar-launch")
        os.kill(launcher, signal.SIGKILL)
        output, _errors = victim.communicate(timeout=30)
    assert f"told: SandboxUnavailableError belljar's {DIED}" in output
    assert "then: alive" in output
    assert "Traceback" not in output
    scene.is_clean(launcher)


def test_the_command_tells_it_in_words(scene: Scene, tmp_path: Path) -> None:
    """`belljar exec`: one error, a hint, an exit code, no traceback, and nothing left."""
    command = [
        sys.executable,
        "-m",
        "belljar",
        "exec",
        "--backend",
        "bubblewrap",
        "--",
        "sh",
        "-c",
        "echo on; sleep 300",
    ]
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=_environment(scene, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        (launcher,) = _named(process.pid, "belljar-launch")
        os.kill(launcher, signal.SIGKILL)
        _output, errors = process.communicate(timeout=30)
    assert process.returncode == 125
    assert f"belljar: error: belljar's {DIED}" in errors
    assert "hint: " in errors
    assert "Traceback" not in errors
    scene.is_clean(launcher)


@pytest.mark.parametrize("also", [(), ("belljar-stage",)], ids=["", "and the stages"])
def test_killed_with_the_program(scene: Scene, tmp_path: Path, also: tuple[str, ...]) -> None:
    """Both at the same time: no process and no mount is left, and the next start sweeps the directories.

    With the stages it holds once the jars are made: docs/architecture.md names the instant in which it does not.
    """
    with _start_victim(scene, tmp_path) as victim:
        (launcher,) = _named(victim.pid, "belljar-launch")
        doomed = [victim.pid, launcher, *_named(victim.pid, *also)]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: none of them sees another die
            for pid in doomed:
                os.kill(pid, number)
        victim.wait(15)
    assert _wait_for(lambda: not scene.alive()), [(pid, _name(pid)) for pid in scene.alive()]
    _next_one_works()
    LAUNCHER.stop()
    scene.is_clean(launcher)


# --- the parts --------------------------------------------------------------------------------------------------------


def test_a_stage_that_is_stuck_has_a_few_seconds(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    """It may hang in a call that does not look at descriptors: the kernel ends it all the same."""
    monkeypatch.setattr(parent_death, "_ENDING_SECONDS", 1)
    reader, writer = os.pipe()
    parent = os.fork()
    if parent == 0:
        me = os.getpid()
        if os.fork() == 0:
            parent_death.end_with(me)
            os.write(writer, b"%d\n" % os.getpid())
            threading.Event().wait(300)
            os._exit(0)
        signal.pause()
    os.close(writer)
    stuck = int(os.read(reader, 20))
    os.close(reader)
    os.kill(stuck, signal.SIGHUP)  # from anyone, while the parent lives: it means nothing
    assert _wait_for(lambda: not _is_pending(stuck, signal.SIGHUP))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert _state(stuck) not in "ZX"
    assert _wait_for(lambda: _state(stuck) in "ZX")
    assert os.waitstatus_to_exitcode(os.waitpid(stuck, 0)[1]) == -signal.SIGALRM
    assert scene.alive() == []


def test_one_whose_parent_died_first_ends_at_once() -> None:
    """Between the fork and the tie the parent may have died; then there is nothing to be tied to."""
    for tie in (parent_death.die_with, parent_death.end_with):
        child = os.fork()
        if child == 0:
            tie(os.getpid())  # some process that is not the parent, as a dead one is not
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1


def _left_alone(argv: list[str]) -> tuple[int, int]:
    """The child of a bubblewrap that was killed before that child asked to die with it, and what it waits for."""
    reader, writer = os.pipe()
    words = ["--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--block-fd", str(reader)]
    arguments = os.memfd_create("arguments")
    os.write(arguments, b"".join(os.fsencode(word) + b"\0" for word in words))
    os.lseek(arguments, 0, os.SEEK_SET)
    program = find_bwrap()
    assert program is not None
    bwrap = os.fork()
    if bwrap == 0:
        try:
            os.set_inheritable(reader, True)
            os.dup2(arguments, layout.ARGS_FD)
            os.execve(program, argv, {})
        finally:
            os._exit(126)
    os.close(arguments)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (children := _children(bwrap)) and time.monotonic() < deadline:
        time.sleep(0.01)
    while _state(children[0]) == "R" and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(bwrap, signal.SIGKILL)
    os.waitpid(bwrap, 0)
    os.close(reader)
    return children[0], writer


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "another's"])
def test_what_has_no_group_is_found_by_its_command(ours: bool) -> None:
    """By the next launcher, which leaves alone what only looks like it."""
    argv = COMMAND if ours else [*COMMAND[:-1], "exit 3"]
    lost, awaited = _left_alone(argv)
    try:
        assert _state(lost) not in "ZX"
        end_abandoned(COMMAND, first_uid=FIRST_UID)
        deadline = time.monotonic() + (PROMPT_SECONDS if ours else 0.2)
        while _state(lost) not in "ZX" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (_state(lost) in "ZX") is ours
    finally:
        with suppress(ProcessLookupError):
            os.kill(lost, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(lost, 0)
        os.close(awaited)


def test_answer_that_nobody_read_is_not_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between a request and its answer: the next request gets its own answer, and no descriptor stays open."""
    with Sandbox(backend="bubblewrap") as jar:
        jar.files.write("a", "A")
        jar.files.write("b", "B")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(3):
            with monkeypatch.context() as patched:
                patched.setattr(wire, "receive", _interrupted)
                with pytest.raises(KeyboardInterrupt):
                    jar.files.read("a")
        assert jar.files.read("b") == b"B"
        with pytest.raises(FileNotFoundError):
            jar.files.read("c")
        assert jar.files.read("a") == b"A"
        assert len(os.listdir("/proc/self/fd")) == before


def _interrupted(_end: object) -> None:
    raise KeyboardInterrupt


def test_last_words_leave_the_socket_as_it_was() -> None:
    """Asking a living stage for its last words must not put a time limit on its next answers."""
    with Sandbox(backend="bubblewrap") as jar:
        jar.files.write("f", "x")
        inner = jar._open()
        assert isinstance(inner.last_words(), SandboxUnavailableError)  # type: ignore[attr-defined]
        assert inner._control.gettimeout() is None  # type: ignore[attr-defined]
        assert jar.files.read("f") == b"x"
