"""What a jar tried to reach, out of a packet's headers: attempts on ports where nobody listens become denials so.

Only headers are read, of packets that go nowhere; a packet that can't be read is no attempt that could have worked.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

TCP, UDP, ICMP, ICMP6 = 6, 17, 1, 58
NAMES = {TCP: "tcp", UDP: "udp", ICMP: "icmp", ICMP6: "icmpv6"}
_EXTENSIONS = frozenset({0, 43, 60})
_FRAGMENT = 44
_SYN, _ACK = 2, 16
_MAX_EXTENSIONS = 8


@dataclass(frozen=True, slots=True)
class Attempt:
    """A packet's protocol and where it was sent."""

    protocol: int
    address: str
    port: int
    """0 for a protocol without ports."""


def attempt(packet: bytes) -> Attempt | None:
    """Of a packet that starts at its IP header; None when it is not the beginning of anything."""
    if not packet:
        return None
    version = packet[0] >> 4
    if version == 4 and len(packet) >= 20:
        return _of(packet[9], packet[16:20], packet[(packet[0] & 15) * 4 :])
    if version == 6 and len(packet) >= 40:
        protocol, rest = _beyond_extensions(packet[6], packet[40:])
        return _of(protocol, packet[24:40], rest)
    return None


def _beyond_extensions(protocol: int, rest: bytes) -> tuple[int, bytes]:
    for _header in range(_MAX_EXTENSIONS):
        if protocol in _EXTENSIONS and len(rest) >= 8:
            protocol, rest = rest[0], rest[(rest[1] + 1) * 8 :]
        elif protocol == _FRAGMENT and len(rest) >= 8:
            protocol, rest = rest[0], rest[8:]
        else:
            break
    return protocol, rest


def _of(protocol: int, address: bytes, rest: bytes) -> Attempt | None:
    if protocol == TCP and (len(rest) < 14 or rest[13] & (_SYN | _ACK) != _SYN):  # part of a connection, or its end
        return None
    has_port = protocol in (TCP, UDP) and len(rest) >= 4
    return Attempt(protocol, str(ipaddress.ip_address(address)), int.from_bytes(rest[2:4], "big") if has_port else 0)
