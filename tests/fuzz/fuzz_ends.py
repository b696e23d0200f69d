"""Both ends of a relay without a socket: what a client sends goes in, what a server would see comes out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Any, cast

from belljar.egress import ca
from belljar.egress.decide.names import NameRefused, normalise
from belljar.egress.decide.rules import Rule, Rules
from belljar.egress.decide.steps import Verdict, decide_connection, decide_name
from belljar.egress.decide.synthetic import Names
from belljar.egress.proxy.channel import Channel
from belljar.egress.proxy.ledger import Ledger
from belljar.egress.proxy.relay.request_check import RequestCheck
from belljar.egress.proxy.run import ProxiedRun

HOST = "web.test"
PORT = 443
RULES = Rules(
    allow=(
        Rule(0, "net.allowlist[0]", "policy.yaml:7", HOST, (PORT, 80), ("GET", "POST"), ("/ok", "/ok/*")),
        Rule(1, "net.allowlist[1]", "policy.yaml:8", "*.wild.test", (PORT,)),
    ),
    deny=(Rule(0, "net.denylist[0]", "policy.yaml:9", HOST, (), (), ("/ok/denied*",)),),
)


def _nothing(*_values: object) -> None:
    pass


class _Socket:
    """All that a relay asks of one."""

    family = socket.AF_INET

    def setsockopt(self, *_values: object) -> None:
        pass


class End:
    """A `Channel` whose peer is a function; written to at once, and never full."""

    tls = full = False

    def __init__(self, peer: Callable[[bytes], None]) -> None:
        self._peer = peer
        self.sock = _Socket()
        self.on_data: Callable[[bytes], None] = _nothing
        self.on_end: Callable[[], None] = _nothing
        self.on_lost: Callable[[], None] = _nothing
        self.on_drained: Callable[[], None] = _nothing
        self.on_gone: Callable[[], None] = _nothing
        self.queued = self.sent = self.received = 0
        self.closed = self.ended = self.finished = False
        self.reading = False

    def start(self) -> None:
        self.reading = not self.closed

    def pause(self) -> None:
        self.reading = False

    def write(self, data: bytes) -> None:
        if data and not (self.closed or self.finished):
            self.sent += len(data)
            self._peer(data)

    def end(self) -> None:
        self.finished = True

    def finish(self) -> None:
        self.finished = True
        self.on_data, self.on_lost, self.on_drained = _nothing, _nothing, _nothing
        self.close()

    def reset(self) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed, self.reading = True, False
            self.on_data = self.on_end = self.on_drained = _nothing
            gone, self.on_gone = self.on_gone, _nothing
            gone()

    # For whoever plays the peer

    def say(self, data: bytes) -> None:
        self.received += len(data)
        self.on_data(data)

    def say_end(self) -> None:
        self.ended = True
        self.pause()
        self.on_end()


class Owner:
    """What a relay needs of its connection: servers to reach, and who may be."""

    def __init__(self, reached: Callable[[str, int], End]) -> None:
        self._reached = reached
        self.closed = False

    async def reach(self, host: str, port: int) -> Channel:
        return cast("Channel", self._reached(host, port))

    def judge_place(self, host: str, port: int) -> Verdict:
        return judge(host, port)

    def relay_closed(self) -> None:
        self.closed = True


def judge(host: str | bytes, port: int) -> Verdict:
    """As a connection does with a name that came by CONNECT or SOCKS."""
    verdict = decide_name(RULES, host)
    if not verdict.allowed:
        return verdict
    try:
        return decide_connection(RULES, normalise(host), port)
    except NameRefused as error:
        return Verdict(allowed=False, reason=error.reason)


class Stage:
    """A loop that lives as long as the process, and a run in it. What goes wrong in a task is an error here."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._faults: list[BaseException] = []
        self._loop.set_exception_handler(lambda _loop, context: self._faults.append(_fault(context)))
        self._loop.set_task_factory(self._task)
        self.gate = self._loop.run_until_complete(self._gate())

    def _task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(coroutine, loop=loop, **more)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._faults.append(error)

    async def _gate(self) -> RequestCheck:
        issuer = ca.Issuer(ca.new_authority())

        def answer(_events: list[list[Any]]) -> None:
            self._loop.call_soon(ledger.answered)

        ledger = Ledger(self._loop, answer)
        run = ProxiedRun("fuzz", RULES, issuer=issuer, ledger=ledger, secrets={}, canaries=(), names=Names(), roots="")
        run._sweeping.cancel()
        return RequestCheck(run, tls=False)

    def close(self) -> None:
        self._loop.close()

    def play(self, scene: Callable[[], Sequence[Callable[[], None]]]) -> None:
        """Set the scene, then take its steps; between any two of them tasks may run."""
        with contextlib.suppress(Exception):  # it is among the faults
            self._loop.run_until_complete(self._play(scene))
        if self._faults:
            fault = self._faults[0]
            self._faults.clear()
            raise fault

    async def _play(self, scene: Callable[[], Sequence[Callable[[], None]]]) -> None:
        for step in scene():
            step()
            for _turn in range(6):
                await asyncio.sleep(0)


def _fault(context: dict[str, Any]) -> BaseException:
    return context.get("exception") or AssertionError(context["message"])


def pieces(data: bytes) -> list[bytes]:
    """Cut into parts by the first byte: so that what comes in two reads is tried as well."""
    if not data:
        return []
    size, rest = data[0], data[1:]
    if not size:
        return [rest]
    return [rest[at : at + size] for at in range(0, len(rest), size)][:400]
