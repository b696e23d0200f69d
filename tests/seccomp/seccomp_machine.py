"""What the kernel would answer: an interpreter for the classic BPF that seccomp programs are made of."""

from __future__ import annotations

import struct

X86_64 = 0xC000003E
I386 = 0x40000003

KILL_PROCESS = 0x80000000
ALLOW = 0x7FFF0000
NOTIFY = 0x7FC00000
TRACE = 0x7FF00000
EPERM = 0x00050001
ENOSYS = 0x00050026
ENOPROTOOPT = 0x0005005C
SUCCEEDS = 0x00050000


def answer(program: bytes, number: int, arguments: tuple[int, ...] = (), *, architecture: int) -> int:
    """Run `program` on one call; the action it returns."""
    padded = (*arguments, *([0] * (6 - len(arguments))))
    data = struct.pack("=IIQ6Q", number & 0xFFFFFFFF, architecture, 0, *padded)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator = place = 0
    while True:
        code, true, false, operand = instructions[place]
        place += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("=I", data, operand)
            case 0x54:
                accumulator &= operand
            case 0x05:
                place += operand
            case 0x15:
                place += true if accumulator == operand else false
            case 0x25:
                place += true if accumulator > operand else false
            case 0x35:
                place += true if accumulator >= operand else false
            case 0x45:
                place += true if accumulator & operand else false
            case 0x06:
                return operand
            case _:
                raise AssertionError(f"instruction {code:#x}")
