"""No confinement: the code runs as the caller, with the caller's files and network. Only ever chosen by name.

What holds is time, output and the limits that a process can set on itself; the report says so for every clause.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from functools import cached_property

from belljar.backends.contract import (
    Availability,
    Clause,
    End,
    EnforcementReport,
    Frozen,
    LaunchPlan,
    Listener,
    RunRequest,
    Status,
)
from belljar.backends.hostile_files import OpenedFiles
from belljar.backends.redaction_clauses import redaction_clauses
from belljar.backends.runtimes import find_runtime
from belljar.backends.session_clauses import session_clauses
from belljar.errors import UsageError
from belljar.policy.keys import CLAUSES
from belljar.policy.models import ContainerPolicy, Mount, Policy

_PREFIX = "belljar-unconfined-"
_NOTHING = "the code runs as you, with your files and your network"


class UnconfinedBackend:
    """Runs code as a plain child process."""

    name = "unconfined"

    def probe(self) -> Availability:
        """It works everywhere, and protects nothing."""
        return Availability("unconfined", available=True, reason="no isolation at all; used only when it is named")

    def compile(self, policy: Policy, request: RunRequest) -> LaunchPlan:
        """The command, and a report in which hardly anything holds."""
        if request.code is not None:
            runtime = find_runtime(request.language, policy)
            command = [runtime.path, request.script_name or runtime.file_name, *request.arguments]
        else:
            command = list(request.argv)
        if not command:
            raise UsageError("nothing to run: the command is empty")
        environment = {
            name: value for name, value in request.env.items() if name in ("PATH", "HOME", *policy.env.pass_)
        }
        proc = policy.proc
        limits = {
            "timeout_seconds": proc.timeout_seconds,
            "output_bytes": proc.output_bytes,
            "open_files": proc.open_files,
        }
        return LaunchPlan(
            backend=self.name,
            argv=tuple(command),
            env={**environment, **policy.env.set},
            workdir=policy.fs.workdir,
            limits={**limits, "file_size_bytes": proc.file_size_bytes},
            stage={},
            report=_report(policy),
            policy_digest=policy.digest,
        )

    def open(self, policy: Policy, plan: LaunchPlan) -> UnconfinedJar:  # noqa: ARG002
        """A temporary directory that stands for the workspace."""
        return UnconfinedJar(policy)


def _report(policy: Policy) -> EnforcementReport:
    lost = [
        "fs.mounts",
        "fs.deny_globs",
        "fs.size_mb",
        "fs.inodes",
        "fs.snapshot",
        *(key for key in CLAUSES if key.startswith("net.")),
        "proc.uid",
    ]
    lost += ["proc.mem_mb", "proc.cpu_quota", "proc.pids", "syscalls"]
    lost += ["proc.host_info"] if policy.proc.host_info != "host" else []
    held = {
        "proc.timeout_ms": "a timer, SIGKILL to the process group",
        "proc.open_files": "RLIMIT_NOFILE",
        "proc.file_size_mb": "RLIMIT_FSIZE",
        "proc.output_mb": "belljar's reader, SIGKILL",
        "env.set": "an environment made from nothing",
        "env.pass": "an environment made from nothing",
        "python.venv": "the interpreter that is started",
        "python.interpreter": "the interpreter that is started",
        "logging.sample_ratio": "belljar itself, which stores what it read",
    }
    if policy.proc.host_info == "host":
        held["proc.host_info"] = "nothing is hidden: asked for"
    asked, default = policy.container, ContainerPolicy()
    for name in ("image", "engine", "runtime", "name", "auto_remove", "entrypoint", "ports", "pull"):
        if getattr(asked, name) == getattr(default, name):
            held[f"container.{name}"] = "not a container: nothing to do"
        else:
            lost.append(f"container.{name}")
    lost += [f"container.{name}" for name in ("network", "pid", "privileged", "read_only")]
    return EnforcementReport(
        tuple(Clause(key, Status.UNSUPPORTED, "nothing", _NOTHING) for key in lost)
        + tuple(Clause(key, Status.ENFORCED, by) for key, by in held.items())
        + redaction_clauses()
        + session_clauses()
    )


def _sweep() -> None:
    """Remove the workspaces of processes that were killed and could not do it themselves."""
    top = tempfile.gettempdir()
    for name in os.listdir(top):
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        path = os.path.join(top, name)
        if name.startswith(_PREFIX) and owner.isdigit() and not os.path.exists(f"/proc/{owner}"):
            with contextlib.suppress(OSError):
                if os.lstat(path).st_uid == os.geteuid():
                    shutil.rmtree(path, ignore_errors=True)


class UnconfinedJar(OpenedFiles):
    """The workspace directory, and the processes in it."""

    def __init__(self, policy: Policy) -> None:
        self.shortfalls: tuple[Clause, ...] = ()
        self._policy = policy
        _sweep()
        self._directory = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
        self._processes: list[UnconfinedProcess] = []

    def _root(self, mount: Mount) -> str:
        if mount.source is not None:
            return mount.source
        root = os.path.join(self._directory, mount.path.strip("/").replace("/", "-"))
        os.makedirs(root, exist_ok=True)
        return root

    def _workdir(self) -> str:
        for mount in self._policy.fs.mounts:
            if mount.path == self._policy.fs.workdir:
                return self._root(mount)
        return self._directory

    def prepare(self, plan: LaunchPlan, request: RunRequest) -> None:
        """There is nothing to prepare."""

    def launch(
        self,
        plan: LaunchPlan,
        request: RunRequest,
        *,
        stdin: int | None,
        prepare: bool = False,  # noqa: ARG002
    ) -> UnconfinedProcess:
        """Start the code as a child process with a process group of its own."""
        command = list(plan.argv)
        if request.code is not None:
            directory = tempfile.mkdtemp(dir=self._directory)
            path = os.path.join(directory, os.path.basename(command[1]))
            with open(path, "wb") as file:
                file.write(request.code)
            command[1] = path
        process = UnconfinedProcess(command, dict(plan.env), self._workdir(), plan.limits, stdin)
        self._processes.append(process)
        return process

    def open(self, mount: int, path: str, flags: int) -> int:
        """A descriptor for a file of the workspace."""
        root = os.open(self._root(self._policy.fs.mounts[mount]), os.O_PATH | os.O_DIRECTORY)
        try:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o644, dir_fd=root)
        finally:
            os.close(root)

    def mkdir(self, mount: int, path: str) -> None:
        """Make a directory and those above it."""
        os.makedirs(os.path.join(self._root(self._policy.fs.mounts[mount]), path), exist_ok=True)

    def remove(self, mount: int, path: str) -> None:
        """Remove a file or a tree."""
        whole = os.path.join(self._root(self._policy.fs.mounts[mount]), path)
        if os.path.isdir(whole) and not os.path.islink(whole):
            shutil.rmtree(whole)
        else:
            os.unlink(whole)

    def layer(self, mount: int) -> tuple[int, bool]:
        """The directory itself: nothing is copy-on-write here."""
        return os.open(self._root(self._policy.fs.mounts[mount]), os.O_RDONLY | os.O_DIRECTORY), False

    def close(self) -> None:
        """End what runs and remove the directory."""
        for process in self._processes:
            process.kill("abandoned")
        shutil.rmtree(self._directory, ignore_errors=True)


class UnconfinedProcess:
    """A child process and its group."""

    def __init__(
        self, command: list[str], environment: dict[str, str], workdir: str, limits: object, stdin: int | None
    ) -> None:
        assert isinstance(limits, dict)
        self.ended_by = ""
        self.listeners: tuple[Listener, ...] = ()
        wanted = ((resource.RLIMIT_NOFILE, limits["open_files"]), (resource.RLIMIT_FSIZE, limits["file_size_bytes"]))
        try:
            self._child = subprocess.Popen(
                command,
                env=environment,
                cwd=workdir,
                stdin=subprocess.DEVNULL if stdin is None else stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UsageError(f"can't run {command[0]}: {error.strerror}") from error
        for kind, value in wanted:
            with contextlib.suppress(OSError, ValueError):
                resource.prlimit(self._child.pid, kind, (value, value))
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self.stdout, self.stderr = os.dup(self._child.stdout.fileno()), os.dup(self._child.stderr.fileno())
        self._child.stdout.close()
        self._child.stderr.close()
        self._pidfd = os.pidfd_open(self._child.pid)
        self._began = time.monotonic()
        self._timer = threading.Timer(limits["timeout_seconds"], self.kill, args=("timeout",))
        self._timer.daemon = True
        self._timer.start()

    def begin(self) -> None:
        """It has started."""

    def fileno(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    def kill(self, reason: str) -> None:
        """End the process group. A child that left the group lives on: nothing confines it."""
        if self._child.returncode is not None:
            return
        self.ended_by = self.ended_by or reason
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)

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
        self._timer.cancel()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        _pid, status, usage = os.wait4(self._child.pid, 0)
        self._child.returncode = code = os.waitstatus_to_exitcode(status)
        return End(
            exit_code=128 - code if code < 0 else code,
            signal=-code if code < 0 else None,
            ended_by=self.ended_by,
            problems=(),
            started=True,
            cpu_seconds=usage.ru_utime + usage.ru_stime,
            peak_memory_bytes=usage.ru_maxrss * 1024,
            processes=None,
            bytes_read=None,
            bytes_written=None,
            oom_kills=0,
            pids_refused=0,
            observations=(),
            began=self._began,
        )

    def close(self) -> None:
        """Let go; a process that still runs is ended."""
        self.kill("abandoned")
        _ = self._end
        for descriptor in (self.stdout, self.stderr, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = self._pidfd = -1
