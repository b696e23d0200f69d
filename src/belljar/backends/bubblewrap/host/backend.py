"""The bubblewrap backend: the contract's three steps, on top of the launcher."""

from __future__ import annotations

import _imp
import contextlib
import os
from _thread import allocate_lock  # `threading` takes a millisecond to import
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from belljar._startup import sockets as socket
from belljar.backends.bubblewrap.host.client import LAUNCHER, fault, launcher_died
from belljar.backends.bubblewrap.host.compile import compile_plan
from belljar.backends.bubblewrap.host.facts import Host, gather
from belljar.backends.bubblewrap.shared import wire
from belljar.backends.contract import (
    Availability,
    Clause,
    End,
    Frozen,
    LaunchPlan,
    Listener,
    Observation,
    RunRequest,
    Status,
    Trust,
)
from belljar.backends.hostile_files import OpenedFiles
from belljar.backends.runtimes import find_program
from belljar.errors import BelljarError, PrerequisiteError, SandboxUnavailableError, UsageError
from belljar.limits.detect import CgroupSupport, Mechanism
from belljar.policy.models import Policy
from belljar.state import state_directory

TYPE_CHECKING = False  # see _startup/records.py
if TYPE_CHECKING:
    from typing import Any

    from belljar.backends.pool_contract import JarPool, PooledJar

_LAST_WORDS_MS = 500
_STILL_SECONDS, _STILL_PAUSE_SECONDS = 3.0, 0.002
_LAST_SIGNAL = 64


class BubblewrapBackend:
    """Namespaces, an overlay, seccomp and control groups, with bubblewrap as the boundary."""

    name = "bubblewrap"

    def __init__(self, *, state: str) -> None:
        self._state = state
        self._host: tuple[object, Host] | None = None

    def probe(self) -> Availability:
        """Whether it works here, shown by making a jar's namespaces."""
        from belljar.backends.bubblewrap.host.probe import probe

        return probe()

    def compile(self, policy: Policy, request: RunRequest) -> LaunchPlan:
        """The plan for one run on this host."""
        return compile_plan(policy, request, self.host(policy))

    def host(self, policy: Policy) -> Host:
        """The facts of this host; the interpreter, and what is hidden in its directory, depend on the policy."""
        asked = (policy.python, policy.fs.deny_globs)
        if self._host is None or self._host[0] != asked:
            self._host = (asked, gather(policy, state=self._state))
        return self._host[1]

    def open(self, policy: Policy, plan: LaunchPlan) -> BubblewrapJar:  # noqa: ARG002 - the plan has it all
        """Stage the mounts of a Sandbox."""
        support = CgroupSupport.from_json(plan.stage["cgroup"])
        LAUNCHER.start(wrap=_scope(support))
        listings = _listings_file(plan.stage["plan"])
        control, answer = LAUNCHER.stage({**plan.stage["plan"], "listings": listings}, plan.stage["cgroup"])
        if text := answer.get("listings", ""):
            from belljar.backends.remembered_listings import write_text
            from belljar.state import private_directory

            with contextlib.suppress(OSError):
                private_directory(os.path.dirname(listings))
            write_text(listings, text)
        return BubblewrapJar(control, answer)

    def open_pool(
        self,
        policy: Policy,
        *,
        size: int,
        preload: Sequence[str],
        trust: Trust | None,
        prepare: Callable[[PooledJar], None] | None,
    ) -> tuple[LaunchPlan, JarPool]:
        """Stage a pool for Python code: the plan of its jars, and what gives them out, each prepared before it waits.

        Raises:
            PolicyError: it asks for what runs of a pool can't have.
            SandboxUnavailableError: a module can't be preloaded, or jars can't be made.
        """
        from belljar.backends.bubblewrap.host.compile_pool import compile_pool
        from belljar.backends.bubblewrap.host.pool import BubblewrapPool

        request = RunRequest(code=b"", env=dict(os.environ), trust=trust)
        plan = compile_pool(policy, request, self.host(policy), size=size, preload=preload)
        if plan.report.refused_by(policy):
            raise PrerequisiteError(
                "; ".join(
                    f"{clause.key} is {clause.status}: {clause.lost}" for clause in plan.report.refused_by(policy)
                )
            )
        LAUNCHER.start(wrap=_scope(CgroupSupport.from_json(plan.stage["cgroup"])))
        control, answer = LAUNCHER.stage(plan.stage["plan"], plan.stage["cgroup"])
        return plan, BubblewrapPool(control, answer, helpers=plan.stage["plan"]["pool"]["helpers"], prepare=prepare)


def _listings_file(plan: dict[str, Any]) -> str:
    """Where openings of the same directories keep what they saw; empty if the jar shows none of the host's."""
    views = [
        (view["jar_path"], plan["sources"][view["source"]]["path"])
        for view in plan["views"]
        if view["source"] is not None
    ]
    if not views:
        return ""
    name = _imp.source_hash(1, repr(views).encode("utf-8", "surrogateescape")).hex()
    return os.path.join(state_directory(), "listings", name)


def _scope(support: CgroupSupport) -> list[str] | None:
    if support.mechanism is not Mechanism.V2_SYSTEMD:
        return None
    from belljar.limits.systemd import scope_command

    program = find_program("systemd-run", "/usr/bin:/bin")
    if program is None:
        raise PrerequisiteError("systemd-run is missing", hint="apt install systemd")
    return [program, *scope_command([], manager=support.manager)[1:]]


class BubblewrapJar(OpenedFiles):
    """A stage, from belljar's side."""

    def __init__(self, control: socket.socket, answer: wire.Message) -> None:
        self._control = control
        self._lock = allocate_lock()
        self._asked = 0
        """The number of the last request: an interrupt may leave its answer unread, for the next one to find."""
        self._last_words: wire.Message | None = None
        self.shortfalls = tuple(
            Clause(key, Status.DEGRADED, "staged", lost) for key, lost in answer.get("shortfalls", ())
        )
        self.kernel_uid: int = answer["kernel_uid"]

    def launch(
        self, plan: LaunchPlan, request: RunRequest, *, stdin: int | None, prepare: bool = False
    ) -> BubblewrapProcess:
        """Start a run, in the jar that waits for it or in a new one. `prepare` has the next one wait."""
        message = {
            "do": "run",
            "timeout_seconds": plan.limits["timeout_seconds"],
            "command": list(plan.argv),
            "env": dict(plan.env),
            "code_name": plan.stage["code_name"],
            "absent_at_first": plan.stage["absent_at_first"],
            "stdin": stdin is not None,
            "prepare": prepare,
            "warms": plan.stage["warms"],
            "jar": _jar(plan, request),
        }
        ours, theirs = wire.pair()
        passed = [theirs.fileno(), *([] if stdin is None else [stdin])]
        with theirs, _memory_file(request.code) as code:
            if code is not None:
                passed.append(code)
            try:
                with self._lock:
                    wire.send(self._control, message, tuple(passed))
            except OSError as error:
                ours.close()
                raise self.last_words() from error
        process = self._process(ours)
        if plan.stage["gateway_ports"] or plan.stage["publishes"]:
            process.await_listeners()
        return process

    def prepare(self, plan: LaunchPlan, request: RunRequest) -> None:
        """Have a jar wait for a run like this; for JavaScript, with node's runtime up."""
        warm = None
        if plan.stage["warms"]:
            from belljar.backends.bubblewrap.host.warm_node import warm_interpreter

            warm = warm_interpreter(plan)
        with self._lock, contextlib.suppress(OSError):  # a stage that has died is told of by the run
            wire.send(self._control, {"do": "prepare", "jar": _jar(plan, request), "warm": warm})

    def _process(self, events: socket.socket) -> BubblewrapProcess:
        """The stage answers with the run's output and errors, as soon as there are processes to write them."""
        try:
            answer = wire.receive(events)
        except OSError as error:
            events.close()
            raise SandboxUnavailableError(f"the jar's stage did not answer: {error}") from error
        if answer is None:
            events.close()
            raise self.last_words()
        message, descriptors = answer
        if "error" in message:
            events.close()
            raise fault(message)
        output, errors = descriptors
        return BubblewrapProcess(output, errors, events, self, name=message["run"])

    def open(self, mount: int, path: str, flags: int) -> int:
        """A descriptor for a file beneath the mount."""
        _message, (descriptor,) = self._ask({"do": "open", "view": mount, "path": path, "flags": flags})
        return descriptor

    def usage(self, run: str) -> dict[str, float]:
        """What a run uses now; nothing if it has ended."""
        return self._ask({"do": "usage", "name": run})[0]["usage"]  # type: ignore[no-any-return]

    def mkdir(self, mount: int, path: str) -> None:
        """Make a directory and those above it."""
        self._ask({"do": "mkdir", "view": mount, "path": path})

    def remove(self, mount: int, path: str) -> None:
        """Remove a file or a tree."""
        self._ask({"do": "remove", "view": mount, "path": path})

    def layer(self, mount: int) -> tuple[int, bool]:
        """What runs changed in a copy-on-write mount."""
        message, (descriptor,) = self._ask({"do": "changes", "view": mount})
        return descriptor, message["layered"]

    def freeze(self, run: str) -> Frozen:
        """Have a run stand still. Raises OSError if it has ended."""
        import time

        deadline = time.monotonic() + _STILL_SECONDS
        while True:
            answer, _none = self._ask({"do": "freeze", "name": run})
            if answer["still"] or time.monotonic() >= deadline:
                return Frozen(answer["by"], answer["still"])
            time.sleep(_STILL_PAUSE_SECONDS)

    def thaw(self, run: str) -> None:
        """Let it go on. Raises OSError if it has ended."""
        self._ask({"do": "thaw", "name": run})

    def _ask(self, message: wire.Message) -> tuple[wire.Message, list[int]]:
        with self._lock:
            if self._control.fileno() < 0:
                raise UsageError("this Sandbox is closed")
            self._asked += 1
            answer = self._answer_to({**message, "number": self._asked})
        if answer is None:
            raise self.last_words()
        if "errno" in answer[0]:
            raise OSError(answer[0]["errno"], answer[0]["message"])
        return answer

    def _answer_to(self, request: wire.Message) -> tuple[wire.Message, list[int]] | None:
        """The answer with the request's number; None if the stage is gone."""
        try:
            wire.send(self._control, request)
        except ConnectionError:
            return None
        while (received := self._receive()) is not None:
            if received[0]["number"] == request["number"]:
                return received
            _close_all(received[1])
        return None

    def _receive(self) -> tuple[wire.Message, list[int]] | None:
        """The next answer; None if there will be none. What the stage says unasked are its last words."""
        try:
            received = wire.receive(self._control)
        except OSError:
            return None
        if received is not None and "number" not in received[0]:
            self._last_words = received[0]
            return None
        return received

    def last_words(self) -> BelljarError:
        """Why the stage died, if it could still say so. If its launcher died, what that one left is removed.

        Raises:
            SystemExit: this process is ending, in another thread.
        """
        LAUNCHER.leave_if_over()
        with self._lock:
            while self._last_words is None and _is_readable(self._control) and (received := self._receive()):
                _close_all(received[1])
        launcher_is_dead = LAUNCHER.bury_if_dead()
        if self._last_words is not None:
            return fault(self._last_words)
        if launcher_is_dead:
            return launcher_died()
        return SandboxUnavailableError("the jar's stage process has died", hint="try again")

    def close(self) -> None:
        """End the stage, and with it every run and mount."""
        self._control.close()
        LAUNCHER.bury_if_dead()


def _jar(plan: LaunchPlan, request: RunRequest) -> wire.Message:
    """What a jar is made of; jars of which this is equal can stand for each other."""
    ours = ("timeout_seconds", "output_bytes")
    return {
        "bwrap": plan.stage["bwrap"],
        "arguments": plan.stage["arguments"],
        "limits": {name: value for name, value in plan.limits.items() if name not in ours},
        "expect": plan.stage["expect"],
        "memory_group": plan.stage["memory_group"],
        "observe_files": request.explain_denials,
        "observe_network": plan.stage["gateway_ports"] is None,  # else the proxy sees it all
        "gateway_ports": plan.stage["gateway_ports"],
        "publishes": plan.stage["publishes"],
        "host_info": plan.stage["host_info"],
    }


class BubblewrapProcess:
    """A run in a jar, from belljar's side."""

    def __init__(self, stdout: int, stderr: int, events: socket.socket, jar: BubblewrapJar, *, name: str) -> None:
        self._jar = jar
        self.name = name
        """What the stage calls it."""
        self.stdout = stdout
        self.stderr = stderr
        self.listeners: tuple[Listener, ...] = ()
        self._events = events
        self._early_end: wire.Message | None = None
        self._waits = False

    def fileno(self) -> int:
        """Readable when the run has ended."""
        return self._events.fileno()

    def await_listeners(self) -> None:
        """Wait until the jar has its gateway, or has ended without."""
        received = wire.receive(self._events)
        if received is None:
            self.close()
            raise self._jar.last_words()
        message, descriptors = received
        if "listeners" in message:
            self._waits = True
            self.listeners = tuple(
                Listener(role, port, descriptor)
                for (role, port), descriptor in zip(message["listeners"], descriptors, strict=True)
            )
        else:
            self._early_end = message
            self.take_descriptors(descriptors)

    def begin(self) -> None:
        """Let the code start, which waits while its listeners are handed on."""
        if self._waits:
            self._waits = False
            with contextlib.suppress(OSError):  # it has ended already
                wire.send(self._events, {"go": True})

    def kill(self, reason: str) -> None:
        """End the whole tree."""
        try:
            wire.send(self._events, {"kill": reason})
        except OSError:
            return  # it has ended already

    def freeze(self) -> Frozen:
        """Have the whole tree stand still. Raises OSError if it has ended."""
        return self._jar.freeze(self.name)

    def thaw(self) -> None:
        """Let it go on. Raises OSError if it has ended."""
        self._jar.thaw(self.name)

    def usage(self) -> dict[str, float]:
        """What it uses now; nothing if it has ended."""
        return self._jar.usage(self.name)

    def end(self) -> End:
        """Wait for the end, and tell it."""
        return self._end

    @cached_property
    def _end(self) -> End:
        return end_of(self._early_end or self._received_end())

    def _received_end(self) -> wire.Message:
        received = wire.receive(self._events)
        if received is None:
            raise self._jar.last_words()
        self.take_descriptors(received[1])
        return received[0]

    def take_descriptors(self, descriptors: list[int]) -> None:
        """What came with the word of its end."""
        _close_all(descriptors)

    def close(self) -> None:
        """Let go; a run that is still alive is ended by its stage."""
        for descriptor in (self.stdout, self.stderr):
            if descriptor >= 0:
                os.close(descriptor)
        self.stdout = self.stderr = -1
        self._events.close()


def end_of(message: wire.Message) -> End:
    """A run's end, as the stage tells it. Raises what it stands for, if it is none."""
    if "error" in message:
        raise fault(message)
    code, number = _split(message["exit_code"], message["code_status"])
    return End(
        exit_code=code,
        signal=number,
        ended_by=message["ended_by"],
        problems=tuple(message["problems"]),
        started=message["started"],
        cpu_seconds=message["cpu_seconds"],
        peak_memory_bytes=_whole(message["peak_memory_bytes"]),
        processes=_whole(message["processes"]),
        bytes_read=message["bytes_read"],
        bytes_written=message["bytes_written"],
        oom_kills=int(message["oom_kills"]),
        pids_refused=int(message["pids_refused"]),
        observations=tuple(Observation(**seen) for seen in message["observations"]),
        began=message["began"],
    )


def _is_readable(end: socket.socket) -> bool:
    """Whether there is something to read, or its end, now or in a moment."""
    import select

    if end.fileno() < 0:
        return False
    poller = select.poll()
    poller.register(end, select.POLLIN)
    return bool(poller.poll(_LAST_WORDS_MS))


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _split(exit_code: int, status: int | None) -> tuple[int, int | None]:
    """Exit code and signal. Bubblewrap says 128 + signal, as shells do; newer kernels tell which it really was."""
    if status is not None:
        return (
            (128 + os.WTERMSIG(status), os.WTERMSIG(status))
            if os.WIFSIGNALED(status)
            else (os.WEXITSTATUS(status), None)
        )
    if 128 < exit_code <= 128 + _LAST_SIGNAL:
        return exit_code, exit_code - 128
    return exit_code, None


@contextlib.contextmanager
def _memory_file(content: bytes | None) -> Iterator[int | None]:
    if content is None:
        yield None
        return
    descriptor = os.memfd_create("belljar-code", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        yield descriptor
