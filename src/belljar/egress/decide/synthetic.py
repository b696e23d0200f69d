"""The addresses that stand for names in a jar: given when a name is first asked for, kept for the life of the run."""

from __future__ import annotations

import ipaddress

PROXY_ADDRESS = "198.18.0.1"
"""Where programs that use proxy variables find the proxy."""
_V4, _V6 = "198.18.0.0", "fd62:656c:6c6a::"
LOOPBACK = "127.18.0.0"
"""For a jar that has no network but loopback, all of which is its own: there, names have no IPv6 address."""
_FIRST = 256
"""What comes before is the proxy's own."""
_LAST = (1 << 17) - 2


class Names:
    """The names that a run knows, and their addresses."""

    def __init__(self, first: str = _V4) -> None:
        """`first` is where the addresses begin: in a /15."""
        self._v4 = int(ipaddress.IPv4Address(first))
        self._v6 = int(ipaddress.IPv6Address(_V6)) if first != LOOPBACK else None
        self._given: dict[str, tuple[str, str]] = {}
        self._names: list[str] = []

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: str) -> bool:
        return name in self._given

    def addresses(self, name: str) -> tuple[str, str] | None:
        """The IPv4 and the IPv6 address that stand for a normalised name; None when there are no more.

        The second is empty where the jar has no IPv6.
        """
        given = self._given.get(name)
        if given is None:
            number = _FIRST + len(self._names)
            if number > _LAST:
                return None
            six = "" if self._v6 is None else str(ipaddress.IPv6Address(self._v6 + number))
            given = str(ipaddress.IPv4Address(self._v4 + number)), six
            self._given[name] = given
            self._names.append(name)
        return given

    def name_at(self, address: str) -> str | None:
        """The name that an address stands for, if it stands for one."""
        first = self._v6 if ":" in address else self._v4
        if first is None:
            return None
        number = int(ipaddress.ip_address(address)) - first - _FIRST
        return self._names[number] if 0 <= number < len(self._names) else None
