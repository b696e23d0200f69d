"""The proxy's process: it imports, gives up root if it has it, and serves runs until its control socket closes."""

from __future__ import annotations

import asyncio
import contextlib
import encodings.idna  # noqa: F401 for names that are resolved, and imported while root can read it
import gc
import importlib
import os
import resource
import select
import signal
import socket
import sys
from collections import deque
from functools import partial
from typing import Any

from belljar.egress import wire
from belljar.egress.ca import Authority, Issuer, new_authority
from belljar.egress.decide.rules import Rules
from belljar.egress.proxy.ledger import Ledger
from belljar.egress.proxy.proxy import Proxy
from belljar.limits import rlimits

_NOBODY = 65534
_USED_LATER = (
    "belljar.egress.decide.builtin",
    "belljar.egress.decide.signing",
    "concurrent.futures.thread",
    "cryptography.hazmat.primitives.asymmetric.ed25519",
    "cryptography.hazmat.primitives.serialization",
    "dns.rdtypes.ANY.OPT",
    "dns.rdtypes.IN.A",
    "dns.rdtypes.IN.AAAA",
    "ipaddress",
    "traceback",
)
"""What other modules import only when they need it."""


class ControlSocket:
    """The proxy's end of the control socket: what the host asks for, the events it is told, and its answers."""

    def __init__(self, end: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._end = end
        self._loop = loop
        self.ledger = Ledger(loop, self._send_events)
        self._early: deque[tuple[wire.Message, list[int]] | None] = deque()
        """What came while the host did not listen."""
        self._proxy: Proxy | None = None
        self._listeners: dict[str, list[tuple[str, int, socket.socket]]] = {}
        self.done: asyncio.Future[None] = loop.create_future()

    def start(self, proxy: Proxy) -> None:
        """Serve what is asked for from now on."""
        self._proxy = proxy
        self._end.setblocking(False)  # noqa: FBT003
        self._loop.add_reader(self._end, self._readable)

    def _send_events(self, events: list[list[Any]]) -> None:
        self._send({"op": "events", "events": events})

    def _send(self, message: wire.Message) -> None:
        while not self.done.done():
            try:
                wire.send(self._end, message)
            except BlockingIOError:  # it may be waiting for us to take its answers
                if select.select([self._end], [self._end], [], 1.0)[0]:
                    self._early.append(wire.receive(self._end))
                    self._loop.call_soon(self._take_early)
            except OSError:
                self._finish()
            else:
                return

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)

    def _readable(self) -> None:
        self._take_early()
        try:
            received = wire.receive(self._end)
        except BlockingIOError:
            return
        self._received(received)

    def _take_early(self) -> None:
        while self._early:
            self._received(self._early.popleft())

    def _received(self, received: tuple[wire.Message, list[int]] | None) -> None:
        if received is None:
            self._loop.remove_reader(self._end)
            self._finish()
        elif received[0]["op"] == "recorded":
            self._recorded(received[0])
        else:
            self._obey(*received)

    def _recorded(self, message: wire.Message) -> None:
        assert self._proxy is not None
        for run_id, state in message["runs"].items():
            self._proxy.note(run_id, state)
        self.ledger.answered()

    def _obey(self, message: wire.Message, descriptors: list[int]) -> None:
        assert self._proxy is not None
        run_id = message["run"]
        held = self._listeners.setdefault(run_id, [])
        for (role, port), descriptor in zip(message.get("listeners", ()), descriptors, strict=True):
            held.append((role, port, socket.socket(fileno=descriptor)))
        if message["op"] == "serve":
            self._serve(message, self._listeners.pop(run_id))
        elif message["op"] == "tell":
            self._listeners.pop(run_id)
            self._proxy.flush(run_id)
            self._send({"op": "told", "run": run_id})
        elif message["op"] == "secrets":
            self._listeners.pop(run_id)
            self._proxy.renew(run_id, message["secrets"])
            self._send({"op": "served", "run": run_id})
        elif message["op"] == "close":
            self._listeners.pop(run_id)
            self._proxy.close(run_id, partial(self._closed, run_id))

    def _closed(self, run_id: str) -> None:
        self._send({"op": "closed", "run": run_id})

    def _serve(self, message: wire.Message, listeners: list[tuple[str, int, socket.socket]]) -> None:
        assert self._proxy is not None
        run_id = message["run"]
        try:
            self._proxy.serve(
                run_id,
                Rules.from_json(message["rules"]),
                listeners,
                authority=Authority(message["certificate"], message["key"]),
                secrets=message["secrets"],
                canaries=[token.encode("latin-1") for token in message["canaries"]],
                roots=message["roots"],
            )
        except Exception as error:  # noqa: BLE001 told to the host, whose run then does not start
            for _role, _port, sock in listeners:
                sock.close()
            self._proxy.close(run_id)
            self._send({"op": "failed", "run": run_id, "message": f"{type(error).__name__}: {error}"})
        else:
            self._send({"op": "served", "run": run_id})

    def fault(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Tell of an exception that nobody caught: one connection is lost, the proxy lives on."""
        error = context.get("exception")
        detail = f"{context.get('message', '')}: {type(error).__name__}: {error}"
        if error is not None and (traceback := error.__traceback__) is not None:
            while traceback.tb_next is not None:
                traceback = traceback.tb_next
            place = traceback.tb_frame.f_code
            detail += f" ({os.path.basename(place.co_filename)}:{traceback.tb_lineno} in {place.co_name})"
        self._send({"op": "fault", "message": detail})


def main(descriptor: int) -> None:
    """Serve until the host closes the other end of this socket."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the host, which closes the socket
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    sys.unraisablehook = lambda _unraisable: None  # a hostile server name makes `ssl` write to stderr otherwise
    with contextlib.suppress(OSError), open("/proc/self/comm", "w") as name:  # what `ps` shows
        name.write("belljar-egress")
    with socket.socket(fileno=descriptor) as end:
        received = wire.receive(end)
        if received is None:
            return
        hello, _descriptors = received
        _raise_limits()
        loop = _new_loop()
        issuer = Issuer(new_authority())
        import_everything(issuer)
        if os.geteuid() == 0:
            _give_up_root()
        gc.freeze()
        gc.set_threshold(2000, 10, 10)  # connections are cycles of a few dozen objects: no need to look at each
        loop.run_until_complete(_serve(end, hello["roots"]))
        os._exit(0)  # nothing is left that an orderly end would close


def import_everything(issuer: Issuer) -> None:
    """Whatever is imported when it is first used, now: without root, root's own Python may be out of reach."""
    for module in _USED_LATER:
        importlib.import_module(module)
    issuer.context("first.belljar.internal")
    issuer.context("192.0.2.1")


async def _serve(end: socket.socket, roots: str) -> None:
    loop = asyncio.get_running_loop()
    control = ControlSocket(end, loop)
    loop.set_exception_handler(control.fault)
    proxy = Proxy(roots, control.ledger)
    with contextlib.suppress(OSError):  # the host is gone already: that is seen next
        wire.send(end, {"op": "ready"})
    control.start(proxy)
    await control.done
    proxy.close_all()


def _new_loop() -> asyncio.AbstractEventLoop:
    os.environ["UV_THREADPOOL_SIZE"] = "32"  # a name that resolves slowly must not hold up the others
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _raise_limits() -> None:
    """Connections are descriptors: as many as this process may have."""
    with contextlib.suppress(OSError, ValueError):
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rlimits.forbid_cores()


def _give_up_root() -> None:
    """It handles what hostile code sends, and needs nothing that only root may."""
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
