"""A run in a container, from belljar's side: a thread that passes input and output on, and hears of the end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from belljar.backends.container.engine.faults import fault
from belljar.backends.container.jar.attached import Attached, ForgedFrameError
from belljar.backends.container.jar.ending import FirstProcess
from belljar.backends.container.jar.out_of_memory import told_late
from belljar.backends.contract import End, Frozen, Listener, Observation
from belljar.backends.network.addresses import ALWAYS_HEARD
from belljar.errors import BelljarError, SandboxUnavailableError
from belljar.guest.container import wire
from belljar.guest.container.relay import Exit, hand_over

_AHEAD = 1 << 18
"""How much input is sent before the code has taken any."""
_GRACE_SECONDS = 3.0
"""How long something that has to answer may take."""
_GATE_SECONDS = 0.25
"""After a kill, or the end of its time: how long the gate may take to tell of the end. Then belljar ends it."""
_SERVE_SECONDS = 60.0
"""How long the code may have to wait for its listeners to be served, before its time begins."""
_LOOK_SECONDS = 1.0
"""When a run has lasted so long, or half of its time, its processes are looked up."""
_LOST_SECONDS = 15.0
"""How long a container may outlast SIGKILL before the run is given up, with an error: there is no end to tell of."""
_MOST_UNSENT = 1 << 22
"""Of carried connections: how much may wait for the container, whatever it says that it took."""
_MOST_OWED = 1 << 25
"""What waits for a container that goes on to talk and does not listen: no gate does that."""
_USAGE_SECONDS = 1.0
"""How long the gate may take to tell what is used; one that stands still tells nothing."""
_ONLY_THE_HOST_SAYS = ("internal", "gate", "unrecorded")
"""Reasons for an end that stand for a fault of the machine. A message out of a container can't claim one."""
_USED = ("cpu_seconds", "memory_bytes", "processes")
_LARGEST = float(1 << 60)
_KILL_SECONDS = 10.0
"""How long the engine may take for that."""
_ENGINE_TRY = 4
"""From which try on the engine is asked to end a container, whose processes belljar itself has killed before."""
_TURN_SECONDS = 0.02
_PAUSE_SECONDS, _PAUSE_TRIES = 30.0, 5


class _OutlivedError(SandboxUnavailableError):
    """Processes of a run could not be ended."""


class ContainerProcess:
    """One run. `ended` is called once, from the thread, when the container is not needed any more."""

    def __init__(
        self,
        container: Attached,
        *,
        stdin: int | None,
        timeout_seconds: float,
        order: bytes,
        listeners: tuple[Listener, ...] = (),
        relays: bool = False,
        kept: str = "",
        reaches: bool = False,
        ended: Callable[[ContainerProcess], None],
    ) -> None:
        self._container = container
        self._exit: Exit | None = None
        self._relay: socket.socket | None = None
        self.listeners = listeners + (self._open_exit() if relays else ())
        self._order = order
        """What tells the gate to run the code, until it is sent."""
        self._ended = ended
        self._kept = kept
        self._reaches = reaches
        """Whether belljar itself may signal the container's processes."""
        self._timeout_seconds = timeout_seconds
        self._deadline = time.monotonic() + timeout_seconds + _SERVE_SECONDS
        self._outside: FirstProcess | None = None
        """Its processes, once they are known."""
        self._looking: threading.Thread | None = None
        self._tries = 0
        """How often that was tried."""
        self._given_up_at = 0.0
        self._killed = ""
        self._began = 0.0
        self._used: dict[str, float] = {}
        self._used_told = threading.Event()
        self._left: float | None = None
        """While it is paused: how much of its time there was."""
        self._frozen_at = 0.0
        self._told: dict[str, Any] | None = None
        self.in_order = False
        """Whether the gate itself told of the end: nothing of the run is alive."""
        self._fault: BelljarError | None = None
        self._over = threading.Event()
        self._end_reader, self._end_writer = os.pipe2(os.O_CLOEXEC)
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.stdout, out = os.pipe2(os.O_CLOEXEC)
        self.stderr, err = os.pipe2(os.O_CLOEXEC)
        self._outputs = {wire.STDOUT: out, wire.STDERR: err}
        self._stdin = -1 if stdin is None else os.dup(stdin)
        self._credit = _AHEAD
        self._lock = threading.Lock()
        self._pausing = threading.Lock()
        self._outbox = bytearray()

    def _open_exit(self) -> tuple[Listener, ...]:
        """The way of connections that the gate carries: each is handed to whoever has the first of these listeners.

        With the second, the host hands over some of its own, to try what must be refused.
        """
        self._relay, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._relay.setblocking(False)  # noqa: FBT003 - a proxy that takes nothing more refuses, and holds up nobody
        self._exit = Exit(lambda payload: self._queue(wire.encode(wire.NET, payload)), partial(hand_over, self._relay))
        canary = Listener("canary-relay", ALWAYS_HEARD, self._relay.dup().detach())
        return Listener("relay", 0, theirs.detach()), canary

    def start(self) -> None:
        """Begin to listen; and have the code started, unless its listeners have to be served first.

        Raises:
            BelljarError: the container is gone; this object is of no use then.
        """
        if not self.listeners:
            order, self._order = self._order, b""
            self._start_clock()
            self._container.send(order)
        threading.Thread(target=self._run, name=f"belljar {self._container.name}", daemon=True).start()

    def begin(self) -> None:
        """Let the code start, which waits while its listeners are handed on."""
        order, self._order = self._order, b""
        self._start_clock()
        self._queue(order)

    def _start_clock(self) -> None:
        self._began = time.monotonic()
        if not self._killed:
            self._deadline = self._began + self._timeout_seconds + _GATE_SECONDS

    def _queue(self, frames: bytes) -> None:
        """Have the thread send it. Nobody else writes from the start on: frames come whole, and the thread never waits
        to write, because it has to read.
        """
        with self._lock:
            self._outbox += frames
        self._wake()

    def _flush(self) -> None:
        with self._lock:
            taken = self._container.offer(self._outbox)
            del self._outbox[:taken]

    @property
    def has_ended(self) -> bool:
        """Whether the end was told."""
        return self._over.is_set()

    def wait(self) -> None:
        """Until it has ended, for a bounded time."""
        self._over.wait(3 * _GRACE_SECONDS)

    # --- the contract ---

    def fileno(self) -> int:
        """Readable when the run has ended and all of its output is in the pipes."""
        return self._end_reader

    def kill(self, reason: str) -> None:
        """End everything in the container but the gate, which tells of the end."""
        if self._over.is_set() or self._killed:
            return
        self._killed = reason
        self._deadline = min(self._deadline, time.monotonic() + _GATE_SECONDS)
        self._queue(wire.message({"kill": reason}))

    def freeze(self) -> Frozen:
        """Have the engine pause the container, the gate with it."""
        with self._pausing:
            if self._left is None:
                if self._over.is_set() or self._killed:  # the gate has to be awake to end it
                    raise ProcessLookupError(errno.ESRCH, "the run has ended, or is being ended")
                self._pause()
                self._left, self._deadline = self._deadline - time.monotonic(), float("inf")
                self._frozen_at = time.monotonic()
        return Frozen(f"{self._container.engine.name} pause")

    def _pause(self) -> None:
        """More than once: an engine gives up on processes that are born faster than it looks."""
        engine, name = self._container.engine, self._container.name
        for _ in range(_PAUSE_TRIES):
            code, _out, complaint = engine.attempt("pause", name, timeout=_PAUSE_SECONDS)
            if not code:
                return
        raise fault(engine, complaint, code)

    def thaw(self) -> None:
        """Let it go on, with as much time as it had. The gate has a clock of its own, and finds there what to add."""
        with self._pausing:
            if self._left is None:
                return
            self._queue(wire.message({"stood_still": time.monotonic() - self._frozen_at}))
            until = time.monotonic() + _GRACE_SECONDS
            while self._outbox and time.monotonic() < until:
                time.sleep(0.001)
            self._container.engine.run("unpause", self._container.name, timeout=_PAUSE_SECONDS)
            self._deadline, self._left = time.monotonic() + self._left, None
            self._wake()

    def usage(self) -> dict[str, float]:
        """What it uses now, as the gate tells it; nothing where it can't."""
        if not self._began or self._over.is_set():
            return {}
        self._used_told.clear()
        self._queue(wire.message({"usage": True}))
        return self._used if self._used_told.wait(_USAGE_SECONDS) else {}

    def end(self) -> End:
        """Wait for the end, and tell it."""
        self._over.wait()
        if self._fault is not None:
            raise self._fault
        assert self._told is not None
        told = self._told
        status = told["status"]
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
        return End(
            exit_code=128 + number if number is not None else os.WEXITSTATUS(status),
            signal=number,
            ended_by=told["ended_by"],
            problems=(),
            started=True,
            cpu_seconds=told["cpu_seconds"],
            peak_memory_bytes=told["peak_memory_bytes"] or None,
            processes=None,
            bytes_read=None,
            bytes_written=None,
            oom_kills=told["oom_kills"],
            pids_refused=told["pids_refused"],
            observations=tuple(Observation(**seen) for seen in told["observations"]),
            kept=self._kept,
            began=self._began,
        )

    def close(self) -> None:
        """Let go; a run that is still alive is ended."""
        self.kill("abandoned")
        for descriptor in (self.stdout, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = -1
        for listener in self.listeners:  # nobody was to serve them
            os.close(listener.descriptor)
        self.listeners = ()
        self._over.wait(2 * _GRACE_SECONDS)
        if self._end_reader >= 0:
            os.close(self._end_reader)
            self._end_reader = -1

    # --- the thread ---

    def _run(self) -> None:
        try:
            while self._told is None:
                self._turn()
        except ForgedFrameError:
            for kind, payload in self._container.frames():  # what the gate still said
                self._hear(kind, payload)
            self._killed = self._killed or "forged"
            try:
                self._wait_for_its_end()
                self._told = _ended_without_a_word(self._killed)
            except BelljarError as error:
                self._fault = error
        except BelljarError as error:
            self._told, self._fault = self._what_became_of_it(error)
        except BaseException as error:  # noqa: BLE001 - told to whoever waits for the end
            self._fault = SandboxUnavailableError(f"the run was lost: {type(error).__name__}: {error}")
        finally:
            self._finish()

    def _turn(self) -> None:
        if self._killed and self._left is not None and not self._outbox:
            self._let_go_on()
            self._deadline = time.monotonic() + _GATE_SECONDS
        descriptors = [self._container.stdout, self._wake_reader]
        if self._stdin >= 0 and self._credit > 0:
            descriptors.append(self._stdin)
        left = self._deadline - time.monotonic()
        if left <= 0:
            if self._tries >= _ENGINE_TRY and self._outside is not None and self._outside.has_ended():
                self._told = _ended_without_a_word(self._killed)  # verified, though the engine does not tell of it
                return
            self._end_it_from_outside()
            left = max(0.0, self._deadline - time.monotonic())
        left = min(left, self._look_up())
        patience = None if left == float("inf") else 1000 * left
        poll = select.poll()  # a program may have more descriptors open than select can tell apart
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        if self._outbox:
            poll.register(self._container.stdin, select.POLLOUT)
        if self._exit is not None:
            self._exit.register(poll, may_read=len(self._outbox) < _MOST_UNSENT)
        events = dict(poll.poll(patience))
        ready = events.keys()
        if self._exit is not None:
            for descriptor in ready - {*descriptors, self._container.stdin}:
                self._exit.handle(descriptor, events[descriptor])
        if self._container.stdin in ready:
            self._flush()
        if self._wake_reader in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_reader, 4096)
        if self._stdin in ready:
            self._send_input()
        if self._container.stdout in ready:
            self._container.read()
        for kind, payload in self._container.frames():
            self._hear(kind, payload)

    def _look_up(self) -> float:
        """Once a run lasts, find its processes, to have them when its time is over; seconds until that is to be done.

        The engine is asked, which takes a moment, and more of it on a busy machine.
        """
        if not self._reaches or not self._began or self._looking is not None:
            return float("inf")
        left = self._began + min(_LOOK_SECONDS, self._timeout_seconds / 2) - time.monotonic()
        if left > 0:
            return left
        self._looking = threading.Thread(target=self._find_processes, name="belljar look", daemon=True)
        self._looking.start()
        return float("inf")

    def _find_processes(self) -> None:
        found = FirstProcess.of(self._container)
        with self._lock:
            if self._over.is_set() or self._outside is not None:
                if found is not None:
                    found.close()
            else:
                self._outside = found

    def _hear(self, kind: bytes, payload: bytes) -> None:
        if kind in self._outputs:
            self._pass_on(kind, payload)
            return
        if kind == wire.NET:
            if self._exit is not None:
                self._exit.hear(payload)
                if len(self._outbox) > _MOST_OWED:
                    raise ForgedFrameError("the container's program talks and does not listen")
            return
        message = json.loads(payload)
        self._credit += int(message.get("took", 0))
        if "usage" in message:
            self._used = _numbers(message["usage"])
            self._used_told.set()
        if "end" in message:
            self._told = message["end"]
            self._told["ended_by"] = believed(self._told["ended_by"])
            if self._tries and self._told["status"] == signal.SIGKILL:  # by us, and the gate may not know why
                self._told["ended_by"] = self._told["ended_by"] or self._killed
            self.in_order = True
            if failure := self._told["failure"]:
                self._fault = not_started(failure["errno"], failure["message"])

    def _pass_on(self, kind: bytes, payload: bytes) -> None:
        view = memoryview(payload)
        try:
            while view:
                view = view[os.write(self._outputs[kind], view) :]
        except BrokenPipeError:  # nobody reads any more
            return

    def _send_input(self) -> None:
        try:
            data = os.read(self._stdin, min(wire.CHUNK, self._credit))
        except BlockingIOError:
            return
        self._credit -= len(data)
        self._queue(wire.encode(wire.STDIN, data))
        if not data:
            self._close_input()

    def _close_input(self) -> None:
        if self._stdin >= 0:
            os.close(self._stdin)
            self._stdin = -1

    def _end_it_from_outside(self) -> None:
        """The gate did not do it in time: it gets no processor, the code has it stopped, or the channel is stuck.

        At first everything but the gate is killed, which can then tell of the end; from then on everything, and where
        belljar may not do that, the engine does. Each try is followed by a moment in which the end can be heard of.

        Raises SandboxUnavailableError if the container outlasts that.
        """
        self._killed = self._killed or "timeout"
        self._given_up_at = self._given_up_at or time.monotonic() + _LOST_SECONDS
        if time.monotonic() > self._given_up_at:
            raise _OutlivedError(
                f"the container {self._container.name} outlived SIGKILL",
                hint=f"{self._container.engine.name} rm --force {self._container.name}",
            )
        self._let_go_on()
        if self._outside is None and self._reaches:
            if self._looking is not None:
                self._looking.join(_GRACE_SECONDS)
            if self._outside is None:
                self._find_processes()
        self._tries += 1
        if self._outside is not None and self._tries == 1 and self._container.engine.runtime != "runsc":
            self._outside.kill_code()
        elif self._outside is not None and self._tries < _ENGINE_TRY:
            self._outside.kill_all()
        else:
            with contextlib.suppress(BelljarError):  # an engine that hangs is asked again
                self._container.engine.attempt("kill", self._container.name, timeout=_KILL_SECONDS)
        self._deadline = time.monotonic() + _GATE_SECONDS

    def _wait_for_its_end(self) -> None:
        """End it from outside, and return when it has ended. Raises SandboxUnavailableError if it does not."""
        self._tries = max(self._tries, 1)  # the gate is not believed any more
        while not self._is_gone():
            self._end_it_from_outside()
            time.sleep(_TURN_SECONDS)

    def _is_gone(self) -> bool:
        """Return True if the container has ended for certain."""
        if self._outside is not None:
            return self._outside.has_ended()
        try:
            return not _is_running(self._container.state())
        except BelljarError:
            return False

    def _let_go_on(self) -> None:
        """It was killed while it is paused: engines kill nothing that is. What goes on finds the order to end."""
        if self._left is not None:
            self._container.engine.attempt("unpause", self._container.name, timeout=_PAUSE_SECONDS)
            self._left = None

    def _what_became_of_it(self, error: BelljarError) -> tuple[dict[str, Any] | None, BelljarError | None]:
        """The container ended without a word: killed for its memory, by us, or lost."""
        try:
            if self._tries and not isinstance(error, _OutlivedError):
                self._wait_for_its_end()  # the engine's client may be gone before the container
                return _ended_without_a_word(self._killed), None
            state = self._container.state()
        except BelljarError as problem:
            return None, problem if self._tries else error
        if _is_running(state):
            return None, error  # the engine's client was lost, not the container
        by = "oom" if state.get("OOMKilled") else self._killed
        if not by and told_late(self._container, state):
            by = "oom"
        if not by and self._container.engine.runtime == "runsc":  # there, pid 1 is safe from no signal of the code's
            by = "container"
        if not by:
            return None, error
        return _ended_without_a_word(by), None

    def _finish(self) -> None:
        self.let_go()
        self._ended(self)

    def let_go(self) -> None:
        """It is over: close every end but those that the caller reads from."""
        self._close_input()
        if self._exit is not None and self._relay is not None:
            self._exit.close()
            self._relay.close()
        for descriptor in self._outputs.values():
            os.close(descriptor)
        self._outputs = {}
        with self._lock:
            if self._outside is not None:
                self._outside.close()
                self._outside = None
            self._over.set()
        os.close(self._end_writer)
        for descriptor in (self._wake_reader, self._wake_writer):
            os.close(descriptor)
        self._wake_writer = -1

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_writer, b"x")


def believed(reason: str) -> str:
    """Return the reason for an end as the container's program told it; `forged` if only the host may say so."""
    return "forged" if reason in _ONLY_THE_HOST_SAYS else reason


def not_started(number: int | None, message: str | None) -> SandboxUnavailableError:
    """What to say of code that never began, because its directories or filters could not be made ready for it."""
    told = f"the code could not be started: {message}"
    if number == errno.ENOSPC:
        hint = "remove files with files.remove, or open a new Sandbox with more fs.size_mb and fs.inodes"
        return SandboxUnavailableError(told, hint=hint, fault="code")
    return SandboxUnavailableError(told, hint="run `belljar doctor`, or open a new Sandbox")


def _ended_without_a_word(by: str) -> dict[str, Any]:
    """What there is to tell of a run when nobody could look at its end."""
    return {
        "status": int(signal.SIGKILL),
        "ended_by": by,
        "cpu_seconds": 0.0,
        "peak_memory_bytes": 0,
        "oom_kills": int(by == "oom"),
        "pids_refused": 0,
        "observations": [],
        "failure": None,
    }


def _is_running(state: Mapping[str, Any]) -> bool:
    return bool(state.get("Running") or state.get("Status") in ("running", "created"))


class RefusedProcess:
    """A run that was not started, because the container is not what it should be."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = tuple(problems)
        self.listeners: tuple[Listener, ...] = ()
        pipes = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        self.stdout, self.stderr, self._reader = (reader for reader, _writer in pipes)
        for _reader, writer in pipes:
            os.close(writer)

    def begin(self) -> None:
        """There is nothing to start."""

    def fileno(self) -> int:
        """Readable at once."""
        return self._reader

    def kill(self, reason: str) -> None:
        """There is nothing to kill."""

    def freeze(self) -> Frozen:
        """There is nothing that moves."""
        return Frozen("nothing: the code was not started")

    def thaw(self) -> None:
        """There is nothing to let go on."""

    def end(self) -> End:
        """What the canaries found."""
        nothing = {"cpu_seconds": 0.0, "oom_kills": 0, "pids_refused": 0}
        usage = dict.fromkeys(("peak_memory_bytes", "processes", "bytes_read", "bytes_written"))
        return End(125, None, "canary", self._problems, started=False, observations=(), **nothing, **usage)  # type: ignore[arg-type]

    def close(self) -> None:
        """Let go."""
        for descriptor in (self.stdout, self.stderr, self._reader):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = self._reader = -1


def _numbers(told: object) -> dict[str, float]:
    """What a gate says that is used, if it is what a gate would say: the code may have taken its place."""
    if not isinstance(told, dict):
        return {}
    found = {name: told.get(name) for name in _USED}
    if not all(isinstance(value, int | float) and 0 <= value < _LARGEST for value in found.values()):
        return {}
    return found  # type: ignore[return-value]
