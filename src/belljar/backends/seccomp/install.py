"""Putting a program into the calling process; the one file here that changes what a process may do.

`install` runs in a child that was just forked, before it becomes bubblewrap: everything that allocates or opens files
(libc, prototypes, numbers) is done when this module is imported, in the parent.
"""

from __future__ import annotations

import errno
import os

from belljar._startup import foreign_functions as ctypes

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_NEW_LISTENER = 1 << 3
# Linux 5.19: once the supervisor has the notification only a fatal signal interrupts the call. Without it a runtime
# that signals its own threads (Go, every 10 ms) can restart a call for ever.
_WAIT_KILLABLE = 1 << 5
INSTRUCTION_SIZE = 8

_SECCOMP_NUMBERS = {"x86_64": 317, "aarch64": 277}


class _FilterProgram(ctypes.Structure):
    _fields_ = (("len", ctypes.c_uint16), ("filter", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_NUMBER = _SECCOMP_NUMBERS.get(os.uname().machine, -1)


def seccomp_call(operation: int, flags: int, argument: object) -> int:
    """Make the bare seccomp(2) call; the result, or minus the errno."""
    if _NUMBER < 0:
        return -errno.ENOSYS
    result = _syscall(
        ctypes.c_long(_NUMBER),
        ctypes.c_ulong(operation),
        ctypes.c_ulong(flags),
        ctypes.byref(argument),  # type: ignore[arg-type]
    )
    return int(result) if result >= 0 else -ctypes.get_errno()


def install(program: bytes, *, listener: bool) -> int:
    """Set no_new_privs, add `program` to the calling thread for good; the listener's descriptor, or -1 without one.

    With a listener, every notified call of this process blocks from here on until someone answers. So the
    caller does nothing but pass the descriptor on (sendmsg, write and close are never notified) and exec;
    an import or an open file would wait for a supervisor that does not yet have the descriptor. The
    descriptor is close-on-exec.

    Raises:
        OSError: the kernel refused. EBUSY: a listener is there already, belljar inside a supervised jar.

    """
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"no_new_privs: {os.strerror(number)}")
    structure = _FilterProgram(len(program) // INSTRUCTION_SIZE, program)
    result = seccomp_call(_SET_MODE_FILTER, _NEW_LISTENER | _WAIT_KILLABLE if listener else 0, structure)
    if listener and result == -errno.EINVAL:
        result = seccomp_call(_SET_MODE_FILTER, _NEW_LISTENER, structure)
    if result < 0:
        raise OSError(-result, f"seccomp: {os.strerror(-result)}")
    return result if listener else -1
