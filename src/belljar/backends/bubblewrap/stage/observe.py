"""What a jar was refused, seen through seccomp's user notification. Runs in the stage.

Five kinds of calls arrive here. Calls that no jar may make (`ptrace`, `bpf`, …) are always answered EPERM: the answer
*is* the denial, and if this process dies the kernel answers ENOSYS. Calls by which bubblewrap builds the jar (`mount`,
`unshare`, …) continue until it is finished, and are answered EPERM from then on. Calls that tell of the machine are
answered with what the policy grants (`machine_calls`). Connections and file calls are only looked at and always
continue: what refuses those is the network namespace and the mount namespace, so it does not matter that the guest may
change its memory while we read it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import struct
from collections.abc import Callable

from belljar._startup import sockets as socket
from belljar.backends import kernel
from belljar.backends.bubblewrap.stage.machine_calls import MachineCalls
from belljar.backends.seccomp.filters import ANSWERED, BUILDING, OBSERVED, syscall_name
from belljar.backends.seccomp.notify import Notification, NotifyListener
from belljar.guest.refused_calls import described

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

MAX_OBSERVATIONS = 500
_MAX_PATH = 4096
_MAX_TARGET = 300
_ATTEMPTS = 8
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC

# Which arguments hold the path and, where there is one, the directory descriptor.
_AT_CALLS = {
    "openat": (0, 1), "newfstatat": (0, 1), "statx": (0, 1), "faccessat": (0, 1), "faccessat2": (0, 1),
    "readlinkat": (0, 1), "execveat": (0, 1), "mkdirat": (0, 1), "unlinkat": (0, 1), "renameat": (0, 1),
    "renameat2": (0, 1), "linkat": (0, 1), "symlinkat": (1, 2), "fchmodat": (0, 1),
}  # fmt: skip
_WRITE_CALLS = frozenset({
    "creat", "mkdir", "mkdirat", "unlink", "unlinkat", "rmdir", "rename", "renameat", "renameat2",
    "link", "linkat", "symlink", "symlinkat", "chmod", "fchmodat", "truncate",
})  # fmt: skip


_THIS_JAR = ("[::1]", "[::]", "0.0.0.0", "[::ffff:0.0.0.0]")  # noqa: S104 compared, not bound
"""Addresses by which a connection stays in the jar. Resolvers connect to those of `bind`, to sort them."""


class JarObserver:
    """Answers a jar's notifications and remembers what would be, or was, refused."""

    def __init__(
        self, listener: NotifyListener, machine_calls: MachineCalls | None = None, *, is_built: bool = True
    ) -> None:
        """`is_built` is False for a listener that bubblewrap has yet to build a jar under: until `looks_into`."""
        self.listener = listener
        self._machine_calls = machine_calls
        self._is_built = is_built
        self._looks = False
        self._jar_root = -1
        self._poll = select.poll()
        self._poll.register(listener.fileno(), select.POLLIN)
        self._seen: dict[tuple[str, str, str], int] = {}
        self.on_first: Callable[[], None] = lambda: None
        """Called with the first thing that is noted, while the caller of it still waits for its answer."""

    def looks_into(self, jar_root: int) -> None:
        """The jar is finished: from now on calls are its own, and files are looked up in its root.

        Whoever has the descriptor keeps it open as long as calls with files may come.
        """
        self._is_built, self._looks, self._jar_root = True, True, jar_root

    def fileno(self) -> int:
        """For the event loop."""
        return self.listener.fileno()

    def on_readable(self) -> bool:
        """Answer one notification. False when the jar is gone: then receiving would wait for ever."""
        if not any(event & select.POLLIN for _fd, event in self._poll.poll(0)):
            return False
        notification = self.listener.receive()
        if notification is None:
            return True
        with contextlib.suppress(OSError, ValueError):  # the caller was killed meanwhile, or its arguments are nonsense
            self._answer(notification)
        return True

    def _answer(self, notification: Notification) -> None:
        name = syscall_name(notification.nr)
        if self._machine_calls is not None and name in ANSWERED:
            self._machine_calls.answer(name, notification, self.listener)
            return
        if name in BUILDING and not self._is_built:
            self.listener.answer_continue(notification)
            return
        if name not in OBSERVED:  # forbidden, or unknown to us: either way the answer is no
            self._note("syscall", described(name, notification.args), "EPERM")
            self.listener.answer_errno(notification, errno.EPERM)
            return
        try:
            if self._looks:  # before that, file calls are bubblewrap's own
                self._look(name, notification)
        finally:
            self.listener.answer_continue(notification)

    def _look(self, name: str, notification: Notification) -> None:
        if name == "connect":
            self._note_connection(notification)
        else:
            self._note_file(name, notification)

    def _note(self, kind: str, target: str, result: str) -> None:
        if not self._seen:
            self.on_first()
        key = (kind, target[:_MAX_TARGET], result)
        if key in self._seen or len(self._seen) < MAX_OBSERVATIONS:
            self._seen[key] = self._seen.get(key, 0) + 1

    def _note_connection(self, notification: Notification) -> None:
        raw = _memory(notification.pid, notification.args[1], min(notification.args[2], 128))
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
        if port == 53:
            self._note("name", "", "EAI_AGAIN")
        elif not host.startswith(("127.", "[::ffff:127.")) and host not in _THIS_JAR:
            self._note("network", f"{host}:{port}", "ENETUNREACH")

    def _note_file(self, name: str, notification: Notification) -> None:
        directory_argument, path_argument = _AT_CALLS.get(name, (None, 1 if name == "symlink" else 0))
        raw = _memory(notification.pid, notification.args[path_argument], _MAX_PATH).partition(b"\0")[0]
        if not raw:
            return
        path = os.fsdecode(raw)
        if not path.startswith("/"):
            at = -100 if directory_argument is None else _signed(notification.args[directory_argument])
            where = "cwd" if at == kernel.AT_FDCWD else f"fd/{at}"
            path = os.path.join(os.readlink(f"/proc/{notification.pid}/{where}"), path)
        path = os.path.normpath(path)
        writing = name in _WRITE_CALLS
        if name in ("open", "openat"):
            writing = bool(notification.args[path_argument + 1] & _WRITING)
        if refused := self._predict(path, writing=writing):
            verb = "write" if writing else "execute" if name.startswith("exec") else "read"
            self._note("file", f"{verb} {path}", refused)

    def _predict(self, path: str, *, writing: bool) -> str:
        """The error that the call will meet, looked up in the jar's own root; empty if none."""
        if path.startswith(("/proc/", "/dev/", "/sys/")):
            return ""
        target = os.path.dirname(path) if writing else path
        try:
            found = self._open_in_jar(target)
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

    def _open_in_jar(self, path: str) -> int:
        """A handle; EAGAIN says that something was mounted or moved meanwhile, anywhere, and is tried again."""
        for _attempt in range(_ATTEMPTS):
            with contextlib.suppress(BlockingIOError):
                return kernel.openat2(self._jar_root, path, os.O_PATH, resolve=kernel.RESOLVE_IN_ROOT)
        raise OSError(errno.EAGAIN, "the file system does not stand still", path)

    def report(self) -> list[dict[str, Any]]:
        """Everything seen, for the host to explain."""
        return [
            {"kind": kind, "target": target, "result": result, "count": count}
            for (kind, target, result), count in self._seen.items()
        ]

    def close(self) -> None:
        """Let go. A guest that still lives would get ENOSYS."""
        self.listener.close()


def _signed(value: int) -> int:
    return struct.unpack("i", struct.pack("I", value & 0xFFFFFFFF))[0]  # type: ignore[no-any-return]


def _memory(pid: int, address: int, length: int) -> bytes:
    """Bytes of the guest's memory: hostile, bounded, possibly gone."""
    if address >> 63:
        return b""  # no address of a process
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        try:
            return file.read(length) or b""
        except OSError:  # the string ends near an unmapped page
            file.seek(address)
            return file.read(4096 - address % 4096) or b""
