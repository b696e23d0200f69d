"""The network from a container: the tables of test_attack_network, and what an engine tells of its host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attack_batch import Row, escapes, run_all
from attack_probe import python_probe
from test_attack_network import KINDS, WAYS, Ears, fill

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]

_IN_ITS_OWN_KERNEL = {"another address for the interface"}
"""gVisor's network is a program of its own, and its loopback the only interface."""

ROUTE = """
def attack():
    if len(open("/proc/net/route").read().splitlines()) > 1:
        return "a route"
    end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.sendto(b"x", ("192.0.2.1", 9))
    return "sent"
"""
HOST = """
def attack(*names):
    files = ("/etc/hosts", "/etc/resolv.conf", "/etc/hostname", "/proc/self/environ")
    said = "".join(open(path).read() for path in files)
    found = [name for name in names if name and name in said + os.uname().nodename]
    if not found:
        raise OSError(errno.ENOENT, "nothing of the host's")
    return found
"""


@pytest.fixture
def ears(arena: Path) -> Iterator[Ears]:
    """Listeners on the host."""
    listeners = Ears(arena)
    yield listeners
    listeners.close()


def _names_of_the_host() -> list[str]:
    """What only this host's own files say: its name, its domains, the names it gives to others."""
    words = [socket.gethostname()]
    for path in ("/etc/hosts", "/etc/resolv.conf"):
        for line in Path(path).read_text().splitlines():
            words += [word for word in line.partition("#")[0].split()[1:] if not word[0].isdigit()]
    usual = ("localhost", "ip6-", "timeout:", "attempts:", "ndots:", "::", "fe00", "ff0")
    return [word for word in words if not word.startswith(usual) and word != "jar"]


def test_nothing_leaves(open_jar: OpenJar, backend: str, ears: Ears, engine_environment: dict[str, str]) -> None:
    """No listener of the host's hears of a container, no socket goes around TCP, and the engine's own is not there."""
    jar = open_jar({"net": {"enabled": False, "allowlist": []}}, overrides=["proc.timeout_ms=60s"])
    rows = [Row(way.name, fill(way.body, ears)) for way in WAYS]
    rows += [Row(kind.name, python_probe(f"def attack(): return {kind.body}")) for kind in KINDS]
    engine = engine_environment.get("DOCKER_HOST", "").removeprefix("unix://") or "/run/docker.sock"
    for path in (engine, "/var/run/docker.sock", "/run/podman/podman.sock", "/run/containerd/containerd.sock"):
        connect = "def attack(path): socket.socket(socket.AF_UNIX).connect(path); return 'connected'"
        rows.append(Row(path, python_probe(connect), [path]))
    rows += [Row("route", python_probe(ROUTE)), Row("host", python_probe(HOST), _names_of_the_host())]
    found = escapes(run_all(jar, rows))
    assert not ears.heard(0.1)
    sent_to_nobody = {way.name for way in WAYS if "UDP" in way.name or "DNS" in way.name}
    allowed = sent_to_nobody | (_IN_ITS_OWN_KERNEL if backend == "gvisor" else set())
    assert not set(found) - allowed, found
