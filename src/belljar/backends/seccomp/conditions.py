"""The system calls that are allowed for some arguments only, and for which.

All rules here *allow*: an argument that matches none of them is refused by the default, so a form nobody
thought of is closed. Values are compared under a mask of the bits that the kernel itself looks at; a
register's upper half, which the kernel drops for an int, then neither lets a call through nor breaks one.
"""

from __future__ import annotations

import socket
import stat
from collections.abc import Iterator
from typing import NamedTuple

from belljar.backends.seccomp.libseccomp import Condition
from belljar.backends.seccomp.prefix import NEW_NAMESPACES

_INT = 0xFFFFFFFF
_LONG = 0xFFFFFFFFFFFFFFFF

# 0x8 is PER_LINUX32, 0x20000 UNAME26, all ones only asks. ADDR_NO_RANDOMIZE and READ_IMPLIES_EXEC weaken the
# process against its own input, and nothing in a jar needs them.
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, _INT)

_SET_ID_BITS = stat.S_ISUID | stat.S_ISGID
_O_CREAT = 0o100
_O_TMPFILE_BIT = 0o20000000  # O_TMPFILE without its O_DIRECTORY, whose value differs between architectures

# Where each call has its mode. mkdir's kernel side drops the bits, but only on today's kernels.
_MODE_ARGUMENT = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mkdir": 1,
    "mkdirat": 2,
}
_NODE_MODE_ARGUMENT = {"mknod": 1, "mknodat": 2}
# No devices: not even 0:0, which needs no privilege and is a whiteout in an overlay's upper layer.
_NODE_TYPES = (0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK)
_OPEN_ARGUMENTS = {"open": (1, 2), "openat": (2, 3)}

_SECCOMP_NEW_LISTENER = 1 << 3

_SOCK_TYPE_MASK = 0xF
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
_TCP, _UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
_STREAM, _DGRAM, _RAW, _SEQPACKET = 1, 2, 3, 5


# Where each call has its flags, and the one for huge pages: the kernel takes those out of a pool of its own, which no
# control group that belljar makes counts as memory.
_HUGE_PAGE_FLAGS = {"mmap": (3, 0x40000), "memfd_create": (1, 0x4), "shmget": (2, 0o4000)}

# A whiteout is a device of overlayfs: on a live mount, or in an upper layer, it would hide a file of the host's.
_RENAME_WHITEOUT = 0x4

_PRIO_PROCESS, _IOPRIO_WHO_PROCESS = 0, 1
_SCHED_OTHER = 0


TAKEN_BACK = {"clone": (0, NEW_NAMESPACES), "seccomp": (1, _SECCOMP_NEW_LISTENER)}
"""What a zygote may do and its jars may not, of calls that both may make: the argument, and its bits. The rules below
say the same of every other jar."""


class CallRule(NamedTuple):
    """One way in which a call is allowed; all of its conditions hold."""

    name: str
    conditions: tuple[Condition, ...]


def allowed() -> tuple[CallRule, ...]:
    """Every conditional rule, in no order that matters: rules of one call are alternatives."""
    return (
        *_clone(),
        *_limits(),
        *_priorities(),
        *_pages(),
        *_renames(),
        *_personality(),
        *_seccomp(),
        *_sockets(),
        *_modes(),
        *_nodes(),
        *_opens(),
    )


def _clone() -> Iterator[CallRule]:
    yield CallRule("clone", (Condition(0, NEW_NAMESPACES, 0),))


def _limits() -> Iterator[CallRule]:
    """A process may set its own limits and read anyone's.

    The kernel lets it set those of every process of the same user: in a container, of the gate, which then could not
    open a file, or would be killed for the time it has used. `prefix` has answered for RLIMIT_CORE before.
    """
    yield CallRule("prlimit64", (Condition(0, _INT, 0),))
    yield CallRule("prlimit64", (Condition(2, _LONG, 0),))


def _priorities() -> Iterator[CallRule]:
    """Allow a process to change its own priority, named by the number 0.

    The kernel would let it change those of every process of the same user. A pid 1 with idle priority gets no processor
    while others spin: it can't keep the clock of the run, and can't die when it is killed. A filter can't tell the
    caller's own number from another's, so every number but 0 is refused. SCHED_OTHER is allowed for any number:
    belljar's own processes have that policy, and the C library sets it, by number, for a thread made with attributes.
    """
    yield CallRule("sched_setscheduler", (Condition(0, _INT, 0),))
    yield CallRule("sched_setscheduler", (Condition(1, _INT, _SCHED_OTHER),))
    yield CallRule("sched_setparam", (Condition(0, _INT, 0),))
    yield CallRule("sched_setattr", (Condition(0, _INT, 0),))
    yield CallRule("setpriority", (Condition(0, _INT, _PRIO_PROCESS), Condition(1, _INT, 0)))
    yield CallRule("ioprio_set", (Condition(0, _INT, _IOPRIO_WHO_PROCESS), Condition(1, _INT, 0)))


def _pages() -> Iterator[CallRule]:
    for name, (argument, flag) in _HUGE_PAGE_FLAGS.items():
        yield CallRule(name, (Condition(argument, flag, 0),))


def _renames() -> Iterator[CallRule]:
    yield CallRule("renameat2", (Condition(4, _RENAME_WHITEOUT, 0),))


def _personality() -> Iterator[CallRule]:
    for persona in _PERSONALITIES:
        yield CallRule("personality", (Condition(0, _INT, persona),))


def _seccomp() -> Iterator[CallRule]:
    """Let programs install filters, which only narrow, but no listener of their own.

    There is one listener for a process and all its filters: whoever holds it first keeps the other out. It also
    answers CONTINUE, which outranks the TRACE that closes the reported calls when no supervisor is there.
    """
    yield CallRule("seccomp", (Condition(1, _SECCOMP_NEW_LISTENER, 0),))


def _sockets() -> Iterator[CallRule]:
    """Unix, TCP, UDP and the netlink that lists interfaces.

    The protocol is part of the rule because naming another (SCTP, SMC, DCCP, MPTCP) makes the kernel load
    its module on the guest's word. Netlink takes SOCK_RAW and SOCK_DGRAM as the same; glibc asks for raw.
    AF_VSOCK is what must not pass: it reaches the hypervisor from any network namespace.
    """
    for type_ in (_STREAM, _DGRAM, _SEQPACKET):
        yield _socket("socket", _AF_UNIX, type_)
        yield _socket("socketpair", _AF_UNIX, type_)
    for family in (_AF_INET, _AF_INET6):
        for type_, protocol in ((_STREAM, _TCP), (_DGRAM, _UDP)):
            yield _socket("socket", family, type_, 0)
            yield _socket("socket", family, type_, protocol)
    for type_ in (_RAW, _DGRAM):
        yield _socket("socket", _AF_NETLINK, type_, 0)


def _socket(call: str, family: int, type_: int, protocol: int | None = None) -> CallRule:
    conditions = (Condition(0, _INT, family), Condition(1, _SOCK_TYPE_MASK, type_))
    return CallRule(call, conditions if protocol is None else (*conditions, Condition(2, _INT, protocol)))


def _modes() -> Iterator[CallRule]:
    """No set-user-id or set-group-id bit: on a live mount the file would outlast the jar."""
    for name, argument in _MODE_ARGUMENT.items():
        yield CallRule(name, (Condition(argument, _SET_ID_BITS, 0),))


def _nodes() -> Iterator[CallRule]:
    for name, argument in _NODE_MODE_ARGUMENT.items():
        for type_ in _NODE_TYPES:
            yield CallRule(name, (Condition(argument, 0o170000 | _SET_ID_BITS, type_),))


def _opens() -> Iterator[CallRule]:
    """Without O_CREAT or O_TMPFILE the mode is whatever was in the register, and must not matter."""
    for name, (flags, mode) in _OPEN_ARGUMENTS.items():
        yield CallRule(name, (Condition(flags, _O_CREAT | _O_TMPFILE_BIT, 0),))
        yield CallRule(name, (Condition(mode, _SET_ID_BITS, 0),))
