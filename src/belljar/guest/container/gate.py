"""Pid 1 of a container: waits for one command, runs it once, watches it to its end, and tells the host.

The gate is the jar's user, as the code is, but the code can't touch it: signals to pid 1 from inside are ignored, and
its memory and descriptors are closed to others (not dumpable). gVisor closes the memory only; there the code can end
the gate and with it itself, and what it writes to the host lacks the seal of the gate's frames (see `wire`). The code
has pipes of its own for its output, never the channel to the host. When the code's first process ends, everything else
in the container is killed before the end is told: so an end that was told is an end.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Any

from belljar.guest.container import observer, self_check, usage, wire

if TYPE_CHECKING:
    from belljar.guest.container.loopback_listener import LoopbackListener

_TICK_SECONDS = 0.02
_BACKLOG = 1 << 18
"""How much output may wait for the host before the code has to."""
_PR_SET_DUMPABLE = 4
_PAGE = 4096
_TRIES = 50
_MOST_TOLD = 4096
_OPEN_FILES = "RLIMIT_NOFILE"
_libc = ctypes.CDLL(None, use_errno=True)
_STARTED_WITH: frozenset[str] = frozenset()
"""The modules that a Python which has just started has; filled in by `start`."""


class Started:
    """In the code's own process: Python code that is still to be run, at the top of the stack (see `start`)."""

    def __init__(self, code: CodeType, main: dict[str, Any]) -> None:
        self.code = code
        self.main = main


class GateRun:
    """A command in progress, from the gate's side."""

    def __init__(self, request: dict[str, Any], pid: int, child: socket.socket) -> None:
        self.deadline = time.monotonic() + request["timeout_seconds"]
        self.meter = usage.UsageMeter(request["cpu_quota"])
        self.ended_by = ""
        self.status: int | None = None
        self.pid = pid
        self.outputs: dict[int, bytes] = {}
        self.stdin = -1
        self.stdin_waiting = bytearray()
        self.stdin_ended = False
        self.observer: observer.GateObserver | None = None
        self.observing = True
        """Whether any process is left that it could hear from."""
        self.child: socket.socket | None = child
        """Where the code's process, before it is the code, hands over its listener, or tells why it can't go on."""
        self.failure: dict[str, Any] | None = None
        self.names = {int(number): name for number, name in request["calls"].items()}
        self.observed = frozenset(request["observed"])

    def kill(self, reason: str) -> None:
        """End everything in the container but the gate."""
        self.ended_by = self.ended_by or reason
        # Only pid 1 means the container's processes by -1. With `container.pid: host` the gate is not, and it would be
        # everyone on the host whom its user may kill.
        for pid in [-1] if os.getpid() == 1 else _others_in_this_container():
            try:
                os.kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass


class Gate:
    """Waits at the channel, then at the run."""

    def __init__(self, channel: wire.FrameChannel, key: bytearray, listener: LoopbackListener | None) -> None:
        self._channel = channel
        self._key = key
        self._listener = listener
        self._children, self._child_ended = os.pipe()
        for end in (self._children, self._child_ended):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._child_ended, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def wait(self) -> Started | None:
        """Wait for the command; in the code's own process, returns what is to be run there.

        That process is there from the start, and waits as well: to fork takes gVisor 50 ms.
        """
        (stdin_end, stdin), (out, out_end), (err, err_end), (orders, orders_end) = (os.pipe() for _ in range(4))
        ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            self._key[:] = bytes(len(self._key))  # its only copy in this process: nothing was sealed yet
            for descriptor in (stdin, out, err, orders_end, ours.detach()):
                os.close(descriptor)
            return Child(stdin_end, out_end, err_end, theirs).wait(orders)
        for descriptor in (stdin_end, out_end, err_end, orders, theirs.detach()):
            os.close(descriptor)
        while (frame := self._channel.next()) is not None:
            request = json.loads(frame[1])
            if "kill" in request:  # before anything was to be run
                break
            if request.get("do") == "run":
                run = GateRun(request, pid, ours)
                self._order(orders_end, frame[1], [self._receive(size) for _name, size in request["files"]])
                run.outputs, run.stdin = {out: wire.STDOUT, err: wire.STDERR}, stdin
                self._start(run, takes_stdin=request["stdin"])
                break
        return None

    # --- starting ---

    def _start(self, run: GateRun, *, takes_stdin: bool) -> None:
        self._channel.seal(wire.Seal(self._key))
        for descriptor in (*run.outputs, run.stdin):
            os.set_blocking(descriptor, False)
        if not takes_stdin:
            os.close(run.stdin)
            run.stdin = -1
        self._watch(run)

    def _order(self, orders: int, request: bytes, volume_server: list[bytes]) -> None:
        """Hand the command to the process that waits for it."""
        for part in (len(request).to_bytes(8, "big"), request, *volume_server):
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(orders, rest) :]
        os.close(orders)

    def _receive(self, size: int) -> bytes:
        content = bytearray()
        while len(content) < size:
            frame = self._channel.next()
            if frame is None or frame[0] != wire.DATA:
                raise SystemExit(1)
            content += frame[1]
        return bytes(content)

    # --- watching ---

    def _watch(self, run: GateRun) -> None:
        while run.status is None:
            self._turn(run)
        while run.child is not None:
            self._hear_child(run)
        run.kill(run.ended_by)
        self._bury_everyone(run)
        if self._listener is not None:
            self._listener.look_once_more()
        for descriptor in list(run.outputs):
            while self._forward(run, descriptor):
                self._channel.drain()
        self._tell(run)
        while not self._channel.ended:  # the host reads what is left, and lets go
            self._channel.frames.clear()
            self._channel.read()

    def _turn(self, run: GateRun) -> None:
        self._obey_all(run)  # what came together with the command, at first
        poll = select.poll()
        poll.register(self._channel.incoming, select.POLLIN)
        poll.register(self._children, select.POLLIN)
        if self._channel.backlog:
            poll.register(self._channel.outgoing, select.POLLOUT)
        if self._channel.backlog < _BACKLOG:
            for descriptor in run.outputs:
                poll.register(descriptor, select.POLLIN)
        if run.stdin_waiting and run.stdin >= 0:
            poll.register(run.stdin, select.POLLOUT)
        if run.observer is not None and run.observing:
            poll.register(run.observer.fileno(), select.POLLIN)
        if run.child is not None:
            poll.register(run.child.fileno(), select.POLLIN)
        if self._listener is not None:
            self._listener.register(poll, may_read=self._channel.backlog < _BACKLOG)
        for descriptor, event in poll.poll(_TICK_SECONDS * 1000):
            if self._listener is None or not self._listener.handle(descriptor, event):
                self._handle(run, descriptor)
        if run.meter.new_oom_kills() and not run.ended_by:
            run.kill("oom")
        if time.monotonic() > run.deadline and not run.ended_by and not self._has_more_time(run):
            run.kill("timeout")
        self._bury(run)

    def _has_more_time(self, run: GateRun) -> bool:
        """Whether the whole container stood still meanwhile: the host says so before it lets it go on."""
        poll = select.poll()
        poll.register(self._channel.incoming, select.POLLIN)
        if poll.poll(0):
            self._handle(run, self._channel.incoming)
        self._obey_all(run)
        return bool(time.monotonic() <= run.deadline)

    def _handle(self, run: GateRun, descriptor: int) -> None:
        if descriptor == self._channel.incoming:
            self._channel.read()
            if self._channel.ended:
                run.kill("abandoned")
        elif descriptor == self._channel.outgoing:
            self._channel.flush()
        elif descriptor in run.outputs:
            self._forward(run, descriptor)
        elif descriptor == run.stdin:
            self._feed(run)
        elif run.observer is not None and descriptor == run.observer.fileno():
            run.observing = run.observer.on_readable()
        elif run.child is not None and descriptor == run.child.fileno():
            self._hear_child(run)

    def _obey_all(self, run: GateRun) -> None:
        for kind, payload in self._channel.frames:
            self._obey(run, kind, payload)
        self._channel.frames.clear()

    def _obey(self, run: GateRun, kind: bytes, payload: bytes) -> None:
        if kind == wire.NET and self._listener is not None:
            self._listener.hear(payload)
        elif kind == wire.STDIN:
            run.stdin_waiting += payload
            run.stdin_ended = run.stdin_ended or not payload
            self._feed(run)
        elif kind == wire.JSON:
            order = json.loads(payload)
            run.deadline += order.get("stood_still", 0.0)
            if "kill" in order:
                run.kill(str(order["kill"]))
            elif "usage" in order:
                self._channel.send(wire.message({"usage": run.meter.now()}))

    def _feed(self, run: GateRun) -> None:
        """Give the code its input; what it has taken is told, so that the host sends more."""
        taken = 0
        while run.stdin_waiting and run.stdin >= 0:
            try:
                written = os.write(run.stdin, run.stdin_waiting[: wire.CHUNK])
            except BlockingIOError:
                break
            except OSError:  # the code has closed it
                written = len(run.stdin_waiting)
                os.close(run.stdin)
                run.stdin = -1
            del run.stdin_waiting[:written]
            taken += written
        if run.stdin_ended and not run.stdin_waiting and run.stdin >= 0:
            os.close(run.stdin)
            run.stdin = -1
        if taken:
            self._channel.send(wire.message({"took": taken}))

    def _forward(self, run: GateRun, descriptor: int) -> bool:
        """Pass on a piece of output. What was written after the kernel killed for memory is not: the run is over."""
        try:
            data = os.read(descriptor, wire.CHUNK)
        except BlockingIOError:
            return False
        if not data:
            os.close(descriptor)
            del run.outputs[descriptor]
            return False
        if run.meter.new_oom_kills() and run.status is None:
            if not run.ended_by:
                run.kill("oom")
            return True
        self._channel.send(wire.encode(run.outputs[descriptor], data))
        return True

    def _hear_child(self, run: GateRun) -> None:
        assert run.child is not None
        data, descriptors, _flags, _address = socket.recv_fds(run.child, _MOST_TOLD, 1)
        if descriptors:
            answering = self._listener.answering if self._listener is not None else ""
            run.observer = observer.GateObserver(descriptors[0], run.names, run.observed, answering)
        elif data:
            run.failure = json.loads(data)
        else:  # it is the code now, or has ended
            run.child.close()
            run.child = None

    # --- the end ---

    def _bury(self, run: GateRun) -> None:
        """Reap whoever has ended; pid 1 inherits every orphan, and an unburied one counts as a process."""
        try:
            os.read(self._children, 4096)
        except BlockingIOError:
            pass
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == run.pid:
                run.status = status

    def _bury_everyone(self, run: GateRun) -> None:
        """Until nobody is left. Whoever was born while all were killed (not on Linux) is killed in the next turn."""
        while True:
            try:
                if os.waitpid(-1, os.WNOHANG)[0] == 0:
                    select.poll().poll(1)
                    run.kill(run.ended_by)
            except ChildProcessError:
                return

    def _tell(self, run: GateRun) -> None:
        end = {
            "status": run.status,
            "ended_by": run.ended_by,
            "cpu_seconds": run.meter.cpu_seconds(),
            "peak_memory_bytes": run.meter.peak_memory_bytes(),
            "oom_kills": run.meter.new_oom_kills(),
            "pids_refused": run.meter.new_pids_refused(),
            "observations": run.observer.report() if run.observer is not None else [],
            "failure": run.failure,
        }
        self._channel.send(wire.message({"end": end}))
        self._channel.drain()


def _others_in_this_container() -> list[int]:
    """The processes that see the same mounts, which no process of the host's does."""
    mounts = os.readlink("/proc/self/ns/mnt")
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and int(name) != os.getpid() and os.readlink(f"/proc/{name}/ns/mnt") == mounts:
                found.append(int(name))
        except OSError:  # gone, or another user's
            continue
    return found


class Child:
    """The code's first process, between fork and the code. Until it is the code, nothing else can look into it."""

    def __init__(self, stdin: int, stdout: int, stderr: int, gate: socket.socket) -> None:
        self._descriptors = (stdin, stdout, stderr)
        self._gate = gate
        self._request: dict[str, Any] = {}
        self._files: dict[str, bytes] = {}

    def wait(self, orders: int) -> Started:
        """Get ready, wait for the command, and turn into it."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        above = [os.dup(descriptor) for descriptor in (*self._descriptors, self._gate.detach(), orders)]
        for wanted, descriptor in enumerate(above):
            os.dup2(descriptor, wanted, inheritable=wanted < 3)
        os.closerange(5, 4096)
        with open(4, "rb") as file:
            size = file.read(8)
            if len(size) < 8:  # the gate is gone, and nothing was to be run
                os._exit(0)
            self._request = json.loads(file.read(int.from_bytes(size, "big")))
            self._files = {name: file.read(length) for name, length in self._request["files"]}
        return self._become(socket.socket(fileno=3))

    def _become(self, gate: socket.socket) -> Started:
        """Turn into the code: by exec, or, for Python that is already up, by returning it."""
        request = self._request
        in_process = bool(request["python"])
        signal.signal(signal.SIGINT, signal.default_int_handler if in_process else signal.SIG_DFL)
        if not in_process:
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
        if not request["stdin"]:
            nothing = os.open("/dev/null", os.O_RDONLY)
            os.dup2(nothing, 0)
            os.close(nothing)
        _libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
        try:
            self._settle()
            self._seal(gate)
        except OSError as error:
            why = f"{error.strerror}: {error.filename}" if error.filename else error.strerror or str(error)
            gate.send(json.dumps({"errno": error.errno, "message": why[: _MOST_TOLD // 8]}).encode())
            os._exit(125)
        gate.close()
        if not in_process:
            self._exec()
        return self._python()

    def _settle(self) -> None:
        request = self._request
        os.umask(0o022)
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
        directory = request["code_directory"]
        for name, content in self._files.items():
            self._use_the_reserve(directory, name, len(content))
            self._patiently(partial(self._write, os.path.join(directory, name), content))
        home = request["env"].get("HOME")
        if home and home.startswith("/tmp/"):
            self._patiently(partial(os.makedirs, home, exist_ok=True))
        os.chmod(directory, 0o555)  # noqa: S103 - to be read
        os.chdir(request["workdir"])
        for name in request["rlimits"]:
            if name != _OPEN_FILES:
                self._limit(name)

    def _limit(self, name: str) -> None:
        which, value = getattr(resource, name), self._request["rlimits"][name]
        hard = resource.getrlimit(which)[1]
        limit = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(which, (limit, limit))

    def _write(self, path: str, content: bytes) -> None:
        flags = os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_NOFOLLOW
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), 0o444)

    def _patiently(self, make: Callable[[], None]) -> None:
        """Try again while there is no room: what was just given back, gVisor may free a moment later."""
        for left in reversed(range(_TRIES)):
            try:
                make()
            except OSError as error:
                if error.errno != errno.ENOSPC or not left:
                    raise
                time.sleep(_TICK_SECONDS)
            else:
                return

    def _use_the_reserve(self, directory: str, name: str, taken: int) -> None:
        """Free as much of it as the code's file takes: what the code finds free is its own, and no more.

        By truncating and renaming, which gVisor does at once; what is removed there may come back late.
        """
        (kept, _), (room, size) = self._request["reserves"].items()
        try:
            os.truncate(os.path.join(directory, room), max(0, size - taken - _PAGE + 1))
            os.rename(os.path.join(directory, kept), os.path.join(directory, name))
        except FileNotFoundError:
            return  # directories without a reserve, because there was no room for one

    def _seal(self, gate: socket.socket) -> None:
        """The filters. From the first on, the gate answers; it is at its loop already."""
        if self._request["notify_filter"]:
            listener = observer.install(bytes.fromhex(self._request["notify_filter"]), listener=True)
            socket.send_fds(gate, [b"x"], [listener])
            os.close(listener)
        if _OPEN_FILES in self._request["rlimits"]:
            # Only now: the kernel compares this limit with the descriptors that the user's other runs have in flight.
            self._limit(_OPEN_FILES)
        if self._request["jar_filter"]:
            observer.install(bytes.fromhex(self._request["jar_filter"]), listener=False)

    def _exec(self) -> None:
        argv, env = self._request["argv"], self._request["env"]
        code = 127
        try:
            os.execvpe(argv[0], argv, env)  # noqa: S606 - that is the point
        except FileNotFoundError:
            os.write(2, os.fsencode(f"belljar: {argv[0]}: not found\n"))
        except (OSError, ValueError) as error:
            code = 126
            os.write(2, os.fsencode(f"belljar: {argv[0]}: {getattr(error, 'strerror', None) or error}\n"))
        os._exit(code)

    def _python(self) -> Started:
        """What `python FILE ARGUMENTS…` would have set up, in a Python that is up already."""
        path, *arguments = self._request["argv"][1:]
        env = self._request["env"]
        os.environ.clear()
        os.environ.update(env)
        sys.argv[:] = [path, *arguments]
        sys.orig_argv[:] = self._request["argv"]
        beside = [entry for entry in env.get("PYTHONPATH", "").split(":") if entry]
        sys.path[:] = [os.path.dirname(path), *beside, *(entry for entry in sys.path if entry)]
        sys.path_importer_cache.clear()
        sys.excepthook = _without_us
        for name in set(sys.modules) - _STARTED_WITH - {"__main__"}:
            del sys.modules[name]
        main = type(sys)("__main__")
        main.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
        sys.modules["__main__"] = main
        with open(path, "rb") as file:
            source = file.read()
        return Started(compile(source, path, "exec", dont_inherit=True), main.__dict__)


def _without_us(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an uncaught error as Python does, without the frames in which belljar started the code."""
    while trace is not None and trace.tb_frame.f_code.co_filename in ("<belljar>", "<string>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _receive_into(place: bytearray, incoming: int) -> None:
    """Fill the place, and nothing but it: no copy of what was read is left in memory."""
    with memoryview(place) as view:
        taken = 0
        while taken < len(place):
            with view[taken:] as rest:
                size = os.readv(incoming, [rest])
            if not size:
                os._exit(125)
            taken += size


def start(started_with: frozenset[str]) -> Started | None:
    """The container's program. In pid 1 it never returns; in the code's process it returns what is left to run."""
    global _STARTED_WITH  # noqa: PLW0603 - known only at the very start
    _STARTED_WITH = started_with
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    incoming, outgoing = os.dup(0), os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    key = bytearray(wire.KEY_SIZE)
    _receive_into(key, incoming)
    channel = wire.FrameChannel(incoming, outgoing)
    frame = channel.next()
    if frame is None:
        os._exit(0)
    config = json.loads(frame[1])
    listener = _open_loopback_listener(channel, config["relay"]) if config.get("relay") else None
    found = self_check.look(config["absent"], config["quota"])
    channel.send(wire.message({"ready": {**found, "unheard": listener.unheard if listener is not None else []}}))
    channel.drain()
    if config["role"] == "depot":
        from belljar.guest.container import volume_server

        volume_server.VolumeServer(channel, config["quota"], config["live"]).serve()
        os._exit(0)
    started = Gate(channel, key, listener).wait()
    if started is None:
        os._exit(0)
    return started


def _open_loopback_listener(channel: wire.FrameChannel, ports: list[int]) -> LoopbackListener:
    from belljar.guest.container.loopback_listener import LoopbackListener  # sent only where it is needed

    return LoopbackListener(lambda payload: channel.send(wire.encode(wire.NET, payload)), ports)
