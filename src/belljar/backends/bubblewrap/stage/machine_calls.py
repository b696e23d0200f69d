"""Answers for the two calls that tell of the machine beside /proc: sysinfo(2) and sched_getaffinity(2).

Runs in the stage, which seccomp asks. The answer is written into the caller's memory, which the code can change at any
time: nobody else trusts what is written here. `NotifyListener.still_valid`, asked after that memory was opened, says
that it is the caller's.
"""

from __future__ import annotations

import errno
import os
import struct
import time

from belljar.backends import kernel, machine
from belljar.backends.bubblewrap.stage.own_proc import host_memory
from belljar.backends.seccomp.notify import Notification, NotifyListener

_SYSINFO = struct.Struct("=q3Q6QHH4x2QI4x")
_WORD = 8
_MOST_BYTES = 1 << 13
"""The bytes of the largest set of processors that is answered."""
_STATUS_BYTES = 1 << 14


class MachineCalls:
    """The memory, processors and uptime of a jar."""

    def __init__(self, mem_bytes: int, cpu_quota: float) -> None:
        self._memory = machine.memory(mem_bytes, host_memory())
        self._cpu_quota = cpu_quota
        self._since = int(time.clock_gettime(time.CLOCK_BOOTTIME))

    def answer(self, name: str, notification: Notification, listener: NotifyListener) -> None:
        """Answer one call of `machine.ANSWERED`, whatever its arguments are."""
        try:
            if name == "sysinfo":
                address, data, result = notification.args[0], self._sysinfo(), 0
            else:
                address, data = notification.args[2], self._affinity(notification)
                result = len(data)
            _write(notification, listener, address, data)
        except OSError as error:
            listener.answer_errno(notification, error.errno or errno.EFAULT)
        except (ValueError, OverflowError):  # an address that no process can have
            listener.answer_errno(notification, errno.EFAULT)
        else:
            listener.answer_value(notification, result)

    def _sysinfo(self) -> bytes:
        uptime = int(time.clock_gettime(time.CLOCK_BOOTTIME)) - self._since
        return _SYSINFO.pack(uptime, 0, 0, 0, self._memory, self._memory, 0, 0, 0, 0, 1, 0, 0, 0, 1)

    def _affinity(self, notification: Notification) -> bytes:
        """The first of the processors on which the process may really run, as many as the policy grants.

        So what code sets with sched_setaffinity(2) is what it gets.
        """
        pid, length = notification.args[0] & 0xFFFFFFFF, notification.args[1] & 0xFFFFFFFF
        if pid >> 31:
            raise OSError(errno.EINVAL, "no process")
        real = os.sched_getaffinity(notification.pid) if pid == 0 else _of_other(notification.pid, pid)
        seen = machine.processors(self._cpu_quota, real)
        words = max(seen, default=0) // (8 * _WORD) + 1
        if length % _WORD or length < words * _WORD:
            raise OSError(errno.EINVAL, "no room for the set")
        return sum(1 << number for number in seen).to_bytes(min(length, _MOST_BYTES, words * _WORD), "little")


def _of_other(caller: int, pid: int) -> set[int]:
    """The processors of process or thread `pid` of the caller's jar, as the jar's own /proc tells them."""
    root = os.open(f"/proc/{caller}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = kernel.openat2(root, f"proc/{pid}/status", os.O_RDONLY, resolve=kernel.RESOLVE_IN_ROOT)
    except OSError as error:
        raise OSError(errno.ESRCH, "no such process") from error
    finally:
        os.close(root)
    try:
        text = os.read(status, _STATUS_BYTES)
    finally:
        os.close(status)
    _before, _name, rest = text.partition(b"\nCpus_allowed:\t")
    mask = int(rest.partition(b"\n")[0].replace(b",", b"") or b"0", 16)
    return {number for number in range(mask.bit_length()) if mask >> number & 1}


def _write(notification: Notification, listener: NotifyListener, address: int, data: bytes) -> None:
    """Raises OSError (EFAULT) where the caller has no memory."""
    if address >> 63 or not address:
        raise OSError(errno.EFAULT, "no address of a process")
    memory = os.open(f"/proc/{notification.pid}/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        if not listener.still_valid(notification):
            raise OSError(errno.ESRCH, "the caller is gone")
        try:
            written = os.pwrite(memory, data, address)
        except OSError:
            written = 0
        if written != len(data):
            raise OSError(errno.EFAULT, "no memory of the caller")
    finally:
        os.close(memory)
