"""The engine's program: found, called, and its complaints understood."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from belljar.backends.container.engine.engine import Engine, fault, find_engine, find_program
from belljar.backends.container.engine.facts import facts
from belljar.backends.container.engine.faults import GVISOR_INSTALL, UnattachedError
from belljar.errors import BelljarError, PolicyError, PrerequisiteError, SandboxUnavailableError

DOCKER = Engine("docker", "/usr/bin/docker")


def _complaints() -> list[tuple[Engine, str, type[BelljarError], str, str]]:
    """The table in complaints.txt: engine, what it said, whose fault it is, a part of the message, one of the hint."""
    rows: list[tuple[str, list[str]]] = []
    for line in (Path(__file__).parent / "complaints.txt").read_text().splitlines():
        if line.startswith("    "):
            rows[-1][1].append(line[4:])
        elif line and not line.startswith("#"):
            rows.append((line, []))
    return [_complaint(head, "\n".join(said)) for head, said in rows]


def _complaint(head: str, said: str) -> tuple[Engine, str, type[BelljarError], str, str]:
    called, whose, message, hint = (part.strip() for part in head.split("|"))
    name, _, runtime = called.partition("+")
    kind = {"MISSING": PrerequisiteError, "LOST": SandboxUnavailableError, "UNATTACHED": UnattachedError}[whose]
    return Engine(name, f"/usr/bin/{name}", runtime or None), said, kind, message, hint


@pytest.mark.parametrize(("engine", "said", "kind", "message", "hint"), _complaints())
def test_every_complaint_has_a_meaning(
    engine: Engine, said: str, kind: type[BelljarError], message: str, hint: str
) -> None:
    """Whose fault it is, and what to do."""
    error = fault(engine, said, 125)
    assert type(error) is kind
    assert message in error.message
    assert hint in error.hint


def test_a_complaint_is_bounded_and_harmless() -> None:
    """An engine may repeat names that somebody chose; none of it reaches a terminal as it is."""
    error = fault(DOCKER, "boom \x1b[2J\x07\u202e" + "x" * 5000, 1)
    assert "\x1b" not in error.message
    assert "\u202e" not in error.message
    assert "\\x1b[2J" in error.message
    assert len(error.message) < 400
    assert fault(DOCKER, "", 125).message == "docker failed with code 125: it said nothing"


COMMANDS = [
    (Engine("docker", "/d"), ["/d", "ps"], []),
    (Engine("docker", "/d", "runsc"), ["/d", "ps"], ["--runtime", "runsc"]),
    (Engine("nerdctl", "/n", "runsc"), ["/n", "ps"], ["--runtime", "runsc"]),
    (Engine("podman", "/p", "runc"), ["/p", "--log-level", "error", "--runtime", "runc", "ps"], []),
    (
        Engine("podman", "/p", "runsc"),
        ["/p", "--log-level", "error", "--runtime", "runsc", "--runtime-flag", "network=none", "ps"],
        [],
    ),
]


@pytest.mark.parametrize(("engine", "command", "options"), COMMANDS)
def test_where_the_runtime_is_named(engine: Engine, command: list[str], options: list[str]) -> None:
    """Before podman's command, and among the options of docker's `run`."""
    without_manager = [part for part in engine.command("ps") if part not in ("--cgroup-manager", "cgroupfs")]
    assert (without_manager, engine.run_options()) == (command, options)


# --- finding it ------------------------------------------------------------------------------------------------------


def _program(directory: Path, name: str, text: str = "#!/bin/sh\nexit 0\n") -> Path:
    path = directory / name
    path.write_text(text)
    path.chmod(stat.S_IRWXU)
    return path


@pytest.fixture
def only_these(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is the only place where programs are."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("belljar.backends.container.engine.engine._PLACES", ())
    return tmp_path


FOUND = [
    ("docker", "auto", ["docker", "podman"], "docker"),
    ("docker", "auto", ["nerdctl"], "nerdctl"),
    ("docker", "nerdctl", ["docker", "nerdctl"], "nerdctl"),
    ("podman", "auto", ["docker", "podman"], "podman"),
    ("gvisor", "auto", ["podman", "runsc"], "podman"),
    ("gvisor", "podman", ["docker", "podman", "runsc"], "podman"),
    ("gvisor", "nerdctl", ["nerdctl", "containerd-shim-runsc-v1"], "nerdctl"),
]


@pytest.mark.parametrize(("backend", "engine", "there", "expected"), FOUND)
def test_the_engine_that_is_there(backend: str, engine: str, there: list[str], expected: str, only_these: Path) -> None:
    """The one that is named, or the first that serves the backend."""
    for name in there:
        _program(only_these, name)
    found = find_engine(backend, engine)
    assert (found.name, found.program) == (expected, str(only_these / expected))
    assert found.runtime == ("runsc" if backend == "gvisor" else None)


@pytest.mark.parametrize("backend", ["docker", "podman", "gvisor"])
def test_none_is_there(backend: str, only_these: Path) -> None:
    """Then the way to install it is told."""
    with pytest.raises(PrerequisiteError) as caught:
        find_engine(backend)
    assert "install" in caught.value.hint


@pytest.mark.parametrize("engine", ["docker", "podman", "nerdctl"])
def test_gvisor_is_runsc_or_an_error(engine: str, only_these: Path) -> None:
    """Never runc in its place."""
    answer = '{"Runtimes": {"runc": {"path": "runc"}}, "ServerVersion": "1"}'
    _program(only_these, engine, f"#!/bin/sh\necho '{answer}'\n")
    with pytest.raises(PrerequisiteError, match="no gVisor") as caught:
        find_engine("gvisor", engine)
    assert caught.value.hint == GVISOR_INSTALL


def test_docker_says_whether_it_has_runsc(only_these: Path) -> None:
    """By its own list; the program alone is not enough for docker."""
    answer = '{"Runtimes": {"runc": {"path": "runc"}, "runsc": {"path": "/r"}}, "DefaultRuntime": "runc"}'
    _program(only_these, "docker", f"#!/bin/sh\necho '{answer}'\n")
    found = find_engine("gvisor")
    assert (found.name, found.runtime, found.run_options()) == ("docker", "runsc", ["--runtime", "runsc"])


CONTRADICTIONS = [("docker", "podman", "auto"), ("podman", "docker", "auto"), ("gvisor", "auto", "runc")]


@pytest.mark.parametrize(("backend", "engine", "runtime"), CONTRADICTIONS)
def test_what_does_not_fit_is_the_policys_mistake(backend: str, engine: str, runtime: str) -> None:
    """A backend says which engines and runtimes there can be."""
    with pytest.raises(PolicyError):
        find_engine(backend, engine, runtime)


def test_podman_in_dockers_clothes_is_not_docker(only_these: Path) -> None:
    """The package podman-docker; its options are podman's."""
    _program(only_these, "docker", '#!/bin/sh\nexec /usr/bin/podman "$@"\n')
    with pytest.raises(PrerequisiteError, match="docker is not installed"):
        find_engine("docker")


def test_a_relative_path_finds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the directory where somebody happens to be is not the engine."""
    _program(tmp_path, "belljar-no-such-engine")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f".{os.pathsep}{os.pathsep}/usr/bin")
    assert find_program("belljar-no-such-engine") is None


# --- a daemon that is not well, for real -----------------------------------------------------------------------------

needs_docker = pytest.mark.skipif(find_program("docker") is None, reason="docker's program is not installed")


@needs_docker
def test_no_daemon_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens: every command says so, and quickly."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    engine = find_engine("docker")
    for ask in (lambda: facts(engine), lambda: engine.run("ps"), lambda: engine.run("run", "--rm", "x")):
        with pytest.raises(PrerequisiteError, match="does not answer") as caught:
            ask()
        assert "start docker" in caught.value.hint


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A socket in the daemon's place."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "daemon.sock"))
        listening.listen(16)
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/daemon.sock")
        yield listening


@needs_docker
@pytest.mark.usefixtures("listener")
def test_a_daemon_that_never_answers() -> None:
    """It is waited for as long as was said, and no longer."""
    started = time.monotonic()
    with pytest.raises(SandboxUnavailableError, match=r"did not answer within 0\.5 s"):
        facts(find_engine("docker"), timeout=0.5)
    assert time.monotonic() - started < 5


@needs_docker
def test_a_daemon_that_hangs_up(listener: socket.socket) -> None:
    """As one does that is restarted in the middle of a request."""

    def hang_up() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(1000)

    thread = threading.Thread(target=hang_up, daemon=True)
    thread.start()
    with pytest.raises(SandboxUnavailableError, match="went away in the middle"):
        facts(find_engine("docker"))
    listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


@pytest.mark.backend("docker")
def test_a_missing_image_and_a_missing_runtime() -> None:
    """As a real daemon says it."""
    engine = find_engine("docker")
    with pytest.raises(PrerequisiteError, match="the image is not here"):
        engine.run("create", "--pull", "never", "belljar-test-nosuch:1")
    with pytest.raises(PrerequisiteError, match="not the name of an image"):
        engine.run("create", "--pull", "never", "Bad::ref")
    with pytest.raises(SandboxUnavailableError, match="the container is gone"):
        engine.run("kill", "belljar-test-nosuch")
