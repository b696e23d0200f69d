"""What an IP address is: public, or one of the many that lead to the host, its neighbours or a cloud's inside. Pure.

The table is IANA's special-purpose registries of 2025, written out: what `ipaddress` calls private has changed between
versions of Python, and a decision must not.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

METADATA = (
    *("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("169.254.0.23", "169.254.10.10", "169.254.42.42", "169.254.169.250", "169.254.169.251", "169.254.100.1"),
)
"""Where clouds answer questions about the machine that asks, with its credentials. Azure's is in a public range."""
METADATA_V6 = (
    *("fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:42::42", "fd00:c1::a9fe:a9fe", "fd00:a9fe:a9fe::1"),
    "fe80::a9fe:a9fe",
)

_V4 = (
    ("unspecified", "0.0.0.0/8"),
    ("loopback", "127.0.0.0/8"),
    ("link-local", "169.254.0.0/16"),
    ("private", "10.0.0.0/8"),
    ("private", "172.16.0.0/12"),
    ("private", "192.168.0.0/16"),
    ("shared", "100.64.0.0/10"),
    ("benchmarking", "198.18.0.0/15"),
    ("reserved", "192.0.0.0/24"),
    ("reserved", "192.0.2.0/24"),
    ("reserved", "192.31.196.0/24"),
    ("reserved", "192.52.193.0/24"),
    ("reserved", "192.88.99.0/24"),
    ("reserved", "192.175.48.0/24"),
    ("reserved", "198.51.100.0/24"),
    ("reserved", "203.0.113.0/24"),
    ("multicast", "224.0.0.0/4"),
    ("reserved", "240.0.0.0/4"),
)
_V6 = (
    ("unspecified", "::/128"),
    ("loopback", "::1/128"),
    ("link-local", "fe80::/10"),
    ("private", "fc00::/7"),
    ("private", "fec0::/10"),
    ("multicast", "ff00::/8"),
    ("reserved", "100::/64"),
    ("reserved", "100:0:0:1::/64"),
    ("reserved", "2001::/23"),
    ("reserved", "2001:db8::/32"),
    ("reserved", "2620:4f:8000::/48"),
    ("reserved", "3fff::/20"),
    ("reserved", "5f00::/16"),
)
_GLOBAL_V6 = IPv6Network("2000::/3")
_NETWORKS_V4 = tuple((kind, IPv4Network(text)) for kind, text in _V4)
_NETWORKS_V6 = tuple((kind, IPv6Network(text)) for kind, text in _V6)
_NAT64 = (IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48"))
_COMPATIBLE = IPv6Network("::/96")
_METADATA = frozenset(map(ip_address, (*METADATA, *METADATA_V6)))


@lru_cache(maxsize=4096)
def judge(ip: str) -> str:
    """Why `ip` is not an address of the public internet, as one word; nothing when it is one.

    Raises:
        ValueError: when it is no address.

    """
    address = ip_address(ip)
    if address in _METADATA:
        return "metadata"
    if isinstance(address, IPv4Address):
        return _judge_v4(address)
    if inner := _embedded(address):
        # The other side of a translator sees the inner address, so that is the one that counts. Only a network
        # without IPv4 has an honest use for one, and it is NAT64's.
        return "metadata" if inner in _METADATA else _judge_v4(inner) or ("" if address in _NAT64[0] else "embedded")
    for kind, network in _NETWORKS_V6:
        if address in network:
            return kind
    return "" if address in _GLOBAL_V6 else "reserved"


def is_public(ip: str) -> bool:
    """Whether `ip` is an address of the public internet."""
    try:
        return not judge(ip)
    except ValueError:
        return False


def _judge_v4(address: IPv4Address) -> str:
    return next((kind for kind, network in _NETWORKS_V4 if address in network), "")


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside a mapped, compatible, 6to4, Teredo, NAT64 or ISATAP one."""
    if address.ipv4_mapped:
        return address.ipv4_mapped
    if address.sixtofour:
        return address.sixtofour
    if address.teredo:
        return address.teredo[1]
    low = int(address) & 0xFFFFFFFF
    if any(address in network for network in _NAT64):
        return IPv4Address(low)
    if address in _COMPATIBLE and low > 1:
        return IPv4Address(low)
    if (int(address) >> 32) & 0xFFFFFFFF in (0x00005EFE, 0x02005EFE):
        return IPv4Address(low)
    return None
