"""A few hand-made instructions in front of libseccomp's program: the two things it can't say.

1. "Every number above N": it has no ranges, and one default action.
2. "Allowed except these values": an unconditional rule swallows the conditional one, and its NOT EQUAL
   compares 64 bits where the kernel uses 32, which was CVE-2019-10063 (TIOCSTI with a high bit set).

A classic BPF program jumps only forward and by distance, so a program whose every unfinished path runs off its own
end can be put in front of another one as it is.
"""

from __future__ import annotations

import struct

# struct seccomp_data: nr, arch, instruction_pointer, args[6]; the low half comes first on little-endian.
_NUMBER_OFFSET = 0
_ARCHITECTURE_OFFSET = 4
_ARGUMENTS_OFFSET = 16

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER = 0x25
_JUMP_GREATER_OR_EQUAL = 0x35
_RETURN = 0x06

_X32_BIT = 0x40000000

# Both push input into the terminal that the jar was started from (CVE-2017-5226).
TIOCSTI = 0x5412
TIOCLINUX = 0x541C
FORBIDDEN_REQUESTS = (TIOCSTI, TIOCLINUX)
_REQUEST_ARGUMENT = 1


def prefix(*, architecture: int, ioctl: int, last_judged: int, unknown: int, refused: int) -> bytes:
    """Instructions that answer what they know and run off their end for all else.

    Args:
        architecture: the AUDIT_ARCH token; any other falls through, to libseccomp's own check.
        ioctl: the number of ioctl.
        last_judged: numbers above it get `unknown`; x32 numbers fall through to libseccomp's check.
        unknown: the action for numbers above `last_judged`.
        refused: the action for a forbidden ioctl request.

    """
    requests = [_instruction(_JUMP_EQUAL, request, true=_to_refused(i)) for i, request in enumerate(FORBIDDEN_REQUESTS)]
    tail = len(requests) + 3  # the requests, the jump over the two returns, the two returns
    program = [
        _instruction(_LOAD_WORD, _ARCHITECTURE_OFFSET),
        _instruction(_JUMP_EQUAL, architecture, false=tail + 5),
        _instruction(_LOAD_WORD, _NUMBER_OFFSET),
        _instruction(_JUMP_GREATER_OR_EQUAL, _X32_BIT, true=tail + 3),
        _instruction(_JUMP_GREATER, last_judged, true=tail + 1),
        _instruction(_JUMP_EQUAL, ioctl, false=tail + 1),
        _instruction(_LOAD_WORD, _ARGUMENTS_OFFSET + 8 * _REQUEST_ARGUMENT),
        *requests,
        # Always false-or-true to the same place: classic BPF's way of jumping over the returns.
        _instruction(_JUMP_EQUAL, 0, true=2, false=2),
        _instruction(_RETURN, refused),
        _instruction(_RETURN, unknown),
    ]
    return b"".join(program)


def _to_refused(index: int) -> int:
    return len(FORBIDDEN_REQUESTS) - index


def _instruction(code: int, operand: int, *, true: int = 0, false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, true, false, operand)
