"""One jar, from the fork to the last process gone. Runs in the stage process, driven by its event loop.

fork ── child: enters its cgroup, puts on the notify filter, becomes bubblewrap
 │
"ready" from the gate inside the jar: mounts, namespaces, capabilities and seccomp are final
 │      canaries look in; rlimits are set from outside; the jar waits, for the host or for a run to come
 │
 │      ("warm": the gate becomes node with its runtime up, which waits as it did)
 │
"go": the gate reads what to run, from a file that only the stage writes, and becomes it
 │
the code runs ── timeout, memory, kill ──▶ every process of the jar is killed, again until the jar is gone
 │
the last process is gone: usage is read, the result is sent
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import struct
import time

from belljar._startup import signals as signal
from belljar._startup import sockets as socket
from belljar._startup.records import dataclass
from belljar.backends import machine
from belljar.backends.bubblewrap.shared import layout
from belljar.backends.bubblewrap.shared.parent_death import die_with
from belljar.backends.bubblewrap.shared.wire import Message, packed
from belljar.backends.bubblewrap.stage import own_proc
from belljar.backends.bubblewrap.stage.isolation_check import WaitingJar, failures
from belljar.backends.bubblewrap.stage.machine_calls import MachineCalls
from belljar.backends.bubblewrap.stage.observe import JarObserver
from belljar.backends.network.addresses import JAR_INTERFACE
from belljar.backends.seccomp import filters
from belljar.backends.seccomp.notify import NotifyListener
from belljar.errors import SandboxUnavailableError
from belljar.limits import killing, monitor, rlimits, stopping
from belljar.limits.groups import RunGroup
from belljar.limits.values import Limits

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from belljar.backends.contract import Listener as GatewayListener

GATE = (
    'echo ready >&4;read -r g <&4&&case "$g" in '
    f"go)exec 4>&-&&. {layout.JAR_CODE}/{layout.COMMAND};;warm). {layout.JAR_CODE}/{layout.WARM};;esac;exit 125"
)
"""The gate inside the jar: only a word opens it, end of file ends it. `warm` makes it an interpreter that is up, and
waits in its stead for the same `go` on the same descriptor (`host/warm_node.py`). The gate starts with no environment
at all, so that nothing of the policy's or the code's (LD_PRELOAD) is in a process before the canaries have looked."""

COMMAND = ["bwrap", "--args", str(layout.ARGS_FD), "--", "/bin/sh", "-c", GATE]
"""What bubblewrap is started with; all that differs between jars it reads from a descriptor."""

_ERRORS_FD, _LISTENER_FD = 6, 7
"""Descriptors of the child that bubblewrap does not get."""

_PIDFD_GET_INFO = 0xC040FF0B
_PIDFD_INFO_EXIT = 1 << 3
_GATE_SECONDS = 30
_AGAIN_SECONDS, _MOST_AGAIN_SECONDS = 0.05, 1.0
"""How long a jar that was killed may take before it is killed again: at first, and at most."""
_SLACK = 8
"""With a control group that one is exact, and counts what it refuses; the rlimit stands behind it."""


@dataclass(frozen=True, slots=True)
class JarSpec:
    """What a jar is made of; nothing about the code that will run in it. Equal specs make interchangeable jars."""

    bwrap: str
    arguments: list[str]
    limits: Limits
    expect: dict[str, Any]
    observe_files: bool
    observe_network: bool
    memory_group: bool
    gateway_ports: tuple[int, ...] | None
    """The ports of its gateway, if the policy opens the network."""
    publishes: bool
    """Whether it has a port forward, for connections to the code's servers."""
    host_info: str
    """What it sees of the machine."""

    @classmethod
    def of(cls, data: Message) -> JarSpec:
        """From the host's message."""
        ports = data["gateway_ports"]
        changed = {"limits": Limits.from_json(data["limits"]), "gateway_ports": None if ports is None else tuple(ports)}
        return cls(**{**data, **changed})


def import_network() -> None:
    """What a jar with a network needs, for a stage that can import nothing later."""
    import belljar.backends.network.gateway
    import belljar.backends.network.port_forward
    import belljar.backends.network.probe  # noqa: F401


@dataclass(frozen=True, slots=True)
class Warm:
    """The interpreter with which a jar may wait: it has the environment of the run from its start."""

    program: str
    env: dict[str, str]
    main: str
    """The code's file, if it has no name of its own."""
    workdir: str
    shim: str

    def suits(self, message: Message) -> bool:
        """Whether a run's interpreter is this one."""
        return bool(message["warms"]) and self.program == message["command"][0] and self.env == message["env"]


class JarRun:
    """A jar, waiting or in use."""

    counts_io = True
    """Whether it is told how much the code read and wrote."""

    def __init__(
        self,
        name: str,
        spec: JarSpec,
        group: RunGroup | None,
        absent: list[str],
        covered: list[str],
        *,
        cabled: bool,
    ) -> None:
        self.name = name
        self.spec = spec
        self.group = group
        self.absent = absent
        """Further canary paths, for this jar only."""
        self.covered = covered
        """Further mount points: denied files in a live mount."""
        self.cabled = cabled
        """Whether its gateway, if it has one, is a namespace of its own."""
        self.timeout_seconds = 0.0
        """Set when there is something to run; until then the jar waits."""
        self.prepares = False
        """Whether another jar is to wait for the next run when this one has ended."""
        self.warm: Warm | None = None
        """What to become while it waits."""
        self.is_warm = False
        """Whether it was told to."""
        self.ready = False
        """At the gate, with every canary satisfied."""
        self.started = 0.0
        self.deadline = 0.0
        self._left: float | None = None
        """While it stands still: how much of its time there was."""
        self.ended_by = ""
        self.dying = False
        """Whether it is being ended."""
        self._patience = _AGAIN_SECONDS
        self.problems: list[str] = []

        self.pid = self.init_pid = self.forward_pid = 0
        self.pidfd = self.init_fd = self.code_fd = self.io_fd = self.errors = -1
        self.root_fd = -1
        """The jar's root, while somebody may have to look for a file in it: the last to let go of it has to unmount."""
        self.proc_fd = -1
        """The jar's own /proc, where what it uses is not counted by a control group."""
        self.kept: list[int] = []
        """Names of its /proc that stay there as long as they are open."""
        self.gate: socket.socket | None = None
        self.outputs = (-1, -1)
        """The ends of its output and errors that the host is to have."""
        self.observer: JarObserver | None = None
        self.listeners: tuple[GatewayListener, ...] = ()
        """The sockets of its gateway, which the host is to have."""

        self.sampled = False
        """Whether its memory has to be watched from here now: it runs, and no control group holds it."""
        self.next_sample = 0.0
        self.peak_processes = 0
        self.peak_memory = 0
        self.cpu_seconds = 0.0

    # --- start ---

    def launch(self, standard_input: int) -> None:
        """Fork, and let the child become bubblewrap. Takes the descriptor over."""
        self.deadline = time.monotonic() + _GATE_SECONDS  # the code's own time starts when the gate opens
        gate, gate_inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        gate.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        listener_here, listener_there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        (output, output_inside), (errors, errors_inside), (faults, faults_inside) = pipes
        notify = filters.notify_filter(
            connects=self.spec.observe_network, files=self.spec.observe_files, machine=self.spec.host_info != "host"
        )
        arguments = memory_file("arguments", self._arguments())
        program = memory_file("seccomp", filters.jar_filter(reported=True))
        inside = [standard_input, output_inside, errors_inside, program, gate_inside.detach(), arguments]
        inside += [faults_inside, listener_there.detach()]
        stage = os.getpid()
        self.pid = self.group.fork() if self.group else os.fork()
        if self.pid == 0:
            self._become_bubblewrap(inside, notify, stage)
        for descriptor in inside:
            os.close(descriptor)
        self.pidfd = os.pidfd_open(self.pid)
        self.gate, self.errors, self.outputs = gate, faults, (output, errors)
        if self.spec.host_info != "host":
            limits = self.spec.limits
            own_proc.make_files(self.spec.host_info, limits.mem_bytes, limits.cpu_quota)
        self._take_listener(listener_here)

    def _arguments(self) -> bytes:
        own = (layout.RUNS, layout.CODE)
        words = [word.replace(layout.RUN, self.name) if word.startswith(own) else word for word in self.spec.arguments]
        return b"".join(os.fsencode(word) + b"\0" for word in words)

    def _become_bubblewrap(self, inside: list[int], notify: bytes, stage: int) -> NoReturn:
        """In the child: nothing here may return."""
        errors = inside[_ERRORS_FD]
        try:
            place(inside)
            errors = _ERRORS_FD
            os.set_inheritable(errors, False)  # noqa: FBT003
            rlimits.volunteer_for_oom()
            wanted = rlimits.rlimits_for(self.spec.limits, has_memory_group=self.spec.memory_group)
            rlimits.apply([one for one in wanted if one[0] != resource.RLIMIT_NOFILE])
            rlimits.raise_open_files()
            listener = filters.install(notify, listener=True)
            socket.socket(fileno=_LISTENER_FD).sendmsg(
                [b"L"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, packed((listener,)))]
            )
            rlimits.apply([one for one in wanted if one[0] == resource.RLIMIT_NOFILE])
            os.closerange(_LISTENER_FD, 1 << 20)
            default_signals()
            die_with(stage)
            os.execve(self.spec.bwrap, COMMAND, {})  # noqa: S606
        except BaseException as error:  # noqa: BLE001 - whatever it is, the child must not live on as a second stage
            with contextlib.suppress(OSError):
                os.write(errors, f"{type(error).__name__}: {error}".encode()[:500])
        finally:
            os._exit(126)

    def _take_listener(self, end: socket.socket) -> None:
        with end:
            end.settimeout(10)
            try:
                _data, ancillary, _flags, _address = end.recvmsg(1, socket.CMSG_SPACE(4), socket.MSG_CMSG_CLOEXEC)
            except OSError:
                return
        for _level, _kind, data in ancillary:
            self.observe(struct.unpack("i", data[:4])[0], is_built=False)

    def observe(self, listener: int, *, is_built: bool = True) -> None:
        """Answer what the jar's filter asks. `is_built` is False if bubblewrap has the filter on while it works."""
        limits = self.spec.limits
        calls = None if self.spec.host_info == "host" else MachineCalls(limits.mem_bytes, limits.cpu_quota)
        self.observer = JarObserver(NotifyListener(listener), calls, is_built=is_built)

    # --- the gate ---

    def at_gate(self) -> bool:
        """The gate spoke, or died. Check the jar and set the last limits; False if it does not hold."""
        assert self.gate is not None
        word, ancillary, _flags, _address = self.gate.recvmsg(16, socket.CMSG_SPACE(12))
        if not word.startswith(b"ready"):
            self.problems = [self._why_not_ready()]
            return False
        pid = next(struct.unpack("3i", data)[0] for _level, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
        self.code_fd = os.pidfd_open(pid)
        return self.examine(pid)

    def examine(self, pid: int) -> bool:
        """Check the jar of the process that waits, and set the last limits; False if it does not hold."""
        meanwhile = self.observer.on_readable if self.observer else lambda: None
        jar = WaitingJar.of(pid, self._expectations(), meanwhile)
        self.init_fd, self.init_pid, self.root_fd = jar.init_fd, jar.init_pid, jar.root_fd
        self._finish_proc(pid)
        if not (self.spec.memory_group and self.group and self.group.counts_all):
            self.proc_fd = jar.open_proc()
        if self.observer:
            self.observer.looks_into(self.root_fd)
        if self.counts_io:
            with contextlib.suppress(OSError):
                self.io_fd = os.open(f"/proc/{jar.init_pid}/io", os.O_RDONLY | os.O_CLOEXEC)
        if self.spec.gateway_ports is not None:
            from belljar.backends.network.gateway import open_gateway

            self.listeners = open_gateway(pid, self.spec.gateway_ports, separate=self.cabled)
        if self.spec.publishes:
            from belljar.backends.contract import Listener as GatewayListener
            from belljar.backends.network.port_forward import open_port_forward

            forward, self.forward_pid = open_port_forward(pid)
            self.listeners += (GatewayListener("door", 0, forward),)
        self.problems = failures(jar)
        if not self.spec.observe_files:  # then nobody looks for a file in it
            os.close(self.root_fd)
            self.root_fd = -1
        processes = self.spec.limits.pids + 1 + (_SLACK if self.group else 0)  # the jar's pid 1 counts
        resource.prlimit(pid, resource.RLIMIT_NPROC, (processes, processes))
        self.deadline = float("inf")
        self.ready = not self.problems
        return self.ready

    def _finish_proc(self, pid: int) -> None:
        """Leave of the jar's /proc what the policy shows."""
        if self.spec.host_info != "host":
            self.kept = own_proc.hold_kept(self.root_fd)
            own_proc.hide(pid, machine.SHOWN[self.spec.host_info])

    def _expectations(self) -> dict[str, Any]:
        expect, opened = self.spec.expect, self.spec.gateway_ports is not None
        return {
            **expect,
            "absent": expect["absent"] + self.absent,
            "readonly": expect["readonly"] + self.covered,
            "kernel_uid": os.geteuid(),  # the stage's user is the jar's
            "interfaces": ["lo", JAR_INTERFACE] if opened and self.cabled else ["lo"],
            "routes": [] if not opened else [JAR_INTERFACE] if self.cabled else ["lo"],
        }

    def become_warm(self) -> None:
        """Let the gate become the interpreter, which waits for `go` in its place. Its files are there."""
        assert self.gate is not None
        self.is_warm = True
        with contextlib.suppress(BrokenPipeError):  # it died: seen by its pidfd
            self.gate.send(b"warm\n")

    def go(self) -> None:
        """Open the gate: the command is in its place, and the clock starts."""
        assert self.gate is not None
        self.started = time.monotonic()
        self.deadline = self.started + self.timeout_seconds
        try:
            self.gate.send(b"go\n")
            self.sampled = not self.spec.memory_group and not self.ended_by
        except BrokenPipeError:  # it died while it waited: nothing has run in it
            self.started = 0.0
            self.problems = ["the jar that waited for the run has died"]
        self.gate.close()
        self.gate = None

    def _why_not_ready(self) -> str:
        text = os.read(self.errors, 500).decode(errors="replace") if self._poll_errors() else ""
        return text or "bubblewrap ended before the jar was ready"

    def _poll_errors(self) -> bool:
        return bool(select.select([self.errors], [], [], 0.2)[0])

    # --- the end ---

    def sample(self) -> None:
        """Without a control group: look at what the jar uses, and end it past its limit."""
        seen = monitor.sample(self.proc_fd, limit_bytes=self.spec.limits.mem_bytes)
        self.peak_memory = max(self.peak_memory, seen.anon_bytes)
        self.peak_processes = max(self.peak_processes, seen.processes)
        self.cpu_seconds = max(self.cpu_seconds, seen.cpu_seconds)
        if seen.anon_bytes > self.spec.limits.mem_bytes:
            self.kill("oom")

    def usage(self) -> dict[str, float]:
        """What it uses now: as the group counts, and what that does not, as /proc tells."""
        counted = self.group.usage() if self.group else {}
        if not {"cpu_seconds", "memory_bytes", "pids"} <= counted.keys():
            seen = monitor.sample(self.proc_fd)
            seen_so = {"cpu_seconds": seen.cpu_seconds, "memory_bytes": seen.anon_bytes, "processes": seen.processes}
            return {**seen_so, **{name: counted[name] for name in seen_so if name in counted}}
        processes = max(1, counted["pids"] - self.spec.limits.helper_pids)
        return {"cpu_seconds": counted["cpu_seconds"], "memory_bytes": counted["memory_bytes"], "processes": processes}

    def end_jar(self) -> None:
        """The code has ended: end what it left behind."""
        self.dying = True
        self._kill_again_soon()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.init_fd, signal.SIGKILL)

    def kill(self, reason: str) -> None:
        """End every process of the jar. The first reason stands."""
        self.ended_by = self.ended_by or reason
        self.kill_everyone()

    def kill_everyone(self) -> None:
        """SIGKILL every process of the jar, from outside. To be called again until the jar is gone.

        When pid 1 dies the kernel kills the others, but pid 1 does that itself: it needs a processor, for which the
        others compete. So each of them is killed as well.
        """
        self.dying = True
        self.sampled = False
        for descriptor in (self.init_fd, self.pidfd):
            if descriptor >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        with contextlib.suppress(SandboxUnavailableError):
            self.thaw()  # some freezers hold back even this signal
        if self.started:
            with contextlib.suppress(OSError):
                self.group.kill_once() if self.group else killing.kill_once(self._members)
        self._kill_again_soon()

    def _kill_again_soon(self) -> None:
        self.deadline = time.monotonic() + self._patience
        self._patience = min(2 * self._patience, _MOST_AGAIN_SECONDS)

    def freeze(self) -> tuple[str, bool]:
        """Have every process stand still, and the clock: by what, and whether all do by now. To be asked until so.

        Raises ProcessLookupError if it is being ended: what was killed and is frozen then would not die.
        """
        if self.dying:
            raise ProcessLookupError(errno.ESRCH, "the run is being ended")
        if self._left is None:
            self._left = self.deadline - time.monotonic()
            self.deadline = float("inf")
        if self.group and self.group.freezer:
            return self.group.freezer, self.group.freeze()
        return "SIGSTOP to each process: there is no freezer here", stopping.stop(self._members)

    def thaw(self) -> None:
        """Let them go on, and the clock."""
        if self._left is None:
            return
        self.deadline = time.monotonic() + self._left
        self._left = None
        if self.group and self.group.freezer:
            self.group.thaw()
        else:
            stopping.go_on(self._members)

    def helpers(self) -> tuple[int, ...]:
        """The processes that the stage has started for it."""
        return self.pid, self.init_pid, self.forward_pid

    def _members(self) -> set[int]:
        """The jar's processes; none once pid 1 has ended, whose number may be another's by then."""
        found = stopping.tree(self.init_pid) if self.init_pid else set()
        return set() if not found or _has_ended(self.init_fd) else found

    def collect(self) -> Message:
        """Every process is gone: bubblewrap, the jar's pid 1, and with that one the whole namespace. What was used?"""
        _pid, status, usage = os.wait4(self.pid, 0)
        io: dict[str, int] = {}
        if self.init_pid:  # ours since bubblewrap ended: a stage is the reaper of what it starts
            io = _io(self.io_fd)
            with contextlib.suppress(ChildProcessError):
                _pid, _status, usage = os.wait4(self.init_pid, 0)
        counted = self.group.usage() if self.group else {}
        return {
            "exit_code": os.waitstatus_to_exitcode(status),
            "code_status": _exit_status(self.code_fd),
            "ended_by": self.ended_by,
            "problems": self.problems,
            "started": self.started > 0,
            "began": self.started,
            "seconds": time.monotonic() - self.started if self.started else 0.0,
            "cpu_seconds": max(counted.get("cpu_seconds", 0.0), usage.ru_utime + usage.ru_stime, self.cpu_seconds),
            "peak_memory_bytes": counted.get("memory_peak_bytes") or max(self.peak_memory, usage.ru_maxrss * 1024),
            "processes": self._most_processes(counted.get("pids_peak")),
            "bytes_read": io.get("rchar"),
            "bytes_written": io.get("wchar"),
            "oom_kills": counted.get("oom_kills", 0),
            "pids_refused": counted.get("pids_refused", 0),
            "observations": self.observer.report() if self.observer else [],
        }

    def _most_processes(self, in_group: float | None) -> float | None:
        """The code's own processes, at most at once: in the group there are also bubblewrap and the jar's pid 1."""
        if in_group:
            return max(1, in_group - self.spec.limits.helper_pids)
        return self.peak_processes or None

    def close(self) -> None:
        """Let go of every descriptor."""
        jar = (self.init_fd, self.root_fd, self.proc_fd, *self.kept)
        for descriptor in (self.pidfd, self.errors, self.code_fd, self.io_fd, *jar):
            if descriptor >= 0:
                os.close(descriptor)
        self.pidfd = self.errors = self.code_fd = self.io_fd = self.init_fd = self.root_fd = self.proc_fd = -1
        self.kept = []
        self.close_outputs()
        self.close_listeners()
        self._close_door()
        if self.gate:
            self.gate.close()
        if self.observer:
            self.observer.close()

    def _close_door(self) -> None:
        if self.forward_pid:
            os.kill(self.forward_pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.forward_pid, 0)
            self.forward_pid = 0

    def close_listeners(self) -> None:
        """The host has them, or nobody will: a gateway lives as long as its sockets do."""
        for listener in self.listeners:
            os.close(listener.descriptor)
        self.listeners = ()

    def close_outputs(self) -> None:
        """The host has its own ends now, or nobody will read."""
        for descriptor in self.outputs:
            if descriptor >= 0:
                os.close(descriptor)
        self.outputs = (-1, -1)


def _has_ended(pidfd: int) -> bool:
    """Return True if the process has ended, also if its parent has not waited for it yet."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def default_signals() -> None:
    """The launcher ignores some signals, and Python others; the code must find them as any program does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def memory_file(name: str, content: bytes) -> int:
    """A file that is nowhere, with this content, to be read from its start."""
    descriptor = os.memfd_create(f"belljar-{name}", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def place(descriptors: list[int]) -> None:
    """Give the descriptors the numbers 0, 1, 2, …, whatever numbers they had."""
    above = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 64) for descriptor in descriptors]
    for number, descriptor in enumerate(above):
        os.dup2(descriptor, number)
    os.closerange(len(descriptors), 1 << 20)


def _io(descriptor: int) -> dict[str, int]:
    """Bytes through read and write of all that pid 1 waited for: opened while it lived, answered by the zombie."""
    if descriptor < 0:
        return {}
    try:
        lines = os.pread(descriptor, 1024, 0).decode().splitlines()
    except OSError:
        return {}
    return {key: int(value) for key, _, value in (line.partition(": ") for line in lines)}


def _exit_status(pidfd: int) -> int | None:
    """The code's own wait status (Linux 6.15), which tells a signal from an exit code that looks like one."""
    if pidfd < 0:
        return None
    buffer = bytearray(64)
    struct.pack_into("Q", buffer, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(pidfd, _PIDFD_GET_INFO, buffer)
    except OSError:
        return None
    if not struct.unpack_from("Q", buffer, 0)[0] & _PIDFD_INFO_EXIT:
        return None
    status: int = struct.unpack_from("i", buffer, 60)[0]
    return status
