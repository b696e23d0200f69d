"""The few requests of rtnetlink that a gateway needs, each acknowledged by the kernel or an OSError.

Written with `struct` alone: this runs in a stage, which imports nothing after its start, and `ip` may not be installed.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from types import TracebackType

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Self

_NLMSG_ERROR = 2
_REQUEST, _ACK, _EXCL, _CREATE = 0x1, 0x4, 0x200, 0x400
_NEWLINK, _NEWADDR, _NEWROUTE = 16, 20, 24

_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 18, 28
_IFLA_INFO_KIND, _IFLA_INFO_DATA, _VETH_INFO_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_DST, _RTA_OIF, _RTA_GATEWAY = 1, 4, 5

_IFF_UP = 1
_IFA_F_NODAD = 0x02
_TABLE_MAIN, _PROTOCOL_STATIC = 254, 4
_SCOPE_UNIVERSE, _SCOPE_HOST = 0, 254
UNICAST, LOCAL = 1, 2
"""Kinds of route: to a neighbour, or "this address is ours"."""


class Netlink:
    """A netlink socket of the namespace that this process is in."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
        self._socket.bind((0, 0))
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def make_veth(self, name: str, peer: str, peer_namespace: int) -> None:
        """A cable: one end here, the other in the namespace of the descriptor."""
        other = _link(0) + _attribute(_IFLA_IFNAME, _text(peer))
        other += _attribute(_IFLA_NET_NS_FD, struct.pack("=I", peer_namespace))
        kind = _attribute(_IFLA_INFO_KIND, b"veth")
        data = _attribute(_IFLA_INFO_DATA, _attribute(_VETH_INFO_PEER, other))
        body = _link(0) + _attribute(_IFLA_IFNAME, _text(name)) + _attribute(_IFLA_LINKINFO, kind + data)
        self._ask(_NEWLINK, body, _EXCL | _CREATE, f"make the interface {name}")

    def up(self, name: str) -> None:
        """Switch an interface on."""
        body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, socket.if_nametoindex(name), _IFF_UP, _IFF_UP)
        self._ask(_NEWLINK, body, 0, f"switch {name} on")

    def add_address(self, name: str, address: str, bits: int) -> None:
        """Give an interface an address. No other host is there, so a duplicate is not looked for."""
        family, packed = _packed(address)
        body = struct.pack("=BBBBI", family, bits, _IFA_F_NODAD, _SCOPE_UNIVERSE, socket.if_nametoindex(name))
        body += _attribute(_IFA_LOCAL, packed) + _attribute(_IFA_ADDRESS, packed)
        self._ask(_NEWADDR, body, _EXCL | _CREATE, f"give {name} the address {address}")

    def add_route(self, family: int, kind: int, name: str, gateway: str | None = None) -> None:
        """A route for every address of the family."""
        scope = _SCOPE_HOST if kind == LOCAL else _SCOPE_UNIVERSE
        body = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, scope, kind, 0)
        body += _attribute(_RTA_OIF, struct.pack("=I", socket.if_nametoindex(name)))
        if gateway is not None:
            body += _attribute(_RTA_GATEWAY, _packed(gateway)[1])
        self._ask(_NEWROUTE, body, _EXCL | _CREATE, f"add a route through {name}")

    def _ask(self, kind: int, body: bytes, flags: int, what: str) -> None:
        self._number += 1
        header = struct.pack("=IHHII", 16 + len(body), kind, _REQUEST | _ACK | flags, self._number, 0)
        self._socket.send(header + body)
        answer = self._socket.recv(1 << 16)
        _length, answered, _flags, number, _pid = struct.unpack_from("=IHHII", answer)
        if answered != _NLMSG_ERROR or number != self._number:
            raise OSError(errno.EPROTO, f"the kernel answered something else when asked to {what}")
        code = -struct.unpack_from("=i", answer, 16)[0]
        if code:
            raise OSError(code, f"can't {what}: {os.strerror(code)}")


def _link(flags: int) -> bytes:
    return struct.pack("=BxHiII", socket.AF_UNSPEC, 0, 0, flags, flags)


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _text(name: str) -> bytes:
    return name.encode() + b"\0"


def _packed(address: str) -> tuple[int, bytes]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.inet_pton(family, address)
