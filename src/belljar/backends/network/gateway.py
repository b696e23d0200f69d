"""The gateway of a jar: an empty network namespace at the other end of a cable, in which every address is local.

```
jar's namespace                      gateway's namespace
  lo                                   lo      every address there is: "local", so that whatever the code dials arrives
  eth0 198.19.255.2 ──── cable ──── gw0 198.19.255.1
  default route via gw0                listeners of the proxy, on the ports of the policy and for DNS
```

Nothing of belljar's runs in either: a child enters them for a moment, makes the sockets, and hands them back. The proxy
that gets them is outside, and nothing else has a way into the gateway or out of it. The guest's servers stay its own.
No privilege on the host is needed: both namespaces belong to the jar's user namespace, whose owner started it.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence

from belljar.backends import kernel
from belljar.backends.contract import Listener
from belljar.backends.network.addresses import (
    ALWAYS_HEARD,
    BITS,
    BITS_6,
    DNS_PORT,
    GATEWAY_ADDRESS,
    GATEWAY_ADDRESS_6,
    GATEWAY_INTERFACE,
    HTTP_PROXY_PORT,
    JAR_ADDRESS,
    JAR_ADDRESS_6,
    JAR_INTERFACE,
    MOST_PORTS,
    PROXY_ADDRESS,
    SOCKS_PORT,
)
from belljar.backends.network.attempts import attempts_only
from belljar.backends.network.netlink import LOCAL, UNICAST, Netlink

_BACKLOG = 1024
_TIMEOUT_SECONDS = 10
_ETH_P_ALL = 3
_SO_ATTACH_FILTER = 26
_IP_PKTINFO, _IPV6_RECVPKTINFO, _IPV6_FREEBIND = 8, 49, 78
_FIRST_FREE_PORT = "/proc/sys/net/ipv4/ip_unprivileged_port_start"


def open_gateway(pid: int, ports: Sequence[int], *, separate: bool) -> tuple[Listener, ...]:
    """Give the jar of process `pid` its gateway, with listeners on the ports. Forks: for a process of one thread.

    Without `separate` the sockets are in the jar's own namespace, where they get in the way of its servers.

    Raises:
        OSError: with what could not be done.
    """
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _in_child(network, ports, separate=separate)
    finally:
        os.close(network)


def _in_child(network: int, ports: Sequence[int], *, separate: bool) -> tuple[Listener, ...]:
    """A process of its own goes in, because it does not come out again."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    child = os.fork()
    if child == 0:
        try:
            ours.close()
            _build_or_tell(network, ports, theirs, separate=separate)
        finally:
            os._exit(0)
    theirs.close()
    with ours:
        ours.settimeout(_TIMEOUT_SECONDS)
        try:
            opened = receive(ours)
        finally:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)
    return opened


def build_for(parent: socket.socket, pid: int, ports: Sequence[int]) -> None:
    """Make the gateway from this process, which stays in it, and send the sockets or the error to the parent."""
    network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    _build_or_tell(network, ports, parent, separate=True)
    os.close(network)


def _build_or_tell(network: int, ports: Sequence[int], parent: socket.socket, *, separate: bool) -> None:
    try:
        _build(network, ports, parent, separate=separate)
    except OSError as error:
        parent.send(struct.pack("=i", error.errno or 0) + str(error.strerror or error).encode()[:500])


def _build(network: int, ports: Sequence[int], parent: socket.socket, *, separate: bool) -> None:
    kernel.enter_owner(network)
    if separate:
        kernel.unshare(kernel.CLONE_NEWNET)
        gateway = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        six, canaries = _join(network, gateway)
    else:
        kernel.setns(network, kernel.CLONE_NEWNET)
        six, canaries = _make_everything_local(), _canaries()
    _send(parent, [*_sockets(ports, six=six, watch=separate), *canaries])


def _join(network: int, gateway: int) -> tuple[bool, list[tuple[str, int, socket.socket]]]:
    """Lay the cable; whether it carries IPv6 too, and the canaries at its other end. Ends in the gateway."""
    with Netlink() as here:
        here.make_veth(GATEWAY_INTERFACE, JAR_INTERFACE, network)
    six = _make_everything_local(GATEWAY_INTERFACE)
    kernel.setns(network, kernel.CLONE_NEWNET)
    with Netlink() as there:
        there.up("lo")
        there.add_address(JAR_INTERFACE, JAR_ADDRESS, BITS)
        there.up(JAR_INTERFACE)
        there.add_route(socket.AF_INET, UNICAST, JAR_INTERFACE, GATEWAY_ADDRESS)
        with contextlib.suppress(OSError):  # switched off in there: then it has no route, and is closed
            if six:
                there.add_address(JAR_INTERFACE, JAR_ADDRESS_6, BITS_6)
                there.add_route(socket.AF_INET6, UNICAST, JAR_INTERFACE, GATEWAY_ADDRESS_6)
    _free_low_ports()
    canaries = _canaries()
    kernel.setns(gateway, kernel.CLONE_NEWNET)
    return six, canaries


def _free_low_ports() -> None:
    """The code's servers may have any port of their own network, 80 and 443 too; not where /proc can't be written."""
    with contextlib.suppress(OSError), open(_FIRST_FREE_PORT, "w") as setting:
        setting.write("0")


def _make_everything_local(cable: str = "") -> bool:
    """Every address is this namespace's own; whether IPv6 too. Where it can't be had, it has no route: closed."""
    with Netlink() as here:
        here.up("lo")
        if cable:
            here.add_address(cable, GATEWAY_ADDRESS, BITS)
            here.up(cable)
        here.add_route(socket.AF_INET, LOCAL, "lo")
        try:
            if cable:
                here.add_address(cable, GATEWAY_ADDRESS_6, BITS_6)
            here.add_route(socket.AF_INET6, LOCAL, "lo")
        except OSError:
            return False
    return True


# --- the sockets -----------------------------------------------------------------------------------------------------


def _sockets(ports: Sequence[int], *, six: bool, watch: bool) -> list[tuple[str, int, socket.socket]]:
    made: list[tuple[str, int, socket.socket]] = [("dns-udp", DNS_PORT, _resolver(socket.AF_INET))]
    if six:
        made.append(("dns-udp", DNS_PORT, _resolver(socket.AF_INET6)))
    if watch:
        made.append(("packet", 0, _packet_watch()))
    roles = {**dict.fromkeys(ports, "tcp"), DNS_PORT: "dns-tcp"}
    made += [(role, port, _listener(port, six=six)) for port, role in roles.items()]
    proxies = {HTTP_PROXY_PORT: "http-proxy", SOCKS_PORT: "socks"}
    made += [(role, port, _listener(port, six=False, address=PROXY_ADDRESS)) for port, role in proxies.items()]
    return made


def _canaries() -> list[tuple[str, int, socket.socket]]:
    """Two sockets in the jar's own network, with which the host tries, before the code can, what must be refused."""
    return [
        ("canary-udp", DNS_PORT, socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),
        ("canary-tcp", ALWAYS_HEARD, socket.socket(socket.AF_INET, socket.SOCK_STREAM)),
    ]


def _listener(port: int, *, six: bool, address: str = "") -> socket.socket:
    """A socket for every address; or for one, and then the same port of all others is free for another."""
    listener = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    if six:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((address or ("::" if six else "0.0.0.0"), port))  # noqa: S104 - of a namespace that nobody else is in
    listener.listen(_BACKLOG)
    return listener


def _resolver(family: int) -> socket.socket:
    """Answers have to come from the address that was asked, so each datagram tells which that was."""
    resolver = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6:
        resolver.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        resolver.setsockopt(socket.IPPROTO_IPV6, _IPV6_RECVPKTINFO, 1)
        resolver.setsockopt(socket.IPPROTO_IPV6, _IPV6_FREEBIND, 1)  # a local route is not enough to answer from there
    else:
        resolver.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
    resolver.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", DNS_PORT))  # noqa: S104
    return resolver


def _packet_watch() -> socket.socket:
    """Sees attempts on every port, also on those where nobody listens: they are refused by the kernel, and recorded."""
    watch = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
    buffer = ctypes.create_string_buffer(attempts_only())
    program = struct.pack("HL", (len(buffer) - 1) // 8, ctypes.addressof(buffer))
    watch.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
    watch.bind((GATEWAY_INTERFACE, _ETH_P_ALL))
    return watch


# --- handing them back -----------------------------------------------------------------------------------------------


def _send(parent: socket.socket, made: Sequence[tuple[str, int, socket.socket]]) -> None:
    names = ",".join(f"{role}:{port}" for role, port, _socket in made)
    descriptors = array.array("i", [opened.fileno() for _role, _port, opened in made])
    parent.sendmsg([struct.pack("=i", 0) + names.encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])


def receive(end: socket.socket) -> tuple[Listener, ...]:
    """The sockets that a child made. Raises OSError with what it could not do."""
    room = socket.CMSG_SPACE((MOST_PORTS + 12) * 4)
    try:
        message, ancillary, _flags, _address = end.recvmsg(1 << 16, room, socket.MSG_CMSG_CLOEXEC)
    except TimeoutError as error:
        raise OSError(errno.ETIMEDOUT, "the jar's gateway was not ready in time") from error
    if not message:
        raise OSError(errno.EPIPE, "the process that makes the jar's gateway has died")
    number = struct.unpack_from("=i", message)[0]
    text = message[4:].decode(errors="replace")
    if not ancillary:
        raise OSError(number or errno.EIO, text)
    descriptors = array.array("i")
    for _level, _kind, data in ancillary:
        descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    words = [word.split(":") for word in text.split(",")]
    return tuple(Listener(role, int(port), number) for (role, port), number in zip(words, descriptors, strict=True))
