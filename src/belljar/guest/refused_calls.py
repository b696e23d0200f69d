"""How a refused system call is named in a denial: with the argument for which it was refused, if that tells more."""

from __future__ import annotations

_FAMILIES = {
    17: "AF_PACKET",
    29: "AF_CAN",
    30: "AF_TIPC",
    31: "AF_BLUETOOTH",
    38: "AF_ALG",
    40: "AF_VSOCK",
    44: "AF_XDP",
}
_INTERNET = (2, 10)
_NAMESPACES = {
    0x20000: "NEWNS",
    0x02000000: "NEWCGROUP",
    0x04000000: "NEWUTS",
    0x08000000: "NEWIPC",
    0x10000000: "NEWUSER",
    0x20000000: "NEWPID",
    0x40000000: "NEWNET",
}


def described(name: str, arguments: tuple[int, ...] | list[int]) -> str:
    """Return the name of a call, with what was asked for. There are few texts for one call, whatever its arguments."""
    if name == "socket":
        family = arguments[0] & 0xFFFFFFFF
        kind = "SOCK_RAW" if family in _INTERNET else _FAMILIES.get(family, "")
        return f"socket {kind}".rstrip()
    if name in ("clone", "unshare"):
        asked = [text for flag, text in _NAMESPACES.items() if arguments[0] & flag]
        return f"{name} CLONE_{asked[0]}" if asked else name
    return name
