"""A jar of a pool, from the stage's side: cloned from the zygote, looked into, lent to the host, used once.

Once it is lent, the host speaks with it itself: gives its process what to run, and hears from its pid 1 how that ended.
The stage keeps the clock, the memory and the filter's listener, ends the jar, and sees to it that it is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import time
from collections.abc import Callable

from belljar._startup import sockets as socket
from belljar.backends.bubblewrap.shared import wire
from belljar.backends.bubblewrap.shared.wire import FIRST_SAMPLE_SECONDS
from belljar.backends.bubblewrap.stage.jar_run import JarRun, JarSpec
from belljar.errors import SandboxUnavailableError
from belljar.guest.pool.pooled_code import CLONE, HURRY
from belljar.limits.groups import RunGroup

_MAKING_SECONDS = 60.0
ENDED_SILENTLY = "it ended before it was ready"
"""Why there is no jar, if its pid 1 said nothing."""
_BESIDE = socket.CMSG_SPACE(12) + socket.CMSG_SPACE(8)
"""Who says it, and two descriptors."""


class PoolRun(JarRun):
    """A jar that was cloned from the zygote."""

    counts_io = False

    def __init__(
        self, name: str, spec: JarSpec, group: RunGroup | None, covered: list[str], *, cabled: bool, generation: int
    ) -> None:
        super().__init__(name, spec, group, [], covered, cabled=cabled)
        self.generation = generation
        """Which zygote it came from."""
        self.workspace = -1

    def clone(self, zygote: socket.socket, enter: list[int], *, hurried: bool) -> None:
        """Ask the zygote for it; `hurried` if somebody waits for it."""
        self.deadline = time.monotonic() + _MAKING_SECONDS
        self.gate, theirs = socket.bare_pair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.gate.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            given = wire.packed((theirs.fileno(), *enter))
            zygote.sendmsg([HURRY if hurried else CLONE], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, given)])
        finally:
            theirs.close()

    def hear(self) -> str:
        """The next word from inside: `made`, `ready`, or why there is none."""
        assert self.gate is not None
        try:
            word, ancillary, _flags, _address = self.gate.recvmsg(4096, _BESIDE, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            word, ancillary = b"", []
        if word == b"made":
            return self._take(ancillary)
        if word == b"ready":
            pids = [struct.unpack("3i", data)[0] for _level, kind, data in ancillary if kind == socket.SCM_CREDENTIALS]
            return self._look_into(pids[0])
        return _in_words(word)

    def _take(self, ancillary: list[tuple[int, int, bytes]]) -> str:
        for _level, kind, data in ancillary:
            if kind == socket.SCM_RIGHTS and len(data) == 8:
                listener, self.workspace = struct.unpack("2i", data)
                self.observe(listener)
                return "made"
        return "there is no room for its descriptors"

    def _look_into(self, pid: int) -> str:
        try:
            holds = self.examine(pid)
            if self.group:
                self.group.end_as_one(whether=True)
        except (OSError, SandboxUnavailableError) as error:  # it died while we looked
            return f"the jar could not be looked into: {error}"
        return "ready" if holds else "; ".join(self.problems)

    def _finish_proc(self, pid: int) -> None:
        """The jar did it itself, and its pid 1 holds what stays."""

    def lend(self, offers: socket.socket) -> socket.socket:
        """Hand it to the host, which has nothing to do but to use it; where the stage hears from the host about it."""
        assert self.gate is not None
        ours, theirs = socket.bare_pair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        opened: list[int] = []
        try:
            counters, opened = self.group.counters() if self.group else ([], [])
            if self.listeners:
                roles = [[listener.role, listener.port] for listener in self.listeners]
                wire.send(ours, {"listeners": roles}, tuple(listener.descriptor for listener in self.listeners))
            counted = self.group is not None and self.spec.memory_group
            message = {"run": self.name, "zygote": self.generation, "counters": counters, "counted": counted}
            wire.send(offers, {"lent": message}, (self.gate.fileno(), theirs.fileno(), self.workspace, *opened))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            close_all(opened)
        self._let_go_of_lent()
        return ours

    def _let_go_of_lent(self) -> None:
        """The host has them now."""
        assert self.gate is not None
        self.gate.close()
        self.gate = None
        os.close(self.workspace)
        self.workspace = -1
        self.close_listeners()

    def begin(self, timeout_seconds: float) -> None:
        """The host has given it what to run: the clock starts."""
        self.started = time.monotonic()
        self.deadline = self.started + timeout_seconds
        self.sampled = not self.spec.memory_group and not self.ended_by
        self.next_sample = self.started + FIRST_SAMPLE_SECONDS

    def tell_first(self, told: Callable[[], None]) -> None:
        """Have it told when something is noted for the first time, before whoever did it can go on."""
        if self.observer:
            self.observer.on_first = told

    def kill(self, reason: str) -> None:
        """End it. One that is still being made hears that nobody waits for it, and ends by itself."""
        super().kill(reason)
        if not self.ready and self.gate is not None:
            with contextlib.suppress(OSError):
                self.gate.shutdown(socket.SHUT_RDWR)

    def lose(self, *, with_zygote: bool) -> None:
        """Note that its pid 1 is gone, and the stage did not kill it.

        If the zygote is gone as well, the jar was lost with it. Otherwise the code may have done it: that must not look
        like a fault of the machine.
        """
        self.ended_by = "internal" if with_zygote else "pid1"
        self.problems = [wire.ZYGOTE_KILLED] if with_zygote else []

    @property
    def quiet(self) -> bool:
        """Whether the host knows all about it that there is to know, if its pid 1 has told it of the end."""
        noted = self.observer is not None and bool(self.observer.report())
        return self.group is not None and self.spec.memory_group and not self.ended_by and not noted

    def collect(self, *, briefly: bool = False) -> wire.Message:
        """What was used, and how it ended, as far as it is known here: what its pid 1 said, only the host heard."""
        counted = self.group.usage() if self.group and not briefly else {}
        return {
            "exit_code": 128 + signal.SIGKILL,
            "code_status": int(signal.SIGKILL),
            "ended_by": self.ended_by,
            "problems": self.problems,
            "started": self.started > 0,
            "began": self.started,
            "cpu_seconds": max(counted.get("cpu_seconds", 0.0), self.cpu_seconds),
            "peak_memory_bytes": counted.get("memory_peak_bytes") or self.peak_memory,
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
        if self.workspace >= 0:
            os.close(self.workspace)
            self.workspace = -1


def _in_words(said: bytes) -> str:
    """Why there is no jar, as its pid 1 tells it: of the code's process, how that ended; of a step, what failed."""
    if said[:1] == b"E":
        status = int.from_bytes(said[1:5], sys.byteorder)
        return f"its interpreter ended before it was ready, with {os.waitstatus_to_exitcode(status)}"
    what, found, number = said[1:].decode(errors="replace").rpartition(": error ")
    if found and number.isdecimal():  # of native/jar.c
        return f"{what}: {os.strerror(int(number))}"
    return number or ENDED_SILENTLY


def close_all(descriptors: list[int]) -> None:
    """Close each of them."""
    for descriptor in descriptors:
        os.close(descriptor)
