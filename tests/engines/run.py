"""The engines that the tests use: a dockerd and a podman storage of this clone's own. Only as root on Debian.

    python tests/engines/run.py around -- COMMAND…     starts them, runs COMMAND with their variables, stops them
    python tests/engines/run.py start                  starts them to stay, and prints what a shell has to export
    python tests/engines/run.py stop                   stops them, whoever uses them
    python tests/engines/run.py podman-settings DIRECTORY      settings for an ordinary user's podman; prints likewise

Elsewhere `around` runs COMMAND with the engines that are there, and `start` says so.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from place import KEPT, REPOSITORY, Place, search_path
from podman import Podman, settings
from remains import clear

HERE = Path(__file__).resolve().parent
END_SECONDS = 180.0
IMAGES = REPOSITORY / ".cache/images"


def main() -> int:
    """The command's exit code, or our own."""
    arguments = sys.argv[1:]
    match arguments:
        case ["around", "--", *command] if command:
            return around(command)
        case ["start"]:
            return start()
        case ["stop"]:
            return stop()
        case ["podman-settings", directory]:
            return podman_settings(Path(directory))
    print((__doc__ or "").strip(), file=sys.stderr)
    return 2


def around(command: list[str]) -> int:
    """Runs the command; engines that did not start are a note, since the tests that must have them say so."""
    if why := why_not_our_own():
        say(f"using the engines that are here: {why}")
        return run(command, dict(os.environ))
    with Handled():
        engines = Engines.used()
        try:
            build_images(engines)
            return run(command, engines.environment)
        finally:
            left = engines.leave()
            if left:
                say(f"error: the engines left behind: {left}")


def start() -> int:
    if why := why_not_our_own():
        say(f"nothing to start: {why}")
        return 1
    engines = Engines.used()
    build_images(engines)
    engines.keep()
    for name, value in engines.variables.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def stop() -> int:
    with Locked("start"):
        connection = connected()
        if connection is None:
            clear_remains()
            return 0
        left = finish(connection, b"stop")
    if left:
        say(f"error: the engines left behind: {left}")
    return 1 if left else 0


def podman_settings(directory: Path) -> int:
    """For a user whose directory this is: the same settings as root's, storage included."""
    for name, value in settings(directory, directory / "images", "overlay").items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def why_not_our_own() -> str:
    """Why the tests start no engines of their own here; empty if they do."""
    if os.environ.get("BELLJAR_TEST_ENGINES") == "here":
        return "BELLJAR_TEST_ENGINES=here"
    if os.geteuid() != 0:
        return "not root"
    if not is_debian():
        return "not Debian"
    return "" if shutil.which("dockerd", path=search_path()) else "dockerd is not installed"


def is_debian() -> bool:
    with suppress(OSError):
        lines = Path("/etc/os-release").read_text().splitlines()
        return any(line.startswith(("ID=", "ID_LIKE=")) and "debian" in line for line in lines)
    return False


# --- the keeper, from outside ----------------------------------------------------------------------------------------


@dataclass
class Engines:
    """Running engines, held by a connection to their keeper."""

    connection: socket.socket
    variables: dict[str, str]

    @classmethod
    def used(cls) -> Engines:
        """Those that run, or new ones; what a killed keeper left is removed first."""
        begun = time.monotonic()
        with Locked("start"):
            connection = connected()
            new = connection is None
            connection = connection or started()
        connection.sendall(b"use\n")
        answer = received(connection)
        if answer is None:
            raise SystemExit(f"error: the keeper of the engines ended:\n{(KEPT / 'keeper.log').read_text()}")
        for note in answer["notes"]:
            say(f"note: {note}")
        say(f"{'started' if new else 'using'} our own engines ({time.monotonic() - begun:.1f} s)")
        return cls(connection, answer["environment"])

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | self.variables | {"BELLJAR_IMAGE_CACHE": str(IMAGES)}

    def keep(self) -> None:
        """They stay until they are told to stop."""
        self.connection.sendall(b"keep\n")
        received(self.connection)
        self.connection.close()

    def leave(self) -> str:
        """Returns when they are gone, or at once if somebody else uses them; what they left behind, in words."""
        return finish(self.connection, b"")


def connected() -> socket.socket | None:
    """A connection to the keeper that runs."""
    place = Place.recorded()
    if place is None:
        return None
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(place.control)
    except OSError:
        connection.close()
        return None
    return connection


def started() -> socket.socket:
    """A connection to a new keeper. It inherits the listening socket, so there is nothing to wait for."""
    clear_remains()
    place = Place.new()
    with socket.socket(socket.AF_UNIX) as listener, (KEPT / "keeper.log").open("wb") as log:
        listener.bind(place.control)
        os.chmod(place.control, 0o600)
        listener.listen()
        command = [sys.executable, "-u", str(HERE / "keeper.py"), str(place.home), str(listener.fileno())]
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            pass_fds=[listener.fileno()],
        )
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place.control)
    return connection


def clear_remains() -> None:
    """Waits for a keeper that is ending, then removes what one that was killed left."""
    KEPT.mkdir(parents=True, exist_ok=True)
    with Locked("keeper"):
        if place := Place.recorded():
            say(f"removing what killed engines left in {place.home}")
            Podman(place).stop()
            if left := clear(place):
                raise SystemExit(f"error: engines that were killed left what can't be removed: {left}")


def finish(connection: socket.socket, word: bytes) -> str:
    connection.settimeout(END_SECONDS)
    try:
        if word:
            connection.sendall(word + b"\n")
        connection.shutdown(socket.SHUT_WR)
        answer = received(connection)
    except TimeoutError:
        return f"a keeper that does not end (see {KEPT / 'keeper.log'})"
    except OSError:
        return ""
    if answer is None:  # somebody else uses them
        return ""
    with suppress(ProcessLookupError):
        ending = os.pidfd_open(int(str(answer["pid"])))
        select.select([ending], [], [], END_SECONDS)
        os.close(ending)
    return str(answer["left"])


def received(connection: socket.socket) -> dict[str, object] | None:
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(65536)
        if not part:
            return None
        data += part
    return json.loads(data)  # type: ignore[no-any-return]


# --- the command -----------------------------------------------------------------------------------------------------


def build_images(engines: Engines) -> None:
    """The base image, for each engine of ours; the archive that it is loaded from is kept in `.cache/images`."""
    belljar = str(Path(sys.executable).parent / "belljar")
    environment = engines.environment | {"BELLJAR_STATE_DIR": str(KEPT / "state")}
    for engine, variable in (("docker", "DOCKER_HOST"), ("podman", "CONTAINERS_STORAGE_CONF")):
        program = shutil.which(engine, path=environment.get("PATH"))
        if program is None or variable not in engines.variables:  # it would be the system's
            continue
        begun = time.monotonic()
        build = [belljar, "image", "build", "--engine", engine]
        done = subprocess.run(build, stdout=subprocess.DEVNULL, check=False, env=environment)
        # An older base image has lost its name to this one.
        prune = [program, "image", "prune", "--force"]
        subprocess.run(prune, capture_output=True, check=False, env=environment)
        how = "is there" if done.returncode == 0 else "could not be built"
        say(f"the base image {how} for {engine} ({time.monotonic() - begun:.1f} s)")


def run(command: list[str], environment: dict[str, str]) -> int:
    """The exit code. On Ctrl-C the terminal has told the command too: it ends by itself, and we wait for it."""
    child = subprocess.Popen(command, env=environment)
    while True:
        try:
            code = child.wait()
            return code if code >= 0 else 128 - code
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                child.send_signal(signal.SIGTERM) if Handled.terminated else None


class Handled:
    """SIGTERM and SIGHUP end the command like Ctrl-C does, so that the engines are stopped."""

    terminated = False

    def __enter__(self) -> None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._interrupt)

    def __exit__(self, *_: object) -> None:
        pass

    @staticmethod
    def _interrupt(_signal: int, _frame: FrameType | None) -> None:
        Handled.terminated = True
        raise KeyboardInterrupt


class Locked:
    """One at a time in this clone."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        KEPT.mkdir(parents=True, exist_ok=True)
        self._file = (KEPT / f"{self._name}.lock").open("w")
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        self._file.close()


def say(text: str) -> None:
    print(f"== engines: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
