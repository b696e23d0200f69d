"""A dockerd of one test's own that may be killed, restarted, and starved of disk and of runtimes. Only as root.

It is asked in lines and answers each with one; it ends with the test's process, whichever way that ends. Its files lie
on a tmpfs in a mount namespace of its own, so nothing of it has to be unmounted.

    unshare --mount python faulty_docker.py HOME
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 60.0
SIZE = "700m"
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin:/usr/sbin:/sbin"])
OLD_RUNC = """#!/bin/sh
[ "$1" = --version ] && printf 'runc version 1.0.0-rc6\\ncommit: v1.0.0-rc6-0-gccb5efd\\n' && exit
exec runc "$@"
"""


class Daemons:
    """A containerd, which stays, and a dockerd, which comes and goes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.group = f"belljar-faults-{home.name}"
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        (home / "data").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(home / "data")], check=True)
        (home / "containerd.toml").write_text(
            f'version = 2\nroot = "{home}/data/containerd"\nstate = "{home}/containerd"\n'
            f'disabled_plugins = ["io.containerd.grpc.v1.cri"]\n[grpc]\naddress = "{home}/containerd.sock"\n'
        )
        for name, text in (("old", OLD_RUNC), ("crun", '#!/bin/sh\nexec runc "$@"\n')):
            (home / name).mkdir()
            program = home / name / ("runc" if name == "old" else "crun")
            program.write_text(text.replace("exec runc", f"exec {shutil.which('runc', path=PATH)}"))
            program.chmod(0o755)
        self.child("containerd", ["--config", str(home / "containerd.toml")], PATH)

    def start(self, kind: str = "") -> None:
        """Until it answers. `old`: its runc says that it is one with a known escape."""
        settings = {
            "containerd": f"{self.home}/containerd.sock",
            "data-root": f"{self.home}/data/docker",
            "exec-root": f"{self.home}/exec",
            "pidfile": f"{self.home}/dockerd.pid",
            "exec-opts": ["native.cgroupdriver=cgroupfs"],
            "cgroup-parent": f"/{self.group}",
            "bridge": "none",
            "iptables": False,
            "ip6tables": False,
            "group": "root",
            "shutdown-timeout": 5,
            "runtimes": {"crun": {"path": f"{self.home}/crun/crun"}},
        }
        (self.home / "dockerd.json").write_text(json.dumps(settings))
        options = ["--config-file", f"{self.home}/dockerd.json", "--host", f"unix://{self.home}/docker.sock"]
        self.child("dockerd", options, f"{self.home}/old:{PATH}" if kind == "old" else PATH)
        deadline = time.monotonic() + SECONDS
        while not self.answers():
            if self.children["dockerd"].poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"dockerd did not start: {self.home}/dockerd.log")
            time.sleep(0.05)

    def child(self, program: str, options: list[str], path: str) -> None:
        with (self.home / f"{program}.log").open("ab") as log:
            self.children[program] = subprocess.Popen(
                [str(shutil.which(program, path=path)), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | {"PATH": path},
            )

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(10)
            connection.connect(f"{self.home}/docker.sock")
            connection.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(100)
        return False

    def end(self, number: int) -> None:
        """Kill it, or tell it to end, and wait until it has. Then nobody listens at its socket."""
        self.children["dockerd"].send_signal(number)
        self.children["dockerd"].wait(SECONDS)

    def freeze(self) -> None:
        self.children["dockerd"].send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.children["dockerd"].send_signal(signal.SIGCONT)

    def fill(self) -> None:
        """Until its disk has no byte left."""
        with contextlib.suppress(OSError), (self.home / "data/full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 16))

    def empty(self) -> None:
        (self.home / "data/full").unlink(missing_ok=True)

    def take_runtime(self) -> None:
        (self.home / "crun/crun").rename(self.home / "crun/away")

    def give_runtime(self) -> None:
        (self.home / "crun/away").rename(self.home / "crun/crun")

    def close(self) -> None:
        """End everything, containers too, and remove it."""
        for child in reversed(self.children.values()):
            child.kill()
            child.wait()
        deadline = time.monotonic() + 10
        while (left := list(self.remains())) and time.monotonic() < deadline:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        for root in Path("/sys/fs/cgroup").glob(f"**/{self.group}"):
            for directory, _, _ in os.walk(root, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(directory)
        subprocess.run(["umount", "--lazy", str(self.home / "data")], capture_output=True, check=False)
        shutil.rmtree(self.home, ignore_errors=True)

    def remains(self) -> list[int]:
        """Shims, and what runs in containers."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{name}/cmdline").read_bytes()
                is_shim = command.split(b"/")[-1:] and b"containerd-shim" in command[:100]
                in_group = f"/{self.group}/" in Path(f"/proc/{name}/cgroup").read_text()
                if in_group or (is_shim and f"{self.home}/".encode() in command):
                    found.append(int(name))
        return found

    def obey(self, line: str) -> str:
        word, *rest = line.split()
        try:
            {
                "start": self.start,
                "kill": lambda: self.end(signal.SIGKILL),
                "term": lambda: self.end(signal.SIGTERM),
                "freeze": self.freeze,
                "thaw": self.thaw,
                "fill": self.fill,
                "empty": self.empty,
                "take-runtime": self.take_runtime,
                "give-runtime": self.give_runtime,
            }[word](*rest)
        except Exception as error:  # noqa: BLE001 - told to the test
            return f"failed: {error!r}"
        return "done"


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    daemons = Daemons(Path(sys.argv[1]))
    try:
        for line in sys.stdin:
            print(daemons.obey(line), flush=True)
    finally:
        daemons.close()


if __name__ == "__main__":
    main()
