"""An engine that fails: who is told what, that nothing waits for ever, and that nothing of belljar's stays in it.

Docker's faults need a daemon that may be killed: one of these tests' own (faulty_docker.py), only as root. What can be
done to any engine (a container removed by someone else, an image or a runtime that is not there) is done to podman too.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from belljar import Sandbox, run
from belljar.backends.container.engine.cleanup_process import owner
from belljar.backends.container.engine.engine import Engine, find_engine, find_program
from belljar.backends.container.images.engine_images import BASE_IMAGE
from belljar.backends.container.jar.attached import Attached
from belljar.backends.container.jar.jar import ContainerJar
from belljar.errors import BelljarError, PrerequisiteError, SandboxUnavailableError

HERE = Path(__file__).parent
BELLJAR = str(Path(sys.executable).with_name("belljar"))
SECONDS = 60.0
"""How long a fault may take to be told, or what is left to go: seconds, and on a busy machine more."""
SLEEPER = "print('up', flush=True)\nimport time\ntime.sleep(100)"


def until(true: Callable[[], bool], seconds: float = SECONDS) -> bool:
    """Whether it becomes true in time."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


@contextlib.contextmanager
def fails(kind: type[BelljarError], message: str, hint: str) -> Iterator[None]:
    """An error of this kind, with these parts of its text, soon."""
    begun = time.monotonic()
    with pytest.raises(kind, match=message) as caught:
        yield
    assert type(caught.value) is kind
    assert hint in caught.value.hint
    assert time.monotonic() - begun < SECONDS


@dataclass
class Place:
    """An engine, as those who are not belljar use it."""

    backend: str
    engine: Engine
    label: str = "belljar=1"
    """What is looked at: everything of belljar's in an engine of ours, else what this process made."""

    def ask(self, *words: str) -> list[str]:
        return self.engine.run(*words).split()

    def there(self, label: str = "") -> set[str]:
        """The names of the containers and volumes."""
        only = ("--filter", f"label={label or self.label}")
        return {
            *self.ask("ps", "--all", *only, "--format", "{{.Names}}"),
            *self.ask("volume", "ls", *only, "--format", "{{.Name}}"),
        }

    def named(self, end: str) -> str:
        """The one container whose name has this end."""
        (name,) = (name for name in self.there() if name.endswith(end))
        return name

    def has_spare(self) -> bool:
        return any(name.endswith("-2") for name in self.there())


def nothing_left(place: Place, label: str = "") -> bool:
    with contextlib.suppress(BelljarError):
        return not place.there(label)
    return False


def cli(*words: str, before: Sequence[str] = ()) -> tuple[int, list[str]]:
    """What `belljar` ends with, and what it says on standard error, without empty lines."""
    command = [*before, BELLJAR, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, [line for line in done.stderr.splitlines() if line]


def is_two_lines(lines: list[str], message: str, hint: str) -> bool:
    return (
        len(lines) == 2
        and lines[0].startswith("belljar: error: ")
        and message in lines[0]
        and lines[1].startswith("hint: ")
        and hint in lines[1]
    )


# --- a daemon that may be killed -------------------------------------------------------------------------------------


class Daemon:
    """Docker's, from the test's side."""

    def __init__(self, home: str) -> None:
        supervisor = [sys.executable, str(HERE / "faulty_docker.py"), home]
        self.host = f"unix://{home}/docker.sock"
        self.starter = subprocess.Popen(
            ["setsid", "--fork", "unshare", "--mount", "--propagation", "private", *supervisor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.starter.wait(SECONDS)  # it is nobody's child from now on, and ends when our pipe closes

    def tell(self, word: str) -> None:
        assert self.starter.stdin is not None
        assert self.starter.stdout is not None
        self.starter.stdin.write(word + "\n")
        self.starter.stdin.flush()
        assert self.starter.stdout.readline() == "done\n", word

    def close(self) -> None:
        assert self.starter.stdin is not None
        assert self.starter.stdout is not None
        self.starter.stdin.close()
        self.starter.stdout.read()
        self.starter.stdout.close()


@pytest.fixture(scope="module")
def daemon(need_backend: Callable[[str], None]) -> Iterator[Daemon]:
    """It runs, with the image that the other tests use."""
    need_backend("docker")
    if os.geteuid() != 0 or not find_program("dockerd"):
        pytest.skip("a dockerd of one's own needs root and the program dockerd")
    home = tempfile.mkdtemp(prefix="belljar-faults.", dir="/tmp")
    one = Daemon(home)
    try:
        one.tell("start")
        docker = find_engine("docker").program
        with subprocess.Popen([docker, "save", BASE_IMAGE], stdout=subprocess.PIPE) as saved:
            subprocess.run([docker, "--host", one.host, "load"], stdin=saved.stdout, capture_output=True, check=True)
        yield one
    finally:
        one.close()
        assert not os.path.exists(home), "it left its directory"


@pytest.fixture
def docker(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The engine that this daemon is. After each test it runs, and nothing of belljar's is left in it."""
    monkeypatch.setenv("DOCKER_HOST", daemon.host)
    place = Place("docker", find_engine("docker"))
    assert not place.there()
    yield place
    with contextlib.suppress(AssertionError):
        daemon.tell("start") if not _answers(place) else None
    assert until(lambda: nothing_left(place)), place.there()


def _answers(place: Place) -> bool:
    try:
        place.there()
    except BelljarError:
        return False
    return True


def test_a_daemon_that_is_down(docker: Place, daemon: Daemon) -> None:
    """Nothing is opened, and how to start it is told; by the command line too."""
    daemon.tell("kill")
    with fails(PrerequisiteError, "docker's daemon does not answer", "systemctl start docker"):
        run("print(1)", backend="docker")
    code, lines = cli("run", "--backend", "docker", "-c", "print(1)")
    assert code == 125
    assert is_two_lines(lines, "docker's daemon does not answer", "systemctl start docker"), lines
    daemon.tell("start")
    assert cli("run", "--backend", "docker", "-c", "print(1)") == (0, [])


@pytest.mark.parametrize("how", ["kill", "term"])
def test_a_daemon_that_ends_between_runs(docker: Place, daemon: Daemon, how: str) -> None:
    """The Sandbox is lost with its files and says so, always; a new one works when the daemon is back."""
    with Sandbox(backend="docker") as jar:
        jar.files.write("kept", b"1")
        assert jar.run("print(1)").stdout == "1\n"
        daemon.tell(how)
        for _ in range(2):
            with fails(SandboxUnavailableError, "this Sandbox is lost", "open a new Sandbox"):
                jar.run("print(2)")
        with fails(SandboxUnavailableError, "this Sandbox is lost", "open a new Sandbox"):
            jar.files.read("kept")
        daemon.tell("start")
        with fails(SandboxUnavailableError, "this Sandbox is lost", "open a new Sandbox"):
            jar.run("print(3)")
    with Sandbox(backend="docker") as jar:
        assert jar.run("print(4)").stdout == "4\n"


@pytest.mark.parametrize("how", ["kill", "term"])
def test_a_daemon_restarted_in_the_middle_of_a_run(docker: Place, daemon: Daemon, how: str) -> None:
    """The run is lost, its caller is told, and what it left is removed while belljar goes on."""
    with Sandbox(backend="docker") as jar:
        with fails(SandboxUnavailableError, "docker's daemon|the container", "again"), jar.stream(SLEEPER) as events:
            next(events)
            daemon.tell(how)
            daemon.tell("start")
            list(events)
        with fails(SandboxUnavailableError, "this Sandbox is lost", "open a new Sandbox"):
            jar.run("print(2)")
    assert until(lambda: nothing_left(docker))  # this process lives: it was the broom
    with Sandbox(backend="docker") as jar:
        assert jar.run("print(3)").stdout == "3\n"


def _sleeping(backend: str) -> subprocess.Popen[str]:
    """`belljar run`, its code up."""
    process = subprocess.Popen(
        [BELLJAR, "run", "--backend", backend, "-c", SLEEPER],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def test_the_command_line_tells_of_a_daemon_that_ends(docker: Place, daemon: Daemon) -> None:
    """In two lines; the keeper waits for the daemon, and removes what is left when it is back."""
    with _sleeping("docker") as process:
        daemon.tell("kill")
        _, stderr = process.communicate(timeout=SECONDS)
    assert process.returncode == 125
    lines = [line for line in stderr.splitlines() if line]
    assert is_two_lines(lines, "docker's daemon", "when it is back"), lines
    daemon.tell("start")
    assert until(lambda: nothing_left(docker), 30), docker.there()


def test_what_nobody_could_remove_the_next_one_sweeps(docker: Place, daemon: Daemon) -> None:
    """Belljar, its keeper and the daemon are killed at once: the next belljar finds what is left."""
    with _sleeping("docker") as process:
        keepers = [pid for pid in _children(process.pid) if _name(pid) == "belljar-keeper"]
        assert keepers
        daemon.tell("kill")
        for pid in (*keepers, process.pid):
            os.kill(pid, signal.SIGKILL)
    daemon.tell("start")
    assert docker.there()
    assert cli("run", "--backend", "docker", "-c", "print(1)") == (0, [])
    assert until(lambda: nothing_left(docker)), docker.there()


def test_a_daemon_that_hangs(docker: Place, daemon: Daemon) -> None:
    """The code's time is belljar's to hold: the run ends with an error, not with the daemon."""
    try:
        with Sandbox(backend="docker", timeout="2s") as jar:
            with fails(SandboxUnavailableError, "docker did not answer within", "is its daemon well"):
                for _ in jar.stream(SLEEPER):
                    daemon.tell("freeze")
            daemon.tell("thaw")
            assert jar.run("print(2)").stdout == "2\n"
    finally:
        daemon.tell("thaw")


def test_a_disk_that_is_full(docker: Place, daemon: Daemon) -> None:
    """No Sandbox is opened; one that is open can't have another container; both work when there is room again."""
    with Sandbox(backend="docker", one_shot=True) as jar:
        assert jar.run("print(1)").stdout == "1\n"
        assert until(lambda: len(docker.there()) == 2)  # its depot and its volume
        daemon.tell("fill")
        with fails(SandboxUnavailableError, "the disk that docker writes to is full", "docker system prune"):
            jar.run("print(2)")
        with fails(SandboxUnavailableError, "the disk that docker writes to is full", "docker system df"):
            run("print(3)", backend="docker")
        code, lines = cli("run", "--backend", "docker", "-c", "print(4)")
        assert code == 125
        assert is_two_lines(lines, "is full", "docker system df"), lines
        daemon.tell("empty")
        assert jar.run("print(5)").stdout == "5\n"


def test_a_runtime_that_is_taken_away(docker: Place, daemon: Daemon) -> None:
    """Docker was told of it, and it is not there any more."""
    daemon.tell("take-runtime")
    try:
        with fails(PrerequisiteError, "docker has no such runtime", "apt install crun"):
            run("print(1)", {"container": {"runtime": "crun"}}, backend="docker")
    finally:
        daemon.tell("give-runtime")
    with Sandbox({"container": {"runtime": "crun"}}, backend="docker", one_shot=True) as jar:
        assert jar.run("print(2)").stdout == "2\n"


def test_gvisor_where_there_is_none(docker: Place, daemon: Daemon) -> None:
    """A docker that was never told of runsc: an error with the steps, and never runc in its place."""
    policy = {"container": {"engine": "docker"}}
    with fails(PrerequisiteError, "there is no gVisor here", "runsc install"):
        run("print(1)", policy, backend="gvisor")
    code, lines = cli("run", "--backend", "gvisor", "--set", "container.engine=docker", "-c", "print(1)")
    assert code == 125
    assert is_two_lines(lines, "there is no gVisor here", "runsc install"), lines


def test_a_runc_with_a_known_escape(docker: Place, daemon: Daemon) -> None:
    """Docker says that its runc is one of 2018: nothing is started with it."""
    daemon.tell("kill")
    daemon.tell("start old")
    code, lines = cli("run", "--backend", "docker", "-c", "print(1)")
    daemon.tell("kill")
    daemon.tell("start")
    assert code == 125
    assert is_two_lines(lines, "has a known escape", "install a newer runc"), lines


# --- any engine ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=["docker", "podman"])
def place(request: pytest.FixtureRequest, need_backend: Callable[[str], None]) -> Iterator[Place]:
    """An engine that works, which others may use too; nothing that this process made is left after the test."""
    backend = str(request.param)
    need_backend(backend)
    one = Place(backend, find_engine(backend), f"belljar.owner={owner()}")
    assert until(lambda: nothing_left(one))  # of tests before
    yield one
    assert until(lambda: nothing_left(one)), one.there()


@pytest.mark.parametrize("how", [("rm", "--force"), ("kill",)])
def test_a_container_that_someone_else_removes(place: Place, how: tuple[str, ...]) -> None:
    """The run is lost, and says so; the Sandbox and its files are not."""
    with Sandbox(backend=place.backend, one_shot=True) as jar:
        jar.files.write("kept", b"1")
        with fails(SandboxUnavailableError, "something else", "belljar=1"), jar.stream(SLEEPER) as events:
            next(events)
            place.ask(*how, place.named("-1"))
            list(events)
        assert jar.run("print(open('kept').read())").stdout == "1\n"


def _spare(jar: Sandbox) -> Attached:
    """The container that waits for the next run."""
    inner = jar._jar
    assert isinstance(inner, ContainerJar)
    assert until(lambda: inner._spare is not None)
    assert inner._spare is not None
    return inner._spare.container


def test_a_spare_that_someone_else_removes(place: Place) -> None:
    """Nobody misses it, once the engine's client has heard of it."""
    with Sandbox(backend=place.backend) as jar:
        assert jar.run("print(1)").stdout == "1\n"
        assert until(place.has_spare)
        spare = _spare(jar)
        place.ask("rm", "--force", place.named("-2"))
        assert until(lambda: spare.is_over)
        assert jar.run("print(2)").stdout == "2\n"


def test_a_depot_that_someone_else_removes(place: Place) -> None:
    """The files were in it: the Sandbox is lost, and a new one works."""
    with Sandbox(backend=place.backend, one_shot=True) as jar:
        assert jar.run("print(1)").stdout == "1\n"
        place.ask("rm", "--force", place.named("-depot"))
        for _ in range(2):
            with fails(SandboxUnavailableError, "this Sandbox is lost, with the files in it", "open a new Sandbox"):
                jar.run("print(2)")
    with Sandbox(backend=place.backend, one_shot=True) as jar:
        assert jar.run("print(3)").stdout == "3\n"


def test_an_image_that_is_not_there(place: Place) -> None:
    """The command that gets it is told."""
    with fails(PrerequisiteError, "has no image 'belljar-base:none'", f"image build --engine {place.backend}"):
        run("print(1)", {"container": {"image": "belljar-base:none"}}, backend=place.backend)
    code, lines = cli("run", "--backend", place.backend, "--set", "container.image=nosuch:1", "-c", "print(1)")
    assert code == 125
    assert is_two_lines(lines, "has no image 'nosuch:1'", f"{place.backend} pull nosuch:1"), lines


def test_a_runtime_that_podman_does_not_find(need_backend: Callable[[str], None]) -> None:
    """It looks everywhere, so the program is hidden in a mount namespace of the command's own."""
    need_backend("podman")
    command = ["run", "--backend", "podman", "--set", "container.runtime=crun", "-c", "print(1)"]
    hidden = find_program("crun")
    if hidden and os.geteuid() != 0:
        pytest.skip("crun is installed, and only root can hide it")
    hide = 'mount --bind /dev/null "$1" && shift && exec "$@"'
    apart = ["unshare", "--mount", "--propagation", "private", "sh", "-c", hide, "sh", hidden] if hidden else []
    code, lines = cli(*command, before=apart)
    assert code == 125
    assert is_two_lines(lines, "podman has no such runtime", "apt install crun"), lines


UNATTACHED = """#!/bin/sh
count() { ls "$PLACE" | wc -l; }
for word; do
  if [ "$word" = run ] && mkdir "$PLACE/$(count)" && [ $(($(count) % EVERY)) -ne 0 ]; then
    echo "Error: failed to connect to container's attach socket: /x/userdata/attach: no such file or directory" >&2
    exit 127
  fi
done
exec PODMAN "$@"
"""
"""podman, which gets into one of so many containers that it starts."""


@pytest.mark.parametrize(("every", "works"), [(2, True), (3, True), (4, False)])
def test_podman_does_not_get_into_a_container(
    need_backend: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int, works: bool
) -> None:
    """Nothing has run in it, so there is another; but not without end."""
    need_backend("podman")
    place, programs = tmp_path / "place", tmp_path / "programs"
    place.mkdir()
    programs.mkdir()
    program = programs / "podman"
    program.write_text(UNATTACHED.replace("EVERY", str(every)).replace("PODMAN", find_program("podman") or ""))
    program.chmod(0o755)
    monkeypatch.setenv("PLACE", str(place))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    if works:
        with Sandbox(backend="podman") as jar:
            assert jar.run("print(1)").stdout == "1\n"
        assert len(list(place.iterdir())) >= 2 * every
        return
    with pytest.raises(SandboxUnavailableError, match="did not get into the container"):
        Sandbox(backend="podman").run("print(1)")


def test_a_program_with_many_open_files(place: Place) -> None:
    """Descriptors beyond the 1024th are as good as others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip(f"RLIMIT_NOFILE is {hard} here")
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with Sandbox(backend=place.backend, one_shot=True) as jar:
            assert jar.run("print(input())", stdin=b"1\n").stdout == "1\n"


# --- belljar is killed -----------------------------------------------------------------------------------------------


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _processes_with(text: str) -> list[str]:
    """Their command lines."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if text in command and int(name) != os.getpid():
                found.append(command)
    return found


def _mounts_with(text: str) -> list[str]:
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if text in line]


MOMENTS = ("opening", "depot", "filling", "waiting", "running", "mirror", "closing")


@pytest.mark.parametrize("moment", MOMENTS)
def test_nothing_stays_of_a_belljar_that_is_killed(
    place: Place, moment: str, tmp_path: Path, state_directory: str
) -> None:
    """Whatever it was doing: no container, volume, process, mount or file, after moments or the next one's start."""
    workspace, temporary = tmp_path / "workspace", tmp_path / "temporary"
    temporary.mkdir()
    workspace.mkdir()
    for number in range(50):
        (workspace / str(number)).write_bytes(bytes(100_000))
    program = [sys.executable, str(HERE / "killed.py"), place.backend, moment, str(workspace)]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, text=True, env=os.environ | {"TMPDIR": str(temporary)}
    ) as one:
        assert one.stdout is not None
        told = one.stdout.readline().split()
        one.kill()
        assert told[:1] == [moment], told
    volume, label = told[1], f"belljar.owner={told[2]}"
    assert until(lambda: nothing_left(place, label)), place.there(label)
    assert until(lambda: not _processes_with(volume)), _processes_with(volume)
    assert not _mounts_with(volume)
    assert not os.listdir(temporary)
    with Sandbox(backend=place.backend, one_shot=True) as jar:  # sweeps
        assert jar.run("print(1)").stdout == "1\n"
    left = os.path.join(state_directory, "mirrors")
    assert not os.path.exists(left) or not os.listdir(left)
