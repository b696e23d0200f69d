"""What the code is refused, seen through seccomp's user notification by the gate, which is its ancestor.

The calls that no jar may make are answered EPERM: the answer *is* the denial, and if the gate dies the kernel answers
ENOSYS. Connections and file calls are only looked at and always continue: what refuses those is the container, so it
does not matter that the code may change its memory while we read it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import select
import socket
import struct
from typing import Any

from belljar.guest.refused_calls import described

MAX_OBSERVATIONS = 500
_MAX_REPORT = 1 << 19
"""Bytes of all observations as JSON, in which a character of a hostile name may be twelve: they go in one frame."""
_MAX_PATH = 4096
_MAX_TARGET = 300
_RECEIVE, _SEND, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
_SYNC_WAKE_UP = 1
_CONTINUE = 1
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_RESPONSE = struct.Struct("=QqiI")
_SIZES = 3
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_AT_FDCWD = -100

_NUMBERS = {"x86_64": 317, "aarch64": 277}
_PR_SET_NO_NEW_PRIVS = 38
_NEW_LISTENER, _WAIT_KILLABLE = 1 << 3, 1 << 5

_AT_CALLS = {
    "openat": (0, 1), "newfstatat": (0, 1), "statx": (0, 1), "faccessat": (0, 1), "faccessat2": (0, 1),
    "readlinkat": (0, 1), "execveat": (0, 1), "mkdirat": (0, 1), "unlinkat": (0, 1), "renameat": (0, 1),
    "renameat2": (0, 1), "linkat": (0, 1), "symlinkat": (1, 2), "fchmodat": (0, 1),
}  # fmt: skip
_WRITE_CALLS = frozenset({
    "creat", "mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2",
    "link", "linkat", "symlink", "symlinkat", "chmod", "fchmodat", "truncate",
})  # fmt: skip


class _ObserverProgram(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def _seccomp(operation: int, flags: int, argument: object) -> int:
    number = _NUMBERS.get(os.uname().machine, -1)
    if number < 0:
        return -errno.ENOSYS
    result = _libc.syscall(
        ctypes.c_long(number),
        ctypes.c_ulong(operation),
        ctypes.c_ulong(flags),
        ctypes.byref(argument),  # type: ignore[arg-type]
    )
    return int(result) if result >= 0 else -ctypes.get_errno()


def install(program: bytes, *, listener: bool) -> int:
    """Add a filter to this process for good; the listener's descriptor, or -1 without one. Raises OSError."""
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "no_new_privs")
    structure = _ObserverProgram(len(program) // 8, program)
    result = _seccomp(1, _NEW_LISTENER | _WAIT_KILLABLE if listener else 0, structure)
    if listener and result == -errno.EINVAL:  # before Linux 5.19
        result = _seccomp(1, _NEW_LISTENER, structure)
    if result < 0:
        raise OSError(-result, f"seccomp: {os.strerror(-result)}")
    return result if listener else -1


class GateObserver:
    """Answers the code's notifications and remembers what was, or will be, refused."""

    def __init__(self, listener: int, names: dict[int, str], observed: frozenset[str], answering: str = "") -> None:
        """`answering` is the address of a name server that the code may ask."""
        self._fd = listener
        self._names = names
        self._observed = observed
        self._answering = answering
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._seen: dict[tuple[str, str, str], int] = {}
        sizes = (ctypes.c_uint16 * 3)()
        if _seccomp(_SIZES, 0, sizes) < 0:
            raise OSError(errno.ENOSYS, "no seccomp notification")
        self._receive_size = max(sizes[0], _NOTIFICATION.size)
        self._response_size = max(sizes[1], _RESPONSE.size)
        try:
            fcntl.ioctl(listener, _SET_FLAGS, _SYNC_WAKE_UP)
        except OSError:
            pass  # before Linux 6.6: slower, and the same

    def fileno(self) -> int:
        """For the gate's loop."""
        return self._fd

    def on_readable(self) -> bool:
        """Answer one notification. False when every process under the filter is gone."""
        if not any(event & select.POLLIN for _fd, event in self._poll.poll(0)):
            return False
        buffer = bytearray(self._receive_size)
        try:
            fcntl.ioctl(self._fd, _RECEIVE, buffer)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return True
            raise
        identifier, pid, _flags, number, _architecture, _address, *arguments = _NOTIFICATION.unpack_from(buffer)
        try:
            self._answer(identifier, pid, self._names.get(number, f"syscall_{number}"), arguments)
        except (OSError, ValueError, OverflowError):
            pass  # the caller was killed meanwhile, or its arguments are nonsense
        return True

    def _answer(self, identifier: int, pid: int, name: str, arguments: list[int]) -> None:
        if name not in self._observed:
            self._send(_RESPONSE.pack(identifier, 0, -errno.EPERM, 0))
            self._note("syscall", described(name, arguments), "EPERM")
            return
        try:
            if name == "connect":
                self._note_connection(pid, arguments)
            else:
                self._note_file(name, pid, arguments)
        finally:
            self._send(_RESPONSE.pack(identifier, 0, 0, _CONTINUE))

    def _send(self, response: bytes) -> None:
        buffer = bytearray(response.ljust(self._response_size, b"\0"))
        try:
            fcntl.ioctl(self._fd, _SEND, buffer)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINPROGRESS):
                raise

    def _note(self, kind: str, target: str, result: str) -> None:
        key = (kind, target[:_MAX_TARGET], result)
        if key in self._seen or len(self._seen) < MAX_OBSERVATIONS:
            self._seen[key] = self._seen.get(key, 0) + 1

    def _note_connection(self, pid: int, arguments: list[int]) -> None:
        raw = _memory(pid, arguments[1], min(arguments[2], 128))
        if len(raw) < 8:
            return
        family = struct.unpack_from("H", raw)[0]
        if family == socket.AF_INET:
            host = socket.inet_ntop(socket.AF_INET, raw[4:8])
        elif family == socket.AF_INET6 and len(raw) >= 24:
            host = f"[{socket.inet_ntop(socket.AF_INET6, raw[8:24])}]"
        else:
            return
        port = struct.unpack_from("!H", raw, 2)[0]
        if port == 53 and host != self._answering:
            self._note("name", "", "EAI_AGAIN")
        elif not host.startswith("127.") and host != "[::1]":
            self._note("network", f"{host}:{port}", "ENETUNREACH")

    def _note_file(self, name: str, pid: int, arguments: list[int]) -> None:
        directory_argument, path_argument = _AT_CALLS.get(name, (None, 1 if name == "symlink" else 0))
        raw = _memory(pid, arguments[path_argument], _MAX_PATH).partition(b"\0")[0]
        if not raw:
            return
        path = os.fsdecode(raw)
        if not path.startswith("/"):
            at = _AT_FDCWD if directory_argument is None else _signed(arguments[directory_argument])
            where = "cwd" if at == _AT_FDCWD else f"fd/{at}"
            path = os.path.join(os.readlink(f"/proc/{pid}/{where}"), path)
        path = os.path.normpath(path)
        writing = name in _WRITE_CALLS
        if name in ("open", "openat"):
            writing = bool(arguments[path_argument + 1] & _WRITING)
        if refused := _predict(path, writing=writing):
            verb = "write" if writing else "execute" if name.startswith("exec") else "read"
            self._note("file", f"{verb} {path}", refused)

    def report(self) -> list[dict[str, Any]]:
        """Everything seen, for the host to explain."""
        report, size = [], 0
        for (kind, target, result), count in self._seen.items():
            report.append({"kind": kind, "target": target, "result": result, "count": count})
            size += len(json.dumps(report[-1]))
            if size > _MAX_REPORT:
                break
        return report


def _predict(path: str, *, writing: bool) -> str:
    """The error that the call will meet, looked up in the container that the gate shares with it; empty if none."""
    if path.startswith(("/proc/", "/dev/", "/sys/")):
        return ""
    target = os.path.dirname(path) if writing else path
    try:
        found = os.open(target, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, "")
    try:
        if writing and os.fstatvfs(found).f_flag & os.ST_RDONLY:
            return "EROFS"
        if not writing and not os.access(f"/proc/self/fd/{found}", os.R_OK) and not os.path.islink(path):
            return "EACCES"
    finally:
        os.close(found)
    return ""


def _signed(value: int) -> int:
    return int(struct.unpack("i", struct.pack("I", value & 0xFFFFFFFF))[0])


def _memory(pid: int, address: int, length: int) -> bytes:
    """Bytes of the code's memory: hostile, bounded, possibly gone."""
    if address >> 63:
        return b""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        try:
            return file.read(length) or b""
        except OSError:  # the string ends near an unmapped page
            file.seek(address)
            return file.read(4096 - address % 4096) or b""
