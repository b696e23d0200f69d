"""A session's run, seen from outside: the supervisor in its jar, what it says sorted by interpreter, and its end."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

import belljar.guest.session
from belljar.backends.contract import Process
from belljar.errors import BelljarError, SandboxUnavailableError
from belljar.sandbox.record import recording
from belljar.sandbox.record.result import RunResult
from belljar.sandbox.record.stream import Handle, new_run_id
from belljar.sandbox.run.lifecycle import Acquired, Life, RunSource, ServedNetwork
from belljar.sandbox.run.sandbox import Sandbox
from belljar.sandbox.run.watch import Watch
from belljar.sandbox.session import wire
from belljar.sandbox.session.clock import Clock

# The program of a session's supervisor: modules of `belljar.guest` as one piece of code, the same on every backend.
_MODULES = ("rich", "steps", "supervisor")
"""Each after those that it imports."""

_LOADER = """
import sys
for name in ("belljar", "belljar.guest", "belljar.guest.session"):
    sys.modules[name] = type(sys)(name)
    sys.modules[name].__path__ = []
for name, source in SOURCES:
    module = type(sys)("belljar.guest.session." + name)
    sys.modules[module.__name__] = module
    setattr(sys.modules["belljar.guest.session"], name, module)
    exec(compile(source, "<belljar>", "exec"), module.__dict__)
sys.modules["belljar.guest.session.supervisor"].main().serve()
"""


@functools.cache
def program() -> bytes:
    """The code of the run that is a session."""
    directory = os.path.dirname(os.path.abspath(belljar.guest.session.__file__))
    sources = []
    for name in _MODULES:
        with open(os.path.join(directory, f"{name}.py"), encoding="utf-8") as file:
            sources.append((name, file.read()))
    return f"SOURCES = {sources!r}\n{_LOADER}".encode()


_PIECE = 1 << 16
_TICK_SECONDS = 0.001
_MOST_TOLD = 10_000
"""Things shown, and other words, of one step."""
_MOST_QUEUED = 1000
"""Pieces of output that wait in the order in which they came. Beyond that each stream is in order, but not both
together: streams that take turns byte by byte would need a hundred times their size."""
_LAST_SECONDS = 1.0
"""How long a supervisor may take to go."""
_FAULT_BYTES = 1 << 14
"""How much of what the supervisor itself says about a fault is kept."""
_MOST_PRINTED, _MOST_PARTS = 4 << 20, 200
"""How much of what its steps printed is kept for others to read, in bytes and in steps; the last step always is."""

Frame = tuple[bytes, bytes]
"""Kind and payload."""


class Inbox:
    """What one interpreter said and nobody has taken yet. Bounded: what the code prints beyond its limit is dropped."""

    def __init__(self, changed: threading.Condition, limit: int) -> None:
        self._changed = changed
        self._limit = limit
        self._frames: deque[tuple[bytes, bytes | bytearray]] = deque()
        self._last: dict[bytes, bytearray] = {}
        """The last piece of each stream that waits, since the last thing that was no output."""
        self._taken = 0
        self._told = self._told_bytes = 0
        self.over = False
        """Whether more was said than may be."""

    def put(self, kind: bytes, payload: bytes) -> None:
        """Called with the lock held."""
        if kind in (wire.STDOUT, wire.STDERR) and not payload:
            return
        if kind not in (wire.STDOUT, wire.STDERR):
            self._told += 1
            self._told_bytes += len(payload) if kind != wire.SHOWN else 0
            if self._told > _MOST_TOLD or self._told_bytes > longest_frame(
                self._limit
            ):  # nobody says so much that is not printed: the supervisor is not what it was
                raise wire.BrokenError
        if kind in (wire.STDOUT, wire.STDERR, wire.SHOWN):
            room = self._limit - self._taken
            if len(payload) > room:
                self.over = True
                payload = b"" if kind == wire.SHOWN else payload[: max(0, room)]
                if not payload:
                    self._changed.notify_all()
                    return
            self._taken += len(payload)
        if kind not in (wire.STDOUT, wire.STDERR):
            self._last.clear()
            self._frames.append((kind, payload))
        elif (last := self._last.get(kind)) is not None and (
            self._frames[-1][0] == kind or len(self._frames) > _MOST_QUEUED
        ):
            last.extend(payload)  # bytes that come one by one take the room of their number
        else:
            self._last[kind] = bytearray(payload)
            self._frames.append((kind, self._last[kind]))
        self._changed.notify_all()

    def take(self) -> Frame | None:
        """The next frame, if there is one. Called with the lock held."""
        if not self._frames:
            return None
        kind, payload = self._frames.popleft()
        if self._last.get(kind) is payload:
            del self._last[kind]
        return kind, bytes(payload)

    def renew(self) -> None:
        """A step begins: what was printed since the last one counts as its own."""
        self._taken = sum(len(payload) for _kind, payload in self._frames)
        self._told = self._told_bytes = 0
        self.over = False


def longest_frame(output_bytes: int) -> int:
    """No frame is longer where code may print so much: what it shows is text in base64 in JSON."""
    return output_bytes * 2 + (1 << 20)


class SessionRun:
    """The run of a session. A thread of its own listens, so that an end or idleness is noticed at once.

    Raises:
        SandboxUnavailableError: the jar could not be made.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        session: str,
        clock: Clock,
        on_end: Callable[[SessionRun, str], None],
    ) -> None:
        self._sandbox = sandbox
        self._policy = sandbox.policy
        self._clock = clock
        self._on_end = on_end
        self.run_id = new_run_id()
        self._handle = Handle(session)
        self._stack = ExitStack()
        self.changed = threading.Condition()
        self._inboxes: dict[int, Inbox] = {}
        self.result: RunResult | None = None
        """How it ended, once it has."""
        self.fault: BelljarError | None = None
        self.ended = False
        self.gone: dict[int, int | None] = {}
        """The interpreters that have ended, with the status of each, if anyone knows it."""
        self.why = ""
        """Why belljar itself ended it, if it did."""
        self._orders = -1
        self._launch()

    def _launch(self) -> None:
        lifetime = max(_TICK_SECONDS, self._clock.age_left())
        policy = replace(self._policy, proc=replace(self._policy.proc, timeout_seconds=lifetime))
        reader, self._orders = os.pipe2(os.O_CLOEXEC)
        self._stack.callback(self._hang_up)
        os.set_blocking(self._orders, False)
        try:
            source = self._sandbox.source(program(), "session.py", policy, reader)
            self._life = Life(source, self._handle, self.run_id)
            self._begin(source)
        except BaseException as error:  # whatever it is: a run that has begun has an end
            self._stack.close()
            recording.broke_off(self.run_id, error, self._policy)
            raise
        finally:
            os.close(reader)
        # A daemon: a program that forgets to close a session must be able to end.
        self._thread = threading.Thread(target=self._listen, name="belljar-session", daemon=True)
        self._thread.start()

    def _begin(self, source: RunSource) -> None:
        self.result = self._life.begin()
        if self.result is not None:
            raise SandboxUnavailableError(self.result.reason, fault=self.result.fault)
        acquired = self._stack.enter_context(source.acquire(self._life))
        assert isinstance(acquired, Acquired), "a Sandbox has a process for every run"
        self._acquired, self._process = acquired, acquired.process

    def _hang_up(self) -> None:
        with self.changed:
            if self._orders >= 0:
                os.close(self._orders)
                self._orders = -1

    @property
    def process(self) -> Process:
        """The run."""
        return self._process

    @property
    def network(self) -> ServedNetwork | None:
        """Its network."""
        return self._acquired.network

    def inbox(self, number: int) -> Inbox:
        """That of an interpreter."""
        with self.changed:
            return self._inboxes.setdefault(number, Inbox(self.changed, self._policy.proc.output_bytes))

    def prints(self, captured: dict[str, bytearray], step: int) -> None:
        """A step begins, and prints there. Whole steps are forgotten: half of one could be half of a secret."""
        with self.changed:
            parts = self._handle.parts
            self._handle.prints(captured, self._policy, step)
            size = sum(len(text) for part in parts.values() for text in part.values())
            while len(parts) > 1 and (size > _MOST_PRINTED or len(parts) > _MOST_PARTS):
                size -= sum(map(len, parts.pop(min(parts)).values()))

    # --- orders ---

    def send(self, kind: bytes, number: int, payload: bytes, deadline: float) -> bool:
        """Give the supervisor an order. False if it takes none: then it has ended, or is not what it was."""
        rest = memoryview(wire.encode(kind, number, payload))
        while rest:
            with self.changed:
                if self.ended or self._orders < 0:
                    return False
                try:
                    rest = rest[os.write(self._orders, rest[: 1 << 20]) :]
                except BlockingIOError:
                    pass
                except OSError:
                    return False
                else:
                    continue
            if time.monotonic() > deadline:
                return False
            time.sleep(_TICK_SECONDS)  # a pipe that is full, because the supervisor is busy with the rest of this order
        return True

    def kill(self, why: str) -> None:
        """End it; `why` is told to whoever is in a step."""
        with self.changed:
            self.why = self.why or why
        self._handle.kill("forged" if why == "broken" else "killed")

    def finish(self, why: str) -> None:
        """End it in good order: the supervisor goes when its orders end, and everything with it. Else it is killed."""
        with self.changed:
            self.why = self.why or why
        self._hang_up()
        until = time.monotonic() + _LAST_SECONDS
        with self.changed:
            while not self.ended and (left := until - time.monotonic()) > 0:
                self.changed.wait(left)
        if not self.ended:
            self.kill(why)
        self.join()

    def join(self) -> None:
        """Wait until it has ended, and nothing of it is left."""
        if threading.current_thread() is not self._thread:
            self._thread.join()

    # --- the thread ---

    def _listen(self) -> None:
        watch = Watch(self._process, _FAULT_BYTES)
        try:
            self._read(watch)
            result, fault = self._life.settle(watch, self._acquired.end(), self._acquired), None
        except BelljarError as error:
            recording.broke_off(self.run_id, error, self._policy)
            result, fault = None, error
        finally:
            with contextlib.suppress(OSError):
                self._stack.close()
        with self.changed:
            self.result, self.fault, self.ended = result, fault, True
            self.changed.notify_all()
        self._on_end(self, self.why)

    def _read(self, watch: Watch) -> None:
        frames = wire.SessionFrames(longest_frame(self._policy.proc.output_bytes))
        poll = select.poll()
        for descriptor in (self._process.stdout, self._process.stderr, self._process.fileno()):
            poll.register(descriptor, select.POLLIN)
        over = False
        while True:
            ready = poll.poll(0 if over else self._patience_ms())
            if over and not ready:
                return
            for descriptor, _event in ready:
                if descriptor == self._process.fileno():
                    over = True  # every process is gone: what is in the pipes is all there is
                    poll.unregister(descriptor)
                elif not (data := os.read(descriptor, _PIECE)):
                    poll.unregister(descriptor)
                elif descriptor == self._process.stderr:
                    watch.captured["stderr"] = (watch.captured["stderr"] + data)[-_FAULT_BYTES:]
                else:
                    self._sort(frames, data)
            self._evict_if_idle()

    def _sort(self, frames: wire.SessionFrames, data: bytes) -> None:
        try:
            with self.changed:
                for kind, number, payload in frames.feed(data):
                    if kind == wire.GONE:
                        self.gone[number] = wire.gone(payload)
                        self.changed.notify_all()
                    elif inbox := self._inboxes.get(number):
                        inbox.put(kind, payload)
        except wire.BrokenError:
            self.kill("broken")

    def _patience_ms(self) -> float | None:
        if self.why:
            return None
        return 1000 if self._clock.busy else self._clock.idle_left() * 1000 + 1

    def _evict_if_idle(self) -> None:
        if not self.why and not self._clock.idle_left():
            self.kill("idle")
