"""The supervisor's end of a seccomp listener: receive, answer, check; no policy.

It runs outside the jar. What it receives was chosen by the guest: numbers are in the ranges the kernel gives them,
and pointers mean nothing before `still_valid` has said, *after* the memory was read, that the caller still
waits; before that its pid may be another process.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import os
import struct

from belljar._startup import foreign_functions as ctypes
from belljar._startup.records import dataclass
from belljar.backends.seccomp.install import seccomp_call
from belljar.errors import PrerequisiteError

_GET_NOTIF_SIZES = 3
_RECEIVE = 0xC0502100
_SEND = 0xC0182101
_ID_VALID = 0x40082102
_ID_VALID_BEFORE_5_17 = 0x80082102  # the same, with the direction bits the wrong way round
_SET_FLAGS = 0x40082104
_SYNC_WAKE_UP = 1  # Linux 6.6: the two sides hand the processor over; 8 µs instead of 45
_CONTINUE = 1

_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_IDENTIFIER = struct.Struct("=Q")
_MOST_BYTES = 1024


class _Sizes(ctypes.Structure):
    _fields_ = (("notification", ctypes.c_uint16), ("response", ctypes.c_uint16), ("data", ctypes.c_uint16))


@dataclass(frozen=True, slots=True)
class Notification:
    """One call that waits for an answer; the kernel's own field names.

    `pid` is as this process's pid namespace sees the calling thread, 0 if it can't.
    """

    id: int
    pid: int
    nr: int
    args: tuple[int, int, int, int, int, int]


class NotifyListener:
    """A listener's descriptor, which it then owns.

    Raises:
        PrerequisiteError: the kernel's structures are not of a size we know.

    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._receive_size, self._response_size = _sizes()
        try:
            fcntl.ioctl(fd, _SET_FLAGS, _SYNC_WAKE_UP)
        except OSError:
            pass  # an older kernel: slower, and the same

    def __repr__(self) -> str:
        return f"Listener(fd={self._fd})"

    def fileno(self) -> int:
        """Return the descriptor: readable when a call waits, hung up when every process under the filter is gone."""
        return self._fd

    def close(self) -> None:
        """Let go; calls that wait, and all later ones, get ENOSYS from the kernel."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def receive(self) -> Notification | None:
        """Take the next waiting call, or None if it went away in between; blocks unless poll said readable.

        Raises:
            OSError: the descriptor is not a listener's.

        """
        # The kernel insists on zeroes, so the buffer is new each time.
        buffer = bytearray(self._receive_size)
        try:
            fcntl.ioctl(self._fd, _RECEIVE, buffer)
        except OSError as error:
            if error.errno in {errno.ENOENT, errno.EINTR}:
                return None
            raise
        identifier, pid, _flags, number, _architecture, _address, *arguments = _NOTIFICATION.unpack_from(buffer)
        a, b, c, d, e, f = arguments
        return Notification(identifier, pid, number, (a, b, c, d, e, f))

    def answer_errno(self, notification: Notification, number: int) -> bool:
        """Fail the call with this errno; False if the caller no longer waits."""
        return self._send(_RESPONSE.pack(notification.id, 0, -number, 0))

    def answer_value(self, notification: Notification, value: int) -> bool:
        """Let the call succeed with this value, without the kernel doing it; False if the caller no longer waits."""
        return self._send(_RESPONSE.pack(notification.id, value, 0, 0))

    def answer_continue(self, notification: Notification) -> bool:
        """Let the kernel do the call as if nobody had asked; False if the caller no longer waits.

        Never a way to allow what must be checked: the arguments can change before the kernel reads them.
        """
        return self._send(_RESPONSE.pack(notification.id, 0, 0, _CONTINUE))

    def still_valid(self, notification: Notification) -> bool:
        """Whether the caller still waits, and so `pid` was its pid all along."""
        for request in (_ID_VALID, _ID_VALID_BEFORE_5_17):
            try:
                fcntl.ioctl(self._fd, request, _IDENTIFIER.pack(notification.id))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return False
                if error.errno != errno.EINVAL:
                    raise
            else:
                return True
        return False

    def _send(self, response: bytes) -> bool:
        buffer = bytearray(response.ljust(self._response_size, b"\0"))
        try:
            fcntl.ioctl(self._fd, _SEND, buffer)
        except OSError as error:
            # ENOENT: killed while it waited. EINPROGRESS: answered already.
            if error.errno in {errno.ENOENT, errno.EINPROGRESS}:
                return False
            raise
        return True


@functools.cache
def _sizes() -> tuple[int, int]:
    """How many bytes this kernel reads and writes; at least ours, and bounded."""
    sizes = _Sizes()
    result = seccomp_call(_GET_NOTIF_SIZES, 0, sizes)
    if result < 0:
        raise PrerequisiteError(
            f"the kernel has no seccomp notification: {os.strerror(-result)}", hint="Linux 5.5 or later has it"
        )
    if max(sizes.notification, sizes.response) > _MOST_BYTES:
        raise PrerequisiteError(
            f"the kernel's seccomp notification is {sizes.notification} bytes, more than belljar knows",
            hint="use a newer belljar",
        )
    return max(sizes.notification, _NOTIFICATION.size), max(sizes.response, _RESPONSE.size)
