"""Hand-made instructions in front of libseccomp's program: the things that it can't say.

1. "Every number above N": it has no ranges, and one default action.
2. "Allowed except these values": an unconditional rule swallows the conditional one, and its NOT EQUAL
   compares 64 bits where the kernel uses 32, which was CVE-2019-10063 (TIOCSTI with a high bit set).
3. "Succeeds without effect": rules of one call with different actions overlap, and libseccomp picks one of them.

A classic BPF program jumps only forward and by distance, so a program whose every unfinished path runs off its own
end can be put in front of another one as it is.

The kernel remembers the answer for calls that are allowed whatever their arguments, and skips the program for them. It
can't for a call that is named here or has conditions, so only calls that are rare or slow are.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import NamedTuple

# struct seccomp_data: nr, arch, instruction_pointer, args[6]; the low half comes first on little-endian.
_NUMBER_OFFSET = 0
_ARCHITECTURE_OFFSET = 4
_ARGUMENTS_OFFSET = 16

_LOAD_WORD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_GREATER = 0x25
_JUMP_GREATER_OR_EQUAL = 0x35
_JUMP_ANY_BIT = 0x45
_AND = 0x54
_RETURN = 0x06
_ERRNO = 0x00050000

_X32_BIT = 0x40000000

# Terminals. The first two push input into the terminal that the jar was started from (CVE-2017-5226). TIOCSETD has the
# kernel load the module of whatever line discipline the code names.
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423
# Requests on any socket for which the kernel loads a module before it looks at who asks: bridge, 8021q, and on kernels
# before 5.17 dlci.
BRIDGE_REQUESTS = (0x8940, 0x8941, 0x89A0, 0x89A1, 0x89A2, 0x89A3)
VLAN_REQUESTS = (0x8980, 0x8981, 0x8982, 0x8983)
REFUSED_REQUESTS = (TIOCSTI, TIOCLINUX, TIOCSETD, *BRIDGE_REQUESTS, *VLAN_REQUESTS)

# A lease or a delegation holds up whoever opens the file next, on the host as well: for 45 s, and then again. F_NOTIFY
# watches a directory, and nothing bounds how many of them one user has.
F_SETLEASE, F_NOTIFY, F_SETDELEG = 1024, 1026, 1040
REFUSED_COMMANDS = (F_SETLEASE, F_NOTIFY, F_SETDELEG)

# TCP_ULP puts kernel TLS or ESP into a connection, UDP_ENCAP puts ESP into a socket: both decrypt in place, which has
# overwritten the page cache of files that were spliced in (CVE-2026-43284). The keys of TCP-AO and TCP-MD5 name an
# algorithm, whose module the kernel loads.
# The kernel takes SOL_UDPLITE for SOL_UDP on a UDP socket.
SOL_TCP, SOL_UDP, SOL_UDPLITE = 6, 17, 136
TCP_MD5SIG, TCP_ULP, TCP_MD5SIG_EXT, TCP_AO_ADD_KEY, TCP_AO_DEL_KEY, TCP_AO_INFO, TCP_AO_REPAIR = (
    14,
    31,
    32,
    38,
    39,
    40,
    42,
)
UDP_ENCAP = 100
REFUSED_OPTIONS = {
    SOL_TCP: (TCP_MD5SIG, TCP_ULP, TCP_MD5SIG_EXT, TCP_AO_ADD_KEY, TCP_AO_DEL_KEY, TCP_AO_INFO, TCP_AO_REPAIR),
    SOL_UDP: (UDP_ENCAP,),
    SOL_UDPLITE: (UDP_ENCAP,),
}

# At 1 the kernel starts no program for a core (`core_pattern` with a pipe); at 0 it does, as root, on the jar's memory.
# So it stays at 1. Programs with secrets (gpg, ssh-agent) set it to 0 and exit if they are refused. The call succeeds
# without effect: no core is written at 1 either, which is what they want.
RLIMIT_CORE = 4

# Calls that `told` tells the supervisor of. bubblewrap builds a jar under the same filter, and mounts and unmounts with
# these flags, which other programs hardly use: the supervisor is not asked about those.
MS_SILENT, MNT_DETACH = 0x8000, 0x2
# CLONE_NEWTIME is not among the namespaces: clone(2) reads that bit as part of the exit signal. This is the flags'
# place on x86_64 and aarch64; s390 and cris have the stack first, and `building` refuses to build there.
NEW_NAMESPACES = 0x7E020000  # CLONE_NEWNS NEWCGROUP NEWUTS NEWIPC NEWUSER NEWPID NEWNET
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
_SOCKET_TYPE, _SOCK_RAW = 0xF, 3

# Places to jump to; the empty name is the next instruction.
_NEXT = ""
_REFUSED = "refused"
_UNKNOWN = "unknown"
_NO_OPTION = "no such option"
_IGNORED = "succeeds without effect"
_END = "end"


class _Instruction(NamedTuple):
    code: int
    operand: int
    true: str = _NEXT
    false: str = _NEXT
    label: str = ""


def prefix(
    *, architecture: int, number: Callable[[str], int | None], last_judged: int, unknown: int, refused: int
) -> bytes:
    """Assemble instructions that answer what they know and run off their end for all else.

    Args:
        architecture: the AUDIT_ARCH token; any other falls through, to libseccomp's own check.
        number: finds the number of a call here.
        last_judged: numbers above it get `unknown`; x32 numbers fall through to libseccomp's check.
        unknown: the action for numbers above `last_judged`.
        refused: the action for what is refused here.

    """
    judged = _Instruction(_JUMP_GREATER, last_judged, true=_UNKNOWN)
    answers = [
        _Instruction(_RETURN, refused, label=_REFUSED),
        _Instruction(_RETURN, unknown, label=_UNKNOWN),
        _Instruction(_RETURN, _ERRNO | errno.ENOPROTOOPT, label=_NO_OPTION),
        _Instruction(_RETURN, _ERRNO, label=_IGNORED),
    ]
    return _assembled(architecture, number, [judged], _blocks(), answers)


def told(
    *, architecture: int, number: Callable[[str], int | None], action: int, without: frozenset[str] = frozenset()
) -> bytes:
    """Assemble instructions that answer with `action` to the forms of calls that the supervisor is told of.

    They are refused for everyone but bubblewrap, so they stand in front of each program: the supervisor's with
    NOTIFY, the jar's with TRACE. `without` names calls that the program allows.
    """
    blocks = {name: block for name, block in _told_blocks().items() if name not in without}
    return _assembled(architecture, number, [], blocks, [_Instruction(_RETURN, action, label=_REFUSED)])


def _assembled(
    architecture: int,
    number: Callable[[str], int | None],
    first: list[_Instruction],
    every_block: dict[str, list[_Instruction]],
    answers: list[_Instruction],
) -> bytes:
    """Encode the blocks that this machine has calls for. A call whose block is empty is refused."""
    blocks = {name: block for name, block in every_block.items() if number(name) is not None}
    program = [
        _Instruction(_LOAD_WORD, _ARCHITECTURE_OFFSET),
        _Instruction(_JUMP_EQUAL, architecture, false=_END),
        _Instruction(_LOAD_WORD, _NUMBER_OFFSET),
        _Instruction(_JUMP_GREATER_OR_EQUAL, _X32_BIT, true=_END),
        *first,
    ]
    for index, (name, block) in enumerate(blocks.items(), 1):
        called = number(name)
        assert called is not None
        last = _END if index == len(blocks) else _NEXT
        program.append(_Instruction(_JUMP_EQUAL, called, true=name if block else _REFUSED, false=last))
    for name, block in blocks.items():
        if block:
            program += [block[0]._replace(label=name), *block[1:]]
    program += answers
    places = {instruction.label: index for index, instruction in enumerate(program) if instruction.label}
    places[_END] = len(program)
    return b"".join(_encode(instruction, index, places) for index, instruction in enumerate(program))


def _told_blocks() -> dict[str, list[_Instruction]]:
    return {
        "unshare": [],
        "pivot_root": [],
        "sethostname": [],
        "clone": [_low(0), _Instruction(_JUMP_ANY_BIT, NEW_NAMESPACES, true=_REFUSED, false=_END)],
        "mount": [_low(3), _Instruction(_JUMP_ANY_BIT, MS_SILENT, true=_END, false=_REFUSED)],
        "umount2": [_low(1), _Instruction(_JUMP_ANY_BIT, MNT_DETACH, true=_END, false=_REFUSED)],
        "socket": [
            _low(0),
            _Instruction(_JUMP_EQUAL, AF_UNIX, true=_END),
            _Instruction(_JUMP_EQUAL, AF_NETLINK, true=_END),
            _Instruction(_JUMP_EQUAL, AF_INET, true="type"),
            _Instruction(_JUMP_EQUAL, AF_INET6, true="type", false=_REFUSED),
            _low(1)._replace(label="type"),
            _Instruction(_AND, _SOCKET_TYPE),
            _Instruction(_JUMP_EQUAL, _SOCK_RAW, true=_REFUSED, false=_END),
        ],
    }


def _blocks() -> dict[str, list[_Instruction]]:
    """What is looked at for each call. Every block ends in jumps, and none runs into the next."""
    return {
        "ioctl": _any_of(1, REFUSED_REQUESTS),
        "fcntl": _any_of(1, REFUSED_COMMANDS),
        "setsockopt": _options(),
        "setrlimit": [_low(0), _Instruction(_JUMP_EQUAL, RLIMIT_CORE, true=_IGNORED, false=_END)],
        "prlimit64": [
            _low(1),
            _Instruction(_JUMP_EQUAL, RLIMIT_CORE, false=_END),
            _low(2),  # the new limits; without them it only reads
            _Instruction(_JUMP_EQUAL, 0, false=_IGNORED),
            _high(2),
            _Instruction(_JUMP_EQUAL, 0, true=_END, false=_IGNORED),
        ],
        # The C library names the calling thread by its number, which a filter can't tell from another's. A thread that
        # was not bound to a processor works all the same, while many programs end if they are refused.
        "sched_setaffinity": [_low(0), _Instruction(_JUMP_EQUAL, 0, true=_END, false=_IGNORED)],
    }


def _options() -> list[_Instruction]:
    levels = list(REFUSED_OPTIONS)
    program = [_low(1)]
    for level in levels:
        last = level == levels[-1]
        program.append(_Instruction(_JUMP_EQUAL, level, true=f"level {level}", false=_END if last else _NEXT))
    for level, options in REFUSED_OPTIONS.items():
        first, *rest = _any_of(2, options, then=_NO_OPTION)
        program += [first._replace(label=f"level {level}"), *rest]
    return program


def _any_of(argument: int, values: tuple[int, ...], *, then: str = _REFUSED) -> list[_Instruction]:
    """Jump to `then` if the argument's lower half, all that the kernel uses of it, is one of the values."""
    jumps = [_Instruction(_JUMP_EQUAL, value, true=then) for value in values]
    return [_low(argument), *jumps[:-1], jumps[-1]._replace(false=_END)]


def _low(argument: int) -> _Instruction:
    return _Instruction(_LOAD_WORD, _ARGUMENTS_OFFSET + 8 * argument)


def _high(argument: int) -> _Instruction:
    return _Instruction(_LOAD_WORD, _ARGUMENTS_OFFSET + 8 * argument + 4)


def _encode(instruction: _Instruction, index: int, places: dict[str, int]) -> bytes:
    true, false = (places.get(label, index + 1) - index - 1 for label in (instruction.true, instruction.false))
    return struct.pack("=HBBI", instruction.code, true, false, instruction.operand)
