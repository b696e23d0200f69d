"""No confinement: the code runs as the caller, with the caller's files and network. Only ever chosen by name.

What holds is time, output, and the limits that this host can put on a process: control groups where belljar may make
some, rlimits, and a look at memory where neither does. The report says so for every clause.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from belljar.backends.clauses import redaction_clauses, session_clauses
from belljar.backends.contract import (
    Availability,
    Clause,
    EnforcementReport,
    LaunchPlan,
    RunRequest,
    Status,
)
from belljar.backends.hostile_files import OpenedFiles
from belljar.backends.runtimes import find_runtime
from belljar.backends.unconfined_process import UnconfinedProcess
from belljar.errors import SandboxUnavailableError, UsageError
from belljar.limits.detect import CgroupSupport, Mechanism, detect
from belljar.limits.groups import JarGroup, RunGroup, create_jar_group
from belljar.limits.sweep import sweep_stale
from belljar.limits.values import Limits
from belljar.policy.keys.table import CLAUSES
from belljar.policy.models import ContainerPolicy, Mount, Policy

_PREFIX = "belljar-unconfined-"
_NOTHING = "the code runs as you, with your files and your network"
_LEAVES = "the code runs as you, and may leave the control group"
_numbers = itertools.count(1)


class UnconfinedBackend:
    """Runs code as a plain child process."""

    name = "unconfined"

    def __init__(self, support: CgroupSupport | None = None) -> None:
        """`support` are the control groups that belljar may make; found out when they are needed."""
        self._given = support

    @cached_property
    def _support(self) -> CgroupSupport:
        """Nothing of the caller's own process is moved for it: a group or a scope that needs that is not used."""
        found = self._given or detect()
        usable = found.mechanism in (Mechanism.V1, Mechanism.V2_DELEGATED) and not found.occupants
        return found if usable else CgroupSupport(Mechanism.NONE, missing=found.missing, hint=found.hint)

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
            "mem_bytes": proc.mem_bytes,
            "cpu_quota": proc.cpu_quota,
            "pids": proc.pids,
        }
        return LaunchPlan(
            backend=self.name,
            argv=tuple(command),
            env={**environment, **policy.env.set},
            workdir=policy.fs.workdir,
            limits={**limits, "file_size_bytes": proc.file_size_bytes},
            stage={},
            report=_report(policy, self._support.controllers),
            policy_digest=policy.digest,
        )

    def open(self, policy: Policy, plan: LaunchPlan) -> UnconfinedJar:  # noqa: ARG002
        """A temporary directory that stands for the workspace."""
        return UnconfinedJar(policy, self._support)


def _report(policy: Policy, controllers: tuple[str, ...]) -> EnforcementReport:
    lost = [
        "fs.mounts",
        "fs.deny_globs",
        "fs.size_mb",
        "fs.inodes",
        "fs.snapshot",
        *(key for key in CLAUSES if key.startswith("net.")),
        "proc.uid",
    ]
    lost += ["syscalls", *(["proc.host_info"] if policy.proc.host_info != "host" else [])]
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
        + _limits(controllers)
        + tuple(Clause(key, Status.ENFORCED, by) for key, by in held.items())
        + redaction_clauses()
        + session_clauses()
    )


def _limits(controllers: tuple[str, ...]) -> tuple[Clause, ...]:
    """What is tried, and why it is no more than that."""
    without = {
        "proc.mem_mb": Clause(
            "proc.mem_mb",
            Status.DEGRADED,
            "belljar's look at its processes, RLIMIT_DATA of each",
            "memory that is used up and given back within 0.1 s, and processes in a session of their own",
        ),
        "proc.cpu_quota": Clause("proc.cpu_quota", Status.UNSUPPORTED, "nothing", "every processor may be used"),
        "proc.pids": Clause(
            "proc.pids", Status.DEGRADED, "RLIMIT_NPROC", "it counts all of your processes, and does not hold for root"
        ),
    }
    names = {"proc.mem_mb": "memory", "proc.cpu_quota": "cpu", "proc.pids": "pids"}
    return tuple(
        Clause(key, Status.DEGRADED, f"control group: {name}", _LEAVES) if name in controllers else without[key]
        for key, name in names.items()
    )


def _processes_of_this_user() -> int:
    """Threads of this user now, as RLIMIT_NPROC counts them."""
    found, user = 0, os.getuid()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.stat(f"/proc/{name}").st_uid == user:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


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

    def __init__(self, policy: Policy, support: CgroupSupport) -> None:
        self.shortfalls: tuple[Clause, ...] = ()
        self._support = support
        self._runs = itertools.count(1)
        if support.controllers:
            sweep_stale(support)
        self._group: JarGroup | None = create_jar_group(support, f"unconfined{next(_numbers)}")
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
        held = self._support.controllers
        limits = {**plan.limits, "user_processes": 0}
        if "pids" not in held:
            limits["user_processes"] = _processes_of_this_user() + plan.limits["pids"]
        process = UnconfinedProcess(
            command,
            dict(plan.env),
            self._workdir(),
            limits,
            stdin=stdin,
            group=self._run_group(plan.limits),
            counts_memory="memory" in held,
        )
        self._processes.append(process)
        return process

    def _run_group(self, limits: Mapping[str, Any]) -> RunGroup | None:
        if self._group is None:
            return None
        wanted = Limits(mem_bytes=limits["mem_bytes"], cpu_quota=limits["cpu_quota"], pids=limits["pids"])
        return self._group.run_group(f"run-{next(self._runs)}", wanted)

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
        if self._group is not None:
            with contextlib.suppress(SandboxUnavailableError, OSError):  # swept by the next one
                self._group.remove()
        shutil.rmtree(self._directory, ignore_errors=True)
