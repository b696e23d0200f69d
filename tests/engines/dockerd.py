"""A dockerd of the tests' own: own socket, own containerd, own data, own control group, no network, runc and runsc.

The containerd is started here and not by dockerd, which would take a running one of the system's instead.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from place import KEPT, Place, search_path, storage

START_SECONDS = 60.0
END_SECONDS = 20.0
PR_SET_PDEATHSIG = 1


class EngineError(Exception):
    """An engine did not start; the message says why."""


class Dockerd:
    """Runs in the keeper, as its children: when the keeper is killed, they are told to end."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._data, self._overlay = storage(place, "docker")
        self._children: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []

    def start(self) -> None:
        """Returns when dockerd answers.

        Raises:
            EngineError: it did not; with the end of its log.
        """
        home = self._place.home
        (home / "containerd.toml").write_text(self._containerd_settings())
        (home / "dockerd.json").write_text(json.dumps(self._dockerd_settings(), indent=2))
        self._child("containerd", ["--config", str(home / "containerd.toml")])
        self._wait_for(self._containerd_socket)
        options = ["--config-file", str(home / "dockerd.json"), "--host", f"unix://{self._place.docker_socket}"]
        self._child("dockerd", options)
        self._wait_for(self._place.docker_socket, request=b"GET /_ping HTTP/1.0\r\n\r\n")
        self._remove_containers()  # of a run that was killed

    def stop(self) -> None:
        """Removes every container and volume, then ends dockerd and containerd, in that order."""
        if len(self._children) > 1 and self._children[1].poll() is None:
            self._remove_containers()
        for child in reversed(self._children):
            if child.poll() is None:
                child.terminate()
            try:
                child.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    @property
    def _containerd_socket(self) -> str:
        return str(self._place.home / "containerd.sock")

    def _containerd_settings(self) -> str:
        return (
            f'version = 2\nroot = "{self._data}/containerd"\nstate = "{self._place.home}/containerd"\n'
            'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
            f'[grpc]\naddress = "{self._containerd_socket}"\n'
        )

    def _dockerd_settings(self) -> dict[str, object]:
        settings: dict[str, object] = {
            "containerd": self._containerd_socket,
            "data-root": str(self._data / "data"),
            "exec-root": str(self._place.home / "exec"),
            "pidfile": str(self._place.home / "dockerd.pid"),
            "storage-driver": "overlay2" if self._overlay else "vfs",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": f"/{self._place.cgroup}",
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "group": "root",
        }
        if runsc := shutil.which("runsc", path=search_path()):
            # Debian's runsc has no network stack that works on newer kernels, and no jar needs one.
            settings["runtimes"] = {
                "runsc": {"path": runsc, "runtimeArgs": ["--network=none"]},
                "runsc-network": {"path": runsc, "runtimeArgs": ["--network=host"]},
            }
        return settings

    def _child(self, program: str, options: list[str]) -> None:
        path = shutil.which(program, path=search_path())
        if path is None:
            raise EngineError(f"{program} is not installed")
        log = KEPT / f"{program}.log"
        self._logs.append(log)
        with log.open("wb") as output:
            child = subprocess.Popen(
                [path, *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=os.environ | {"PATH": search_path()},
                preexec_fn=_end_with_parent,
            )
        self._children.append(child)

    def _wait_for(self, path: str, request: bytes = b"") -> None:
        """Until something answers at `path`, or its process has ended, or it has taken too long."""
        deadline = time.monotonic() + START_SECONDS
        while not _answers(path, request):
            code = self._children[-1].poll()
            if code is None and time.monotonic() < deadline:
                time.sleep(0.05)
                continue
            what = f"did not answer for {START_SECONDS:.0f} s" if code is None else f"ended with {code}"
            end = "\n".join(self._logs[-1].read_text(errors="replace").splitlines()[-15:])
            raise EngineError(f"{self._logs[-1].stem} {what}:\n{end}")

    def _remove_containers(self) -> None:
        self._remove_all(["ps", "--all"], ["rm", "--force", "--volumes"])
        self._remove_all(["volume", "ls"], ["volume", "rm", "--force"])

    def _remove_all(self, look: list[str], remove: list[str]) -> None:
        command = [client(self._place), "--host", f"unix://{self._place.docker_socket}"]
        with suppress(subprocess.TimeoutExpired):
            found = subprocess.run(
                [*command, *look, "--quiet"], capture_output=True, text=True, timeout=20, check=False
            )
            if found.stdout.split():
                subprocess.run([*command, *remove, *found.stdout.split()], capture_output=True, timeout=60, check=False)


def client(place: Place) -> str:
    """The docker that the tests use: the first of PATH that speaks with our dockerd.

    A much newer client refuses an old server; Debian's own, which came with the server, never does.
    """
    candidates = [shutil.which("docker", path=search_path()), "/usr/bin/docker"]
    for candidate in dict.fromkeys(path for path in candidates if path):
        command = [candidate, "--host", f"unix://{place.docker_socket}", "version", "--format", "{{.Server.Version}}"]
        with suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0:
                return candidate
    raise EngineError("no docker client here speaks with our dockerd")


def _answers(path: str, request: bytes) -> bool:
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(path)
        if not request:
            return True
        connection.sendall(request)
        return b" 200 " in connection.recv(100)
    return False


def _end_with_parent() -> None:
    """In the child, before it becomes the daemon."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.setpgid(0, 0)
