"""A world of its own for belljar: a network namespace with a name server, whose log shows every question of the host's.

`ask` runs this file again, in network and mount namespaces: first `prepare`, with the privileges of those (addresses of
loopback, /etc/resolv.conf), then `serve` without them, as the user who runs the tests. Addresses that look like the
internet's, a cloud's metadata service or a company's are loopback's there: nothing leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

PUBLIC, METADATA, PRIVATE = "93.184.215.14", "169.254.169.254", "10.11.12.13"
"""All of them loopback's in there."""
ADDRESSES = {
    "public.test": [PUBLIC],
    "loopback.test": ["127.0.0.1"],
    "metadata.test": [METADATA],
    "private.test": [PRIVATE],
    "this-host.test": ["0.0.0.0"],
    "mapped.test": [f"::ffff:{METADATA}"],
    "loopback-six.test": ["::1"],
    "both.test": ["127.0.0.1", METADATA, PUBLIC],
}
"""What its name server knows. All else does not exist, and was asked for."""
PORT = 80
MAY_NOT_ENTER = "BELLJAR_TEST_MAY_NOT_ENTER"
"""A variable: set, containers are as for an ordinary user who may only speak with the engine's daemon."""
_SECONDS = 60


@dataclass(frozen=True)
class Answer:
    """What came of a run in there."""

    outcome: str
    stdout: str
    stderr: str
    codes: tuple[str, ...]
    asked: tuple[str, ...]
    """Names that somebody asked the name server for."""
    heard: tuple[str, ...]
    """Addresses at which a server on port 80 was reached."""


def ask(
    code: str, policy: dict[str, Any] | None = None, *, backend: str = "bubblewrap", args: Sequence[str] = ()
) -> Answer:
    """Run Python code in a jar with this policy; without a policy, in no jar.

    A container engine stays where it is: its daemon sees the state directory, and its containers the world through the
    proxy alone, which belongs to this world.
    """
    with (
        tempfile.TemporaryDirectory(prefix="belljar-world-", dir="/tmp") as directory,
        tempfile.TemporaryDirectory(prefix="belljar-world-", dir="/tmp") as state,
    ):
        here = os.path.abspath(__file__)
        setup = f"""
            mount -t tmpfs world {directory}
            printf 'nameserver 127.0.0.1\\noptions timeout:2 attempts:1\\n' >{directory}/resolv.conf
            mount --bind {directory}/resolv.conf /etc/resolv.conf
            "$1" "$2" prepare
            exec {_DROP} "$1" "$2" serve
        """
        done = subprocess.run(
            [*_NAMESPACES, "/bin/sh", "-ec", setup, "world", sys.executable, here],
            input=json.dumps({"code": code, "policy": policy, "backend": backend, "args": list(args)}),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            env={**os.environ, "BELLJAR_STATE_DIR": state},
        )
    assert done.returncode == 0, done.stderr[-3000:]
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    for name in ("codes", "asked", "heard"):
        told[name] = tuple(told[name])
    return Answer(**told)


_ROOT = os.geteuid() == 0
_NAMESPACES = (
    ["unshare", "--net", "--mount", "--"]
    if _ROOT
    else ["unshare", "--user", "--map-current-user", "--keep-caps", "--net", "--mount", "--"]
)
_DROP = "" if _ROOT else "setpriv --inh-caps=-all --ambient-caps=-all --"


# --- inside ----------------------------------------------------------------------------------------------------------


def prepare() -> None:
    """With privileges over the new namespaces."""
    from belljar.backends.network.netlink import Netlink

    with open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w") as file:
        file.write("0")
    with Netlink() as netlink:
        netlink.up("lo")
        for address in (PUBLIC, METADATA, PRIVATE):
            netlink.add_address("lo", address, 32)


class _Names:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            wire, sender = self._socket.recvfrom(512)
            self._socket.sendto(self._answer(wire), sender)

    def _answer(self, wire: bytes) -> bytes:
        labels, at = [], 12
        while size := wire[at]:
            labels.append(wire[at + 1 : at + 1 + size].decode("latin-1"))
            at += size + 1
        kind = struct.unpack(">H", wire[at + 1 : at + 3])[0]
        name = ".".join(labels).lower()
        self.asked.append(name)
        family = {1: socket.AF_INET, 28: socket.AF_INET6}.get(kind)
        known = ADDRESSES.get(name)
        found = [
            socket.inet_pton(family, address)
            for address in known or ()
            if family is not None and (":" in address) == (family == socket.AF_INET6)
        ]
        head = wire[:2] + struct.pack(">HHHHH", 0x8180 | (0 if known else 3), 1, len(found), 0, 0)
        records = [struct.pack(">HHHIH", 0xC00C, kind, 1, 0, len(data)) + data for data in found]
        return head + wire[12 : at + 5] + b"".join(records)


class _Ears:
    """A server on port 80 of every address."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self._socket = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            connection, _address = self._socket.accept()
            connection.settimeout(5)
            with contextlib.suppress(OSError):
                connection.recv(4096)
            self.heard.append(connection.getsockname()[0].removeprefix("::ffff:"))
            with contextlib.suppress(OSError):
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\nConnection: close\r\n\r\nreached")
            connection.close()


def serve() -> None:
    """Without privileges."""
    wanted = json.load(sys.stdin)
    names, ears = _Names(), _Ears()
    told: dict[str, Any]
    if wanted["policy"] is None:
        command = [sys.executable, "-c", wanted["code"], *wanted["args"]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS / 2, check=False)
        told = {"outcome": str(done.returncode), "stdout": done.stdout, "stderr": done.stderr, "codes": []}
    else:
        from belljar import Sandbox
        from belljar.backends.container import backend

        if os.environ.get(MAY_NOT_ENTER):
            backend._enters = lambda _known: False
        with Sandbox(wanted["policy"], backend=wanted["backend"]) as jar:
            result = jar.run(wanted["code"], args=wanted["args"])
        told = {"outcome": str(result.outcome), "stdout": result.stdout, "stderr": result.stderr}
        told["codes"] = sorted({denial.code for denial in result.denials})
    print(json.dumps({**told, "asked": sorted(set(names.asked)), "heard": ears.heard}))


if __name__ == "__main__":
    {"prepare": prepare, "serve": serve}[sys.argv[1]]()
