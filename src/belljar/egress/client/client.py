"""belljar's side of the egress proxy: starting it, handing it runs, hearing its decisions. Any thread may call."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import belljar
from belljar.egress import ca, wire
from belljar.egress.events import UNRECORDED, Event
from belljar.errors import InternalError, PrerequisiteError, SandboxUnavailableError
from belljar.state import state_directory

if TYPE_CHECKING:
    from belljar.egress.decide.rules import Rules

_PROXY_FD = 3
_START_SECONDS = 60.0
_ANSWER_SECONDS = 30.0
_END_SECONDS = 5.0
_NEEDED = ("httptools", "h2", "hpack", "hyperframe", "cryptography", "dns", "uvloop", "_cffi_backend")

OnEvents = Callable[[list[Event]], str | None]


@dataclass(frozen=True, slots=True)
class ServedListener:
    """A socket made in a jar's gateway, for the proxy to serve.

    Its role: `tcp` (whatever was dialled), `dns-udp`, `dns-tcp`, `http-proxy`, `socks`, `packet` (which only sees), or
    `relay` (over which connections of a jar without a gateway are passed).
    """

    role: str
    port: int
    descriptor: int


class Served:
    """A run that the proxy serves, until `close`."""

    def __init__(self, proxy: ProxyClient, run_id: str) -> None:
        self._proxy = proxy
        self._run_id = run_id

    @property
    def alive(self) -> bool:
        """Whether the proxy still serves it. When the proxy has died, the run has no network any more."""
        return self._proxy.serves(self._run_id)

    def tell(self) -> None:
        """Every event of what was decided until now was delivered before this returns."""
        self._proxy.tell_run(self._run_id)

    def end(self) -> None:
        """Have its listeners and connections stopped; `close` waits for that."""
        self._proxy.end_run(self._run_id)

    def close(self) -> None:
        """Stop its listeners and connections. Every event of the run was delivered before this returns."""
        self._proxy.close_run(self._run_id)

    def abandon(self) -> None:
        """As `close`, without waiting; what was tried meanwhile is told to nobody."""
        self._proxy.abandon_run(self._run_id)

    def renew(self, secrets: Mapping[str, str]) -> None:
        """Use these from now on: when this returns, the proxy does."""
        self._proxy.renew(self._run_id, secrets)


class _ServedRun:
    def __init__(self, on_events: OnEvents) -> None:
        self.on_events = on_events
        self.answered = threading.Event()
        self.ended = threading.Event()
        self.told = threading.Event()
        self.failure = ""
        self.ending = False
        self.at: socket.socket | None = None
        """The end of the process that serves it."""


class ProxyClient:
    """The proxy process of this process: started when first needed, ended when this process ends."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._end: socket.socket | None = None
        self._pid = 0
        self._ready = threading.Event()
        self._runs: dict[str, _ServedRun] = {}
        self._authority: ca.Authority | None = None

    @property
    def pid(self) -> int:
        """The proxy's process, 0 while there is none."""
        return self._pid if self._end is not None else 0

    def authority(self) -> ca.Authority:
        """The CA that jars have to trust; made if there is none yet, and the same for the life of this process."""
        with self._lock:
            if self._authority is None:
                self._authority = ca.load_or_make(state_directory())
            return self._authority

    def start(self) -> None:
        """Start the process if it is not running (any more), without waiting for it."""
        with self._lock:
            if self._end is None:
                self._end, self._pid = _spawn()
                self._ready = threading.Event()
                wire.send(self._end, {"roots": ca.host_roots()})
                arguments = (self._end, self._pid, self._ready)
                threading.Thread(target=self._hear, args=arguments, name="belljar-egress", daemon=True).start()

    def serve(  # noqa: PLR0917 by their order in the egress part of a Sandbox
        self,
        run_id: str,
        rules: Rules,
        secrets: Mapping[str, str],
        canaries: Sequence[bytes],
        listeners: Sequence[ServedListener],
        ca_file: str | None,
        on_events: OnEvents,
    ) -> Served:
        """Have a run served at these sockets, which the proxy takes over.

        Args:
            run_id: names the run in its events.
            rules: what is decided by.
            secrets: the value of each credential that the rules name.
            canaries: tokens that must not leave.
            listeners: their descriptors are closed here, whatever happens.
            ca_file: PEM of further roots by which upstream certificates are verified.
            on_events: called with events, in order, in a thread that delivers those of all runs. They are recorded when
                it returns, and what was decided is done only then; `unrecorded`, or an exception, means that they could
                not be: then nothing of the run passes any more.

        Raises:
            PrerequisiteError: the proxy can't start here, or a file can't be read.
            SandboxUnavailableError: the proxy died.
        """
        try:
            self.start()
            further = _read_roots(ca_file) if ca_file else ""
            authority = self.authority()
            run = _ServedRun(on_events)
            with self._lock:
                if run_id in self._runs:
                    raise InternalError(f"the egress proxy serves run {run_id} already")
                self._runs[run_id] = run
                run.at = self._end
                message = {
                    "op": "serve",
                    "run": run_id,
                    "rules": rules.to_json(),
                    "secrets": dict(secrets),
                    "canaries": [token.decode("latin-1") for token in canaries],
                    "roots": further,
                    "certificate": authority.certificate,
                    "key": authority.key,
                }
                self._send_with(message, listeners)
        finally:
            for listener in listeners:
                with contextlib.suppress(OSError):
                    os.close(listener.descriptor)
        self._await(run_id, run)
        return Served(self, run_id)

    def _send_with(self, message: wire.Message, listeners: Sequence[ServedListener]) -> None:
        """The message last, descriptors in as many packets as it takes."""
        some = list(listeners)
        while len(some) > wire.MAX_DESCRIPTORS:
            now, some = some[: wire.MAX_DESCRIPTORS], some[wire.MAX_DESCRIPTORS :]
            self._send_some({"op": "listeners", "run": message["run"]}, now)
        self._send_some(message, some)

    def _send_some(self, message: wire.Message, listeners: Sequence[ServedListener]) -> None:
        message["listeners"] = [[listener.role, listener.port] for listener in listeners]
        self._send(message, tuple(listener.descriptor for listener in listeners))

    def _send(self, message: wire.Message, descriptors: tuple[int, ...] = ()) -> None:
        try:
            if self._end is None:
                raise _died()
            wire.send(self._end, message, descriptors)
        except OSError as error:
            self._runs.pop(message["run"], None)
            raise _died() from error

    def _await(self, run_id: str, run: _ServedRun) -> None:
        deadline = time.monotonic() + _START_SECONDS
        ready = self._ready.wait(_START_SECONDS)
        if not ready or not run.answered.wait(max(0.0, deadline - time.monotonic())) or run.failure:
            with self._lock:
                self._runs.pop(run_id, None)
            if run.failure:
                raise InternalError(f"the egress proxy did not take the run: {run.failure}")
            raise SandboxUnavailableError(f"the egress proxy did not answer after {_START_SECONDS:.0f} s")
        if run.ended.is_set():
            with self._lock:
                self._runs.pop(run_id, None)
            raise _died()

    def serves(self, run_id: str) -> bool:
        """Whether the proxy lives and has this run."""
        with self._lock:
            run = self._runs.get(run_id)
            return run is not None and run.at is self._end and not run.ended.is_set()

    def tell_run(self, run_id: str) -> None:
        """Have every event of a run delivered that was decided until now. Nothing happens when it has ended."""
        with self._lock:
            run = self._runs.get(run_id)
            if run is None or run.ended.is_set():
                return
            run.told.clear()
            with contextlib.suppress(SandboxUnavailableError):
                self._send({"op": "tell", "run": run_id})
        run.told.wait(_ANSWER_SECONDS)

    def end_run(self, run_id: str) -> _ServedRun | None:
        """End a run at the proxy, which answers when it has. Nothing happens when it has ended."""
        with self._lock:
            run = self._runs.get(run_id)
            if run is not None and not run.ending and not run.ended.is_set():
                run.ending = True
                with contextlib.suppress(SandboxUnavailableError):
                    self._send({"op": "close", "run": run_id})
            return run

    def close_run(self, run_id: str) -> None:
        """End a run at the proxy, and wait until it has told everything."""
        run = self.end_run(run_id)
        if run is not None:
            run.ended.wait(_ANSWER_SECONDS)
            with self._lock:
                self._runs.pop(run_id, None)

    def abandon_run(self, run_id: str) -> None:
        """End a run at the proxy, without waiting for it."""
        with self._lock:
            run = self._runs.pop(run_id, None)
            if run is not None and not run.ending:
                with contextlib.suppress(SandboxUnavailableError):
                    self._send({"op": "close", "run": run_id})

    def renew(self, run_id: str, secrets: Mapping[str, str]) -> None:
        """Give the proxy other secrets for a run. Raises SandboxUnavailableError if it has died."""
        with self._lock:
            run = self._runs.get(run_id)
            if run is None or run.ended.is_set():
                raise _died()
            run.answered.clear()
            self._send({"op": "secrets", "run": run_id, "secrets": dict(secrets)})
        self._await(run_id, run)

    def stop(self) -> None:
        """End the process and wait for it."""
        with self._lock:
            end, self._end = self._end, None
            if end is None:
                return
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            _await_exit(self._pid)

    def abandon_after_fork(self) -> None:
        """In a forked child of the user's program: the proxy is the parent's."""
        if self._end is not None:
            self._end.close()
        self._end, self._lock, self._runs = None, threading.RLock(), {}

    # In its own thread

    def _hear(self, end: socket.socket, pid: int, ready: threading.Event) -> None:
        while True:
            try:
                received = wire.receive(end)
            except OSError:
                received = None
            if received is None:
                break
            self._heard(end, received[0], ready)
        self._gone(end, pid)
        ready.set()

    def _heard(self, end: socket.socket, message: wire.Message, ready: threading.Event) -> None:
        kind = message["op"]
        if kind == "events":
            answer = {"op": "recorded", "count": len(message["events"]), "runs": self._record(message["events"])}
            with contextlib.suppress(OSError):  # without the lock: who holds it may be waiting for the proxy to listen
                wire.send(end, answer)
        elif kind == "ready":
            ready.set()
        elif kind == "fault":
            for run_id in list(self._runs):
                self._deliver(run_id, [_proxy_event(run_id, f"a fault of the egress proxy: {message['message']}")])
        elif kind == "told":
            if run := self._runs.get(message["run"]):
                run.told.set()
        elif run := self._runs.get(message["run"]):
            run.failure = message.get("message", "")
            run.answered.set()
            if kind == "closed":
                run.ended.set()

    def _record(self, events: list[list[Any]]) -> dict[str, str]:
        """Have events recorded, those of each run together; what there is to say of a run's records."""
        by_run: dict[str, list[Event]] = {}
        for event in map(Event.from_json, events):
            by_run.setdefault(event.run_id, []).append(event)
        said = {run_id: self._deliver(run_id, some) for run_id, some in by_run.items()}
        return {run_id: state for run_id, state in said.items() if state}

    def _deliver(self, run_id: str, events: list[Event]) -> str | None:
        run = self._runs.get(run_id)
        if run is not None:
            with contextlib.suppress(Exception):  # a listener's fault must not deafen the others
                return run.on_events(events)
        return UNRECORDED

    def _gone(self, end: socket.socket, pid: int) -> None:
        """The process has ended: its listeners with it, so no run has a network any more. Tell each."""
        with self._lock:
            expected = self._end is not end
            if not expected:
                self._end = None
                _await_exit(pid)
            end.close()
            runs = list(self._runs.items())
        for run_id, run in runs:
            if not expected and not run.ended.is_set():
                self._deliver(run_id, [_proxy_event(run_id, "the egress proxy has died, and every connection with it")])
            run.answered.set()
            run.ended.set()
            run.told.set()


def _proxy_event(run_id: str, detail: str) -> Event:
    return Event(run_id=run_id, time=time.time(), kind="proxy", allowed=False, reason="proxy", detail=detail)


def _died() -> SandboxUnavailableError:
    return SandboxUnavailableError(
        "belljar's egress proxy has died, and the network of every jar with it",
        hint="run it again: another one is started",
    )


def _read_roots(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(4 << 20)
    except (OSError, UnicodeDecodeError) as error:
        raise PrerequisiteError(f"net.ca_file {path} can't be read: {error}") from error


def _spawn() -> tuple[socket.socket, int]:
    """A clean interpreter: no environment, no user directory, no descriptor but the socket."""
    ours, theirs = wire.pair()
    program = (
        f"import sys;sys.path.extend({_import_path()!r});from belljar.egress.proxy.main import main;main({_PROXY_FD})"
    )
    with theirs:
        pid = os.posix_spawn(
            sys.executable,
            [sys.executable, "-I", "-c", program],
            {},
            file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), _PROXY_FD)],
            setsigmask=(),
        )
    return ours, pid


def _import_path() -> list[str]:
    """Where this process finds belljar and what the proxy needs, wherever they were installed."""
    from importlib.util import find_spec

    found = [os.path.dirname(os.path.dirname(os.path.abspath(belljar.__file__)))]
    for name in _NEEDED:
        spec = find_spec(name)
        if spec is not None and spec.origin:
            directory = os.path.dirname(os.path.abspath(spec.origin))
            found.append(os.path.dirname(directory) if spec.submodule_search_locations else directory)
        elif name not in ("uvloop", "_cffi_backend"):
            raise PrerequisiteError(f"the egress proxy needs {name}", hint="pip install --force-reinstall belljar")
    return list(dict.fromkeys(found))


def _await_exit(pid: int) -> None:
    """Wait for its end and, if it does not come, end it."""
    import select
    import signal

    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    with contextlib.closing(os.fdopen(descriptor)):
        poller = select.poll()  # `select` knows only the first 1024 descriptors
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(1000 * _END_SECONDS):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            poller.poll(1000 * _END_SECONDS)
    with contextlib.suppress(ChildProcessError):  # somebody else waits for every child of this process
        os.waitpid(pid, os.WNOHANG)


PROXY = ProxyClient()
atexit.register(PROXY.stop)
os.register_at_fork(after_in_child=PROXY.abandon_after_fork)
