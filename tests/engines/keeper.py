"""The process that keeps the engines: their parent, which ends them when nobody uses them any more.

Who uses them holds a connection to its socket. When the last one closes, by an end of any kind, `kill -9` too, the
engines are stopped, everything of theirs is removed, and the keeper ends. `keep` lets them stay until `stop` is said.

    python tests/engines/keeper.py HOME LISTENING-DESCRIPTOR       (started by run.py, as root)
"""

from __future__ import annotations

import fcntl
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dockerd import Dockerd, EngineError, client
from place import KEPT, Place
from podman import Podman
from remains import clear

FIRST_USER_SECONDS = 60.0
"""How long the first user may take to connect: it has made our socket before it started us."""


class Keeper:
    """One loop, one thread: the daemons' parent-death signal follows the thread that started them."""

    def __init__(self, place: Place, listener: socket.socket) -> None:
        self._place = place
        self._listener = listener
        self._docker = Dockerd(place)
        self._podman = Podman(place)
        self._users: set[socket.socket] = set()
        self._waiting: list[socket.socket] = []
        self._kept = False
        self._ending = False
        self._answer: dict[str, object] = {}

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self._told_to_end)
        self._answer = self._start()
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            ready = selector.select(FIRST_USER_SECONDS)
            while ready and not self._ending:
                for key, _ in ready:
                    self._serve(key.fileobj, selector)  # type: ignore[arg-type]
                if not self._users and not self._kept:
                    break
                ready = selector.select()
        self._listener.close()
        self._stop()

    def _told_to_end(self, _signal: int, _frame: FrameType | None) -> None:
        self._ending = True
        raise InterruptedError  # out of the wait

    def _start(self) -> dict[str, object]:
        environment = self._podman.start()
        notes = []
        try:
            self._docker.start()
            environment["DOCKER_HOST"] = f"unix://{self._place.docker_socket}"
            environment["PATH"] = self._path_with(client(self._place))
        except EngineError as error:
            notes.append(str(error))
        return {"environment": environment, "notes": notes}

    def _path_with(self, program: str) -> str:
        """PATH in which `docker` is the one that speaks with our dockerd."""
        path = os.environ.get("PATH", os.defpath)
        if shutil.which("docker", path=path) == program:
            return path
        directory = self._place.home / "bin"
        directory.mkdir(mode=0o755)
        (directory / "docker").symlink_to(program)
        return f"{directory}:{path}"

    def _serve(self, source: socket.socket, selector: selectors.BaseSelector) -> None:
        if source is self._listener:
            connection, _ = self._listener.accept()
            self._users.add(connection)
            selector.register(connection, selectors.EVENT_READ)
            return
        word = b""
        with suppress(OSError):
            word = source.recv(100).strip()
        if word == b"use":
            self._say(source, self._answer)
            return
        selector.unregister(source)
        self._users.discard(source)
        if word in (b"keep", b"stop"):
            self._kept, self._ending = word == b"keep", word == b"stop"
        if word == b"keep":
            self._say(source, self._answer)
        if self._users or self._kept:
            source.close()
        else:
            self._waiting.append(source)  # it learns of the end by ours

    def _say(self, connection: socket.socket, what: dict[str, object]) -> None:
        with suppress(OSError):
            connection.sendall(json.dumps(what).encode() + b"\n")

    def _stop(self) -> None:
        self._docker.stop()
        self._podman.stop()
        left = clear(self._place)
        if left:
            print(f"left behind: {left}", flush=True)
        for connection in [*self._waiting, *self._users]:
            self._say(connection, {"left": left, "pid": os.getpid()})


def main() -> None:
    place, listener = Place(Path(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    with open(KEPT / "keeper.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # for as long as we live: run.py waits for it
        keeper = Keeper(place, listener)
        keeper.run()


if __name__ == "__main__":
    main()
