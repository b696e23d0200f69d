"""A few hand-made instructions in front of libseccomp's program: the two things it can't say.

1. "Every number above N": it has no ranges, and one default action.
2. "Allowed except these values": an unconditional rule swallows the conditional one, and its NOT EQUAL
   compares 64 bits where the kernel uses 32, which was CVE-2019-10063 (TIOCSTI with a high bit set).

A classic BPF program jumps only forward and by distance, so a program whose every unfinished path runs off its own
end can be put in front of another one as it is.
"""

from __future__ import annotations

import struct

from belljar.policy.records import NamedTuple

# struct seccomp_data: nr, arch, instruction_pointer, args[6]; the low half comes first on little-endian.
_NUMBER_OFFSET = 0
_ARCHITECTURE_OFFSET = 4
_REQUEST_OFFSET = 16 + 8  # the low half of ioctl's second argument, all that the kernel uses of it

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER = 0x25
_JUMP_GREATER_OR_EQUAL = 0x35
_RETURN = 0x06

_X32_BIT = 0x40000000

# Both push input into the terminal that the jar was started from (CVE-2017-5226).
TIOCSTI = 0x5412
TIOCLINUX = 0x541C

# Places to jump to; the empty name is the next instruction.
_NEXT = ""
_REFUSED = "refused"
_UNKNOWN = "unknown"
_END = "end"


class _Instruction(NamedTuple):
    code: int
    operand: int
    true: str = _NEXT
    false: str = _NEXT


def prefix(*, architecture: int, ioctl: int, last_judged: int, unknown: int, refused: int) -> bytes:
    """Assemble instructions that answer what they know and run off their end for all else.

    Args:
        architecture: the AUDIT_ARCH token; any other falls through, to libseccomp's own check.
        ioctl: the number of ioctl.
        last_judged: numbers above it get `unknown`; x32 numbers fall through to libseccomp's check.
        unknown: the action for numbers above `last_judged`.
        refused: the action for a forbidden ioctl request.

    """
    program = [
        _Instruction(_LOAD_WORD, _ARCHITECTURE_OFFSET),
        _Instruction(_JUMP_EQUAL, architecture, false=_END),
        _Instruction(_LOAD_WORD, _NUMBER_OFFSET),
        _Instruction(_JUMP_GREATER_OR_EQUAL, _X32_BIT, true=_END),
        _Instruction(_JUMP_GREATER, last_judged, true=_UNKNOWN),
        _Instruction(_JUMP_EQUAL, ioctl, false=_END),
        _Instruction(_LOAD_WORD, _REQUEST_OFFSET),
        _Instruction(_JUMP_EQUAL, TIOCSTI, true=_REFUSED),
        _Instruction(_JUMP_EQUAL, TIOCLINUX, true=_REFUSED, false=_END),
    ]
    places = {_REFUSED: len(program), _UNKNOWN: len(program) + 1, _END: len(program) + 2}
    program += [_Instruction(_RETURN, refused), _Instruction(_RETURN, unknown)]
    return b"".join(_encode(instruction, index, places) for index, instruction in enumerate(program))


def _encode(instruction: _Instruction, index: int, places: dict[str, int]) -> bytes:
    true, false = (places.get(label, index + 1) - index - 1 for label in (instruction.true, instruction.false))
    return struct.pack("=HBBI", instruction.code, true, false, instruction.operand)
