"""PostgreSQL, Redis and sshd of the tests' own: processes that listen on loopback only, not as root where they can.

Each lives in a directory of its own, which is removed with it.
"""

from __future__ import annotations

import getpass
import glob
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_START_SECONDS = 60.0
_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]
_SYSTEM_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


@dataclass(frozen=True)
class Daemon:
    """A server that is another program."""

    port: int
    user: str = ""
    key: str = ""
    """For ssh: the private key that lets `user` in."""

    @property
    def address(self) -> str:
        """As a rule pins it."""
        return f"127.0.0.1:{self.port}"


def need_program(name: str, package: str, *places: str) -> str:
    """The path of a program; the test is skipped where there is none."""
    found = shutil.which(name, path=_SYSTEM_PATH) or next((path for place in places for path in glob.glob(place)), None)
    if found is None:
        pytest.skip(f"{name} is not installed here (apt-get install {package})")
    return found


@contextmanager
def postgresql() -> Iterator[Daemon]:
    """A database server that lets everyone on loopback in, as `jar`."""
    initdb = need_program("initdb", "postgresql", "/usr/lib/postgresql/*/bin/initdb")
    server = os.path.join(os.path.dirname(os.path.realpath(initdb)), "postgres")
    first = _NOBODY if os.geteuid() == 0 else []  # it refuses to be root
    with _directory(first) as directory:
        data = directory / "data"
        make = [*first, initdb, "--no-sync", "--no-instructions", "--auth=trust", "--username=jar", str(data)]
        subprocess.run(
            make, cwd=directory, check=True, capture_output=True, env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        )
        port = _free_port()
        settings = [
            f"port={port}",
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "fsync=off",
            "autovacuum=off",
            "shared_buffers=1MB",
        ]
        command = [*first, server, "-D", str(data), *(word for each in settings for word in ("-c", each))]
        with _running(command, port, directory):
            yield Daemon(port, "jar")


@contextmanager
def redis() -> Iterator[Daemon]:
    """An empty Redis."""
    server = need_program("redis-server", "redis-server")
    first = _NOBODY if os.geteuid() == 0 else []
    port = _free_port()
    with _directory(first) as directory:
        command = [*first, server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"]
        with _running(command, port, directory):
            yield Daemon(port)


@contextmanager
def sshd() -> Iterator[Daemon]:
    """An ssh server that lets the user in who runs the tests, by a key of its own, for one harmless command."""
    server = need_program("sshd", "openssh-server")
    keygen = need_program("ssh-keygen", "openssh-client")
    port = _free_port()
    with _directory([]) as directory:
        for name in ("host", "user"):
            make = [keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(directory / name)]
            subprocess.run(make, check=True, capture_output=True)
        (directory / "settings").write_text(
            f"""
            ListenAddress 127.0.0.1:{port}
            HostKey {directory}/host
            AuthorizedKeysFile {directory}/user.pub
            PidFile none
            UsePAM no
            StrictModes no
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            PermitRootLogin forced-commands-only
            """
        )
        (directory / "user.pub").write_text(
            'restrict,command="echo through ssh: $SSH_ORIGINAL_COMMAND" ' + (directory / "user.pub").read_text()
        )
        command = [server, "-D", "-e", "-f", str(directory / "settings")]
        if os.geteuid() == 0:  # as root it wants a directory of the system's: in a view of its own it has one
            setup = 'mount -t tmpfs none /run && mkdir -m 755 /run/sshd && exec "$@"'
            command = ["unshare", "--mount", "/bin/sh", "-c", setup, "sshd", *command]
        with _running(command, port, directory):
            yield Daemon(port, getpass.getuser(), (directory / "user").read_text())


@contextmanager
def _directory(first: Sequence[str]) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="belljar-network-", dir="/tmp"))
    if first:
        os.chown(path, 65534, 65534)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def _running(command: Sequence[str], port: int, directory: Path) -> Iterator[None]:
    log = directory / "log"
    with log.open("wb") as output:
        environment = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LC_ALL": "C"}
        process = subprocess.Popen(command, cwd=directory, stdout=output, stderr=output, env=environment)
    try:
        _wait_for(port, process, log)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert process.poll() is None, log.read_text(errors="replace")[-2000:]
            time.sleep(0.02)
        else:
            return
    raise AssertionError(f"not there after {_START_SECONDS:.0f} s: {log.read_text(errors='replace')[-2000:]}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])
