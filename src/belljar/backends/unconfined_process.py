"""A process that nothing confines, with the limits that this host can put on it.

Its limits are in place before its program starts: a starter, which is its first program, waits for one word. Runs in
belljar. The code is the same user, so it could leave a control group again: the limits stop accidents, not attackers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from belljar.backends.contract import End, Frozen, Listener
from belljar.errors import SandboxUnavailableError, UsageError
from belljar.limits import monitor, rlimits
from belljar.limits.groups import RunGroup
from belljar.limits.values import Limits

_STARTER = """\
import os, sys
end = int(sys.argv[1])
if not os.read(end, 1):
    os._exit(125)
os.set_inheritable(end, False)
try:
    os.execvpe(sys.argv[2], sys.argv[2:], os.environ)
except OSError as error:
    os.write(end, str(error.errno).encode())
    os._exit(127)
"""
"""Waits until its limits are set, then becomes the program; tells why it can't."""
_SET = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_DATA)
"""The rlimits that keys of the policy set. The other rlimits belong to a jar, and are not set here."""
_LOOK_SECONDS = 0.1
"""How often memory is looked at where no control group holds it."""


class UnconfinedProcess:
    """A child process, its process group, and its control group where there is one."""

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        workdir: str,
        limits: Mapping[str, Any],
        *,
        stdin: int | None,
        group: RunGroup | None,
        counts_memory: bool,
    ) -> None:
        """`counts_memory`: the group holds the memory; where it does not, belljar looks at it."""
        self.ended_by = ""
        self.listeners: tuple[Listener, ...] = ()
        self._group = group
        self._watched_bytes = 0 if counts_memory else int(limits["mem_bytes"])
        self._peak_bytes = 0
        ours, theirs = socket.socketpair()
        with ours, theirs:
            starter = [sys.executable, "-I", "-S", "-c", _STARTER, str(theirs.fileno()), *command]
            try:
                self._child = subprocess.Popen(
                    starter,
                    env=environment,
                    cwd=workdir,
                    stdin=subprocess.DEVNULL if stdin is None else stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                    pass_fds=(theirs.fileno(),),
                )
            except OSError as error:
                raise UsageError(f"can't run {command[0]}: {error.strerror}") from error
            theirs.close()
            try:
                self._limit(limits)
                ours.sendall(b"g")
                if failed := ours.recv(16):
                    raise UsageError(f"can't run {command[0]}: {os.strerror(int(failed))}")
            except BaseException:
                self._abandon()
                raise
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self.stdout, self.stderr = os.dup(self._child.stdout.fileno()), os.dup(self._child.stderr.fileno())
        self._child.stdout.close()
        self._child.stderr.close()
        self._pidfd = os.pidfd_open(self._child.pid)
        self._began = time.monotonic()
        self._deadline = self._began + limits["timeout_seconds"]
        self._watcher = threading.Thread(target=self._watch, name="belljar unconfined", daemon=True)
        self._watcher.start()

    def _limit(self, limits: Mapping[str, Any]) -> None:
        """Put the starter into its control group, and set its rlimits from outside."""
        pid = self._child.pid
        if self._group is not None:
            try:
                for entrance in self._group.enter_fds():
                    os.write(entrance, str(pid).encode())
                self._group.entered()
                if (directory := self._group.cgroup_fd()) is not None:
                    entrance = os.open("cgroup.procs", os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
                    with open(entrance, "wb", buffering=0) as file:
                        file.write(str(pid).encode())
            except OSError as error:
                raise SandboxUnavailableError(f"can't enter the run's control group: {error.strerror}") from error
        wanted = Limits(
            mem_bytes=self._watched_bytes, open_files=limits["open_files"], file_size_bytes=limits["file_size_bytes"]
        )
        for which, soft, hard in rlimits.rlimits_for(wanted, has_memory_group=not self._watched_bytes):
            if which in _SET:
                resource.prlimit(pid, which, (soft, hard))
        if processes := limits["user_processes"]:
            _soft, hard = resource.prlimit(pid, resource.RLIMIT_NPROC)
            most = processes if hard == resource.RLIM_INFINITY else min(processes, hard)
            resource.prlimit(pid, resource.RLIMIT_NPROC, (most, most))

    def _abandon(self) -> None:
        """End a process that never became the program."""
        self._child.kill()
        self._child.communicate()
        self._remove_group()

    # --- watching ---

    def _watch(self) -> None:
        """In a thread: end the run when its time is over, or its memory is used up."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        event = self._group.oom_fd() if self._group is not None else None
        if self._group is not None and event is not None:
            poll.register(event, self._group.oom_mask)
        while not self.ended_by:
            left = self._deadline - time.monotonic()
            if left <= 0:
                self.kill("timeout")
                return
            patience = min(left, _LOOK_SECONDS if self._watched_bytes else left)
            ready = {found for found, _mask in poll.poll(1000 * patience)}
            if self._pidfd in ready:
                return
            if (event in ready and self._is_out_of_memory()) or self._uses_too_much():
                self.kill("oom")

    def _is_out_of_memory(self) -> bool:
        return self._group is not None and self._group.out_of_memory()

    def _uses_too_much(self) -> bool:
        if not self._watched_bytes:
            return False
        proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            found = monitor.sample(proc, limit_bytes=self._watched_bytes, pids=_of_session(self._child.pid))
        finally:
            os.close(proc)
        self._peak_bytes = max(self._peak_bytes, found.anon_bytes)
        return found.anon_bytes > self._watched_bytes

    # --- the contract ---

    def begin(self) -> None:
        """It has started."""

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def kill(self, reason: str) -> None:
        """End the process group, and all of the control group. Without one, a child that left the former lives on."""
        if self._child.returncode is not None:
            return
        self.ended_by = self.ended_by or reason
        self._kill_all()

    def _kill_all(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        if self._group is not None:
            with contextlib.suppress(SandboxUnavailableError, OSError):
                self._group.kill()

    def freeze(self) -> Frozen:
        """Stop the process group. A child that left the group goes on, and so does the clock."""
        self._signal(signal.SIGSTOP)
        return Frozen("SIGSTOP to its process group: nothing confines it, and what left the group goes on", still=False)

    def thaw(self) -> None:
        """Let it go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        """Raises ProcessLookupError if it was waited for: its number may be another's by now."""
        if self._child.returncode is not None:
            raise ProcessLookupError(errno.ESRCH, "the run has ended")
        os.killpg(self._child.pid, number)

    def end(self) -> End:
        """Wait for the end, and tell it."""
        return self._end

    @cached_property
    def _end(self) -> End:
        select.select([self._pidfd], [], [])
        self._watcher.join()
        self._kill_all()
        _pid, status, usage = os.wait4(self._child.pid, 0)
        self._child.returncode = code = os.waitstatus_to_exitcode(status)
        used = self._group.usage() if self._group is not None else {}
        if self._is_out_of_memory():
            self.ended_by = self.ended_by or "oom"
        self._remove_group()
        peak = used.get("memory_peak_bytes") or max(self._peak_bytes, usage.ru_maxrss * 1024)
        return End(
            exit_code=128 - code if code < 0 else code,
            signal=-code if code < 0 else None,
            ended_by=self.ended_by,
            problems=(),
            started=True,
            cpu_seconds=used.get("cpu_seconds", usage.ru_utime + usage.ru_stime),
            peak_memory_bytes=int(peak),
            processes=int(used["pids_peak"]) if "pids_peak" in used else None,
            bytes_read=None,
            bytes_written=None,
            oom_kills=int(used.get("oom_kills", 0)),
            pids_refused=int(used.get("pids_refused", 0)),
            observations=(),
            began=self._began,
        )

    def _remove_group(self) -> None:
        if self._group is not None:
            with contextlib.suppress(SandboxUnavailableError, OSError):  # the jar's own, with all in it, goes later
                self._group.remove()

    def close(self) -> None:
        """Close it, and kill the process if it still runs."""
        self.kill("abandoned")
        _ = self._end
        for descriptor in (self.stdout, self.stderr, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = self._pidfd = -1


def _of_session(leader: int) -> list[str]:
    """The processes of a session: the child's descendants, but for those that made a session of their own."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.getsid(int(name)) == leader:
                found.append(name)
    return found
