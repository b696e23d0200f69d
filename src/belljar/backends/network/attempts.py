"""Which packets are an attempt to reach something: a filter that the kernel runs on each, so that we see few.

A TCP connection's first packet, any datagram, an echo request; not what the kernel says by itself, and not our answers.
"""

from __future__ import annotations

import struct

_LOAD_WORD, _LOAD_BYTE, _LOAD_BYTE_AFTER_HEADER, _HEADER_LENGTH = 0x20, 0x30, 0x50, 0xB1
_AND, _IF, _RETURN = 0x54, 0x15, 0x06
_DIRECTION, _OUTGOING = 0xFFFFF004, 4
_TCP, _ICMP_6, _HOP_BY_HOP, _ECHO_REQUEST_6 = 6, 58, 0, 128
_HEADER_6, _FLAGS, _SYN_AND_ACK, _SYN = 40, 13, 0x12, 0x02
_KEPT_BYTES = 128

_Step = tuple[int, int] | tuple[int, int, str, str] | str
"""An instruction; one with two labels goes to the first if equal, else to the second. A text is a label."""

_PROGRAM: tuple[_Step, ...] = (
    (_LOAD_WORD, _DIRECTION),
    (_IF, _OUTGOING, "drop", "version"),
    "version",
    (_LOAD_BYTE, 0),
    (_AND, 0xF0),
    (_IF, 0x40, "four", "not four"),
    "not four",
    (_IF, 0x60, "six", "drop"),
    "four",
    (_LOAD_BYTE, 9),
    (_IF, _TCP, "tcp", "keep"),
    "tcp",
    (_HEADER_LENGTH, 0),
    (_LOAD_BYTE_AFTER_HEADER, _FLAGS),
    (_AND, _SYN_AND_ACK),
    (_IF, _SYN, "keep", "drop"),
    "six",
    (_LOAD_BYTE, 6),
    (_IF, _HOP_BY_HOP, "drop", "own header"),
    "own header",
    (_IF, _TCP, "tcp six", "not tcp six"),
    "not tcp six",
    (_IF, _ICMP_6, "icmp six", "keep"),
    "icmp six",
    (_LOAD_BYTE, _HEADER_6),
    (_IF, _ECHO_REQUEST_6, "keep", "drop"),
    "tcp six",
    (_LOAD_BYTE, _HEADER_6 + _FLAGS),
    (_AND, _SYN_AND_ACK),
    (_IF, _SYN, "keep", "drop"),
    "keep",
    (_RETURN, _KEPT_BYTES),
    "drop",
    (_RETURN, 0),
)


def attempts_only() -> bytes:
    """The filter, as SO_ATTACH_FILTER takes its instructions."""
    labels: dict[str, int] = {}
    steps: list[tuple[int, int] | tuple[int, int, str, str]] = []
    for step in _PROGRAM:
        if isinstance(step, str):
            labels[step] = len(steps)
        else:
            steps.append(step)
    code = b""
    for at, step in enumerate(steps):
        yes, no = (labels[label] - at - 1 for label in step[2:]) if len(step) == 4 else (0, 0)
        code += struct.pack("=HBBI", step[0], yes, no, step[1])
    return code
