"""A jar of a pool, from the stage's side: cloned from the zygote, looked into, used once."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import time
from typing import Any

from belljar.backends.bubblewrap import layout, wire
from belljar.backends.bubblewrap.jar_root import write_all
from belljar.backends.bubblewrap.observe import Observer
from belljar.backends.bubblewrap.running import JarSpec, Run
from belljar.backends.seccomp.notify import Listener
from belljar.guest.tree import make_directories
from belljar.limits.groups import RunGroup

_MAKING_SECONDS = 60.0


class PoolRun(Run):
    """A jar that was cloned from the zygote."""

    def __init__(self, name: str, spec: JarSpec, group: RunGroup | None, covered: list[str]) -> None:
        super().__init__(name, spec, group, [], covered, cabled=True)
        self.code_directory = self.workspace = -1
        self.pending: tuple[wire.Message, list[int]] | None = None
        """What it is to run, while the host sees to its network."""
        self.told: dict[str, Any] | None = None
        """What its pid 1 said of the end."""
        self.answered = False

    def clone(self, zygote: socket.socket, enter: list[int]) -> None:
        """Ask the zygote for it."""
        self.deadline = time.monotonic() + _MAKING_SECONDS
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.gate = ours
        with theirs:
            socket.send_fds(zygote, [b"clone"], [theirs.fileno(), *enter])

    def hear(self) -> str:
        """The next word from inside: `made`, `ready`, `end`, or why there is none."""
        assert self.gate is not None
        space = socket.CMSG_SPACE(12) + socket.CMSG_SPACE(12)
        try:
            word, ancillary, _flags, _address = self.gate.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            word, ancillary = b"", []
        if word == b"made" and not any(kind == socket.SCM_RIGHTS and len(data) == 12 for _, kind, data in ancillary):
            return "there is no room for its descriptors"
        for _level, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS:
                listener, self.code_directory, self.workspace = struct.unpack("3i", data[:12])
                self.observer = Observer(Listener(listener))
        if word == b"ready":
            pids = [struct.unpack("3i", data)[0] for _level, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
            try:
                holds = self.examine(pids[0])
                if self.io_fd >= 0:  # what was read and written is not told, and there may be many jars
                    os.close(self.io_fd)
                    self.io_fd = -1
                return "ready" if holds else "; ".join(self.problems)
            except OSError as error:  # it died while we looked
                return f"the jar could not be looked into: {error}"
        if word[:1] == b"{":
            said = json.loads(word)
            if "failed" in said:
                return str(said["failed"])
            self.told = said
            return "end"
        return word.decode() if word else "it ended before it was ready"

    def begin(self, message: wire.Message, descriptors: list[int]) -> None:
        """Give it what to run, and let it."""
        assert self.gate is not None
        name = message["name"]
        for path, content in message["files"].items():
            _put(self.workspace, path, content.encode("latin-1"))
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644, dir_fd=self.code_directory)
        try:
            write_all(file, message["code"].encode("latin-1"))
        finally:
            os.close(file)
        self.started = time.monotonic()
        self.deadline = self.started + message["timeout_seconds"]
        words = json.dumps({"argv": [f"{layout.JAR_CODE}/{name}", *message["args"]]}).encode()
        socket.send_fds(self.gate, [words], descriptors)

    def go(self) -> None:
        """Its network is served: give it what waited for that."""
        if self.pending is None:
            return
        (message, descriptors), self.pending = self.pending, None
        try:
            self.begin(message, descriptors)
        finally:
            close_all(descriptors)

    def kill(self, reason: str) -> None:
        """End it. One that is still being made hears that nobody waits for it, and ends by itself."""
        super().kill(reason)
        if not self.ready and self.gate is not None:
            with contextlib.suppress(OSError):
                self.gate.shutdown(socket.SHUT_RDWR)

    def collect(self) -> wire.Message:
        """What was used, and how it ended: as its pid 1 told, or by the signal that ended that one, too."""
        told = self.told or {"status": int(signal.SIGKILL), "cpu_seconds": self.cpu_seconds, "peak_memory_bytes": 0}
        status = told["status"]
        counted = self.group.usage() if self.group else {}
        code = os.waitstatus_to_exitcode(status)
        return {
            "exit_code": code if code >= 0 else 128 - code,
            "code_status": status,
            "ended_by": self.ended_by,
            "problems": self.problems,
            "started": self.started > 0,
            "seconds": time.monotonic() - self.started if self.started else 0.0,
            "cpu_seconds": max(counted.get("cpu_seconds", 0.0), told["cpu_seconds"]),
            "peak_memory_bytes": counted.get("memory_peak_bytes") or max(self.peak_memory, told["peak_memory_bytes"]),
            "processes": self._most_processes(counted.get("pids_peak")),
            "bytes_read": None,
            "bytes_written": None,
            "oom_kills": counted.get("oom_kills", 0),
            "pids_refused": counted.get("pids_refused", 0),
            "observations": self.observer.report() if self.observer else [],
        }

    def close(self) -> None:
        """Let go of every descriptor."""
        super().close()
        if self.pending is not None:
            close_all(self.pending[1])
            self.pending = None
        close_all([descriptor for descriptor in (self.code_directory, self.workspace) if descriptor >= 0])
        self.code_directory = self.workspace = -1


def _put(root: int, path: str, content: bytes) -> None:
    """Write a file that the caller gives the code, in a workspace in which nothing has run yet."""
    directory, _, name = path.rpartition("/")
    parent = make_directories(root, directory)
    try:
        file = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=parent)
        try:
            write_all(file, content)
        finally:
            os.close(file)
    finally:
        os.close(parent)


def close_all(descriptors: list[int]) -> None:
    """Close each of them."""
    for descriptor in descriptors:
        os.close(descriptor)
