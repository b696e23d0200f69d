"""Runs inside the virtual machine, as root: unpacks the work tree, runs one command in a login session, tells its end.

Trusted, like everything on the second disk. The command gets ordinary pipes; this program carries what comes out of
them to the host, through a virtio port for each stream: 1 stdout, 2 stderr, 3 its own events (JSON lines).
"""

from __future__ import annotations

import json
import os
import pwd
import selectors
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

DRAIN_SECONDS = 3.0
VENV = Path("/opt/venv")


def port(number: int) -> int:
    """A write returns when the host has taken the data, so nothing is lost at power-off."""
    (device,) = Path("/dev").glob(f"vport*p{number}")
    return os.open(device, os.O_WRONLY)


def main() -> None:
    job = json.loads(Path("/run/vm/job.json").read_text())
    stdout, stderr, status = port(1), port(2), port(3)

    def tell(**event: object) -> None:
        os.write(status, json.dumps(event).encode() + b"\n")

    tell(event="booted", uptime=time.clock_gettime(time.CLOCK_BOOTTIME))
    account = pwd.getpwnam(job["user"])
    unpack(account)
    announce_package(Path(account.pw_dir) / "belljar", job)
    with subprocess.Popen(
        login_command(job), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=job["session"]
    ) as child:
        tell(event="started", uptime=time.clock_gettime(time.CLOCK_BOOTTIME))
        assert child.stdout is not None
        assert child.stderr is not None
        left_open = carry({child.stdout.fileno(): stdout, child.stderr.fileno(): stderr}, child)
        tell(event="exit", code=shell_code(child.wait()), left_open=left_open)


def unpack(account: pwd.struct_passwd) -> None:
    """The tree belongs to the user who tests it, as a clone would."""
    with open("/dev/vdb", "rb") as disk:
        subprocess.run(
            ["tar", "-x", "-C", account.pw_dir, "belljar"],
            check=True, stdin=disk, user=account.pw_uid, group=account.pw_gid, extra_groups=[],
        )  # fmt: skip


def announce_package(tree: Path, job: dict[str, object]) -> None:
    """What an editable install leaves behind, without a build: import path, metadata, console scripts."""
    (site,) = VENV.glob("lib/python3*/site-packages")
    (site / "belljar.pth").write_text(f"{tree}/src\n")
    for name, text in job["site"].items():  # type: ignore[attr-defined]
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    for name, text in job["scripts"].items():  # type: ignore[attr-defined]
        (VENV / "bin" / name).write_text(text)
        (VENV / "bin" / name).chmod(0o755)


def login_command(job: dict[str, object]) -> list[str]:
    """The PAM session registers with logind, as after ssh: session scope, runtime directory, user manager."""
    environment = job["environment"]
    assert isinstance(environment, dict)
    assert isinstance(job["command"], list)
    exports = "".join(f"export {name}={shlex.quote(value)}; " for name, value in environment.items())
    script = f"cd ~/belljar; {exports}exec {shlex.join(job['command'])}"
    return [
        "runuser",
        "--login",
        str(job["user"]),
        "--whitelist-environment=XDG_SESSION_TYPE,XDG_SESSION_CLASS",
        "--command",
        script,
    ]


def carry(routes: dict[int, int], child: subprocess.Popen[bytes]) -> bool:
    """Copies each pipe to its port until all are closed, or the child is gone and something else holds one open."""
    with selectors.DefaultSelector() as selector, watched(child.pid, selector):
        for source in routes:
            selector.register(source, selectors.EVENT_READ)
        deadline: float | None = None
        waiting = set(routes)
        while waiting:
            timeout = None if deadline is None else deadline - time.monotonic()
            if timeout is not None and timeout <= 0:
                return True
            for key, _ in selector.select(timeout):
                if key.fd not in routes:  # the child's pidfd
                    deadline = time.monotonic() + DRAIN_SECONDS
                    selector.unregister(key.fd)
                elif data := os.read(key.fd, 65536):
                    write_all(routes[key.fd], data)
                else:
                    selector.unregister(key.fd)
                    waiting.discard(key.fd)
    return False


@contextmanager
def watched(pid: int, selector: selectors.BaseSelector) -> Iterator[None]:
    pidfd = os.pidfd_open(pid)
    try:
        selector.register(pidfd, selectors.EVENT_READ)
        yield
    finally:
        os.close(pidfd)


def write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def shell_code(returncode: int) -> int:
    return returncode if returncode >= 0 else 128 - returncode


if __name__ == "__main__":
    main()
