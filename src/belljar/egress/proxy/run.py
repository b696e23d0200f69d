"""One run at the proxy: its listeners, its names, its connections, and what is told of them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from belljar.egress.ca import Issuer
from belljar.egress.decide.budget import RunBudget
from belljar.egress.decide.canary_tokens import Tokens
from belljar.egress.decide.names import NameRefused, canonical_address, is_address, normalise
from belljar.egress.decide.rules import Rule, Rules
from belljar.egress.decide.steps import Verdict, decide_connection, decide_name
from belljar.egress.decide.synthetic import Names
from belljar.egress.events import UNRECORDED
from belljar.egress.protocols.packets import ICMP, ICMP6, NAMES, TCP, UDP, Attempt, attempt
from belljar.egress.proxy import nameserver
from belljar.egress.proxy.channel import reset
from belljar.egress.proxy.dial import UnreachableError
from belljar.egress.proxy.ledger import Ledger
from belljar.egress.proxy.relay.passing import ByteMeter
from belljar.egress.proxy.time_slices import READ, Signal, TimeSlices

MAX_CONNECTIONS = 1024
_ACCEPTED_AT_ONCE = 8
_LAST_TURNS = 64
"""How often what has arrived is looked at once more when a run ends, if it is that much."""
_SWEEP_SECONDS = 5.0
_PACKET_OUTGOING = 4
"""Of `sockaddr_ll`: what the gateway itself sends, its answers and refusals."""
_MAX_TOLD = 4096
"""Of things told once: refused names, attempts on closed ports."""
NOT_RECORDED = Verdict(allowed=False, reason=UNRECORDED)
CROWDED = Verdict(allowed=False, reason="limit", detail=f"more than {MAX_CONNECTIONS} connections at once")
_SCARCE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_RESOLVED_AT_ONCE = 8
_MAX_SAID = 64
"""Of a connection that is passed on: its role, and where to it was dialled."""

_NO_MORE = object()
Accepted = Callable[[socket.socket], object]
Passed = Callable[[socket.socket, bytes], object]


class Closable(Protocol):
    """A connection in any state."""

    def check(self, now: float) -> None:
        """End it if it has idled for too long."""

    def close(self) -> None:
        """End it at once."""


class ProxiedRun:
    """What the proxy holds of one run. Everything ends with `close`."""

    def __init__(
        self,
        run_id: str,
        rules: Rules,
        *,
        ledger: Ledger,
        issuer: Issuer,
        secrets: Mapping[str, str],
        canaries: Sequence[bytes],
        roots: str,
        names: Names,
    ) -> None:
        self.run_id = run_id
        self.rules = rules
        self.secrets = secrets
        self.tokens = Tokens(canaries)
        self.limits = RunBudget(rules)
        self.decided: dict[Any, Any] = {}
        """Requests that were decided before; `Gate` keeps them."""
        self.issuer = issuer
        """Who signs what this run's jar is shown: it trusts that one."""
        self.roots = roots
        self.names = names
        self.closed = False
        self._account = ledger.account()
        self.turns = TimeSlices(asyncio.get_running_loop(), lambda: self._account.crowded)
        self.turns.searches = bool(self.tokens) or any(item.reflects for item in rules.credentials)
        self.resolving = asyncio.Semaphore(_RESOLVED_AT_ONCE)
        """Names that are asked for at the same time: threads do, and all runs share them."""
        self.act = 0
        """The number of the last decision to let something pass."""
        self.unrecorded = False
        """Whether a decision could not be recorded: nothing passes any more."""
        self._told: set[tuple[object, ...]] = set()
        self._untold = 0
        self._loop = asyncio.get_running_loop()
        self._connections: set[Closable] = set()
        self._listening: list[tuple[socket.socket, Accepted]] = []
        self._others: list[socket.socket] = []
        self._relays: list[tuple[socket.socket, Passed]] = []
        self._packet_sockets: list[tuple[socket.socket, int]] = []
        self._name_sockets: list[socket.socket] = []
        self._ports: set[int] = set()
        self._accepting = False
        self._looked = False
        """Whether what came last was taken: nothing more is accepted."""
        self._released = False
        self._stopped = False
        self._when_empty: Callable[[], None] = lambda: None
        self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self._connections):
            connection.check(now)
        self._sweeping = self._loop.call_later(_SWEEP_SECONDS, self._sweep)

    # What is told

    def tell(
        self,
        kind: str,
        host: str,
        port: int,
        verdict: Verdict,
        *,
        method: str = "",
        path: str = "",
        out: int = 0,
        into: int = 0,
    ) -> None:
        """Tell the host of a decision: an `Event` in the order of its fields."""
        number = self._account.tell(
            [
                *(self.run_id, time.time(), kind, host, port, method, path),
                *(verdict.allowed, verdict.reason, verdict.detail, verdict.key, verdict.where, out, into),
            ]
        )
        if verdict.allowed and kind != "closed":
            self.act = number

    def tell_once(self, kind: str, host: str, port: int, verdict: Verdict) -> None:
        """As `tell`, but the same thing only the first time, and not without end."""
        told = (kind, host, port, verdict.allowed, verdict.reason)
        if told in self._told:
            return
        if len(self._told) >= _MAX_TOLD:
            self._untold += 1
            return
        self._told.add(told)
        self.tell(kind, host, port, verdict)

    # What is recorded

    def note(self, state: str) -> None:
        """What the host says of its records."""
        self.unrecorded = self.unrecorded or state == UNRECORDED

    def recorded(self, act: int) -> bool:
        """Whether what was decided may be done: it is in the audit log."""
        return not self.unrecorded and act <= self._account.written

    def when_answered(self, act: int, then: Callable[[], None]) -> None:
        """Call this when the host has answered for a decision; `recorded` says what."""
        self._account.when_written(act, lambda: self.turns.soon(then))

    def flush(self) -> None:
        """Send what was told and not sent yet."""
        self._account.flush()

    async def until_recorded(self) -> None:
        """Wait until what was decided until now is in the audit log. Raises UnreachableError if it can't be written."""
        if not self.recorded(self.act) and not self.unrecorded:
            answered = Signal()
            self._account.when_written(self.act, answered.set)
            await answered
        if self.unrecorded:
            raise UnreachableError(NOT_RECORDED)

    # Names

    def lookup(self, name: str) -> tuple[str, str] | None:
        """For DNS: the addresses that stand for an allowed name."""
        verdict, host = self.judge_name(name)
        return self.names.addresses(host) if verdict.allowed else None

    def judge_name(self, name: str | bytes) -> tuple[Verdict, str]:
        """Whether the run may know a name, and its normal form; told of."""
        try:
            host = normalise(name)
        except NameRefused:
            host = (name if isinstance(name, str) else name.decode("latin-1"))[:253]
        if self.tokens and self.tokens.in_name(host):
            self.canary_found(host, 0)
            return Verdict(allowed=False, reason="canary"), host
        known = host in self.names
        verdict = decide_name(self.rules, name, names_so_far=len(self.names) - known)
        if not is_address(host):  # of an address, what is told is that it is dialled
            self.tell_once("name", host, 0, verdict)
        return verdict, host

    def dialled(self, address: str, port: int) -> tuple[str, int]:
        """What a connection to this place was dialled as: the name behind its address, or the address."""
        address = canonical_address(address)
        return self.names.name_at(address) or address, port

    # What passes

    def meter(self, host: str, port: int, rule: Rule | None) -> ByteMeter | None:
        """Who counts and searches the bytes of a stream, if anyone has to."""
        limited = self.rules.budget_bytes is not None or (rule is not None and rule.budget_bytes is not None)
        return ByteMeter(self, host, port, rule) if limited or self.tokens else None

    def canary_found(self, host: str, port: int) -> None:
        """A token was about to leave: tell of it, and let nothing of this run pass any more."""
        if not self._stopped:
            self._stopped = True
            self.tell("canary", host, port, Verdict(allowed=False, reason="canary"))
            self._loop.call_soon(self.close)  # before anything else of this run

    # Listeners

    def listen(self, sock: socket.socket, port: int, accepted: Accepted) -> None:
        """Accept connections from this socket."""
        self._listening.append((sock, accepted))
        self._ports.add(port)
        if self._accepting:
            self._watch(sock, partial(self._accept, sock, accepted))

    def _watch(self, sock: socket.socket, ready: Callable[[], object]) -> None:
        self.turns.watch(sock.fileno(), READ, lambda _events: ready())

    def _forget(self, sock: socket.socket) -> None:
        self.turns.forget(sock.fileno())

    def take_over(self, sock: socket.socket, accepted: Passed) -> None:
        """Take the connections that are passed over this socket, each with what is said of it."""
        self._others.append(sock)
        self._relays.append((sock, accepted))
        self._watch(sock, partial(self._taken, sock, accepted))

    def _taken(self, sock: socket.socket, accepted: Passed) -> bool:
        """Take one; whether there may be more."""
        try:
            said, descriptors, _flags, _address = socket.recv_fds(sock, _MAX_SAID, 1)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            said, descriptors = b"", []
        if not said:  # whoever passed them is gone
            self._forget(sock)
        for descriptor in descriptors:
            passed = socket.socket(fileno=descriptor)
            if len(self._connections) >= MAX_CONNECTIONS:  # a queue that is left full loses them untold
                reset(passed)
                passed.close()
                self.tell_once("proxy", "", 0, CROWDED)
                continue
            passed.setblocking(False)  # noqa: FBT003
            accepted(passed, said)
        return bool(said)

    def answer_names(self, sock: socket.socket) -> None:
        """Answer DNS questions that arrive at this UDP socket."""
        self._others.append(sock)
        self._name_sockets.append(sock)
        nameserver.prepare(sock)
        self._watch(sock, partial(nameserver.answer_datagrams, sock, self.lookup))

    def watch(self, sock: socket.socket) -> None:
        """Report what this packet socket sees of attempts on ports where nobody listens."""
        skipped = 14 if sock.type == socket.SOCK_RAW else 0
        self._packet_sockets.append((sock, skipped))
        self._watch(sock, partial(self._packets, sock, skipped))

    def start(self) -> None:
        """Accept connections (again)."""
        if not self._accepting and not self.closed and not self._looked:
            self._accepting = True
            for sock, accepted in self._listening:
                self._watch(sock, partial(self._accept, sock, accepted))

    def _stop_accepting(self) -> None:
        if self._accepting:
            self._accepting = False
            for sock, _accepted in self._listening:
                self._forget(sock)

    def _accept(self, listener: socket.socket, accepted: Accepted) -> bool:
        """Accept what waits; whether there may be more."""
        for _connection in range(_ACCEPTED_AT_ONCE):
            if len(self._connections) >= MAX_CONNECTIONS:
                self._stop_accepting()  # the others wait in the kernel's queue until one of these has ended
                return False
            try:
                sock, _peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return False
            except OSError as error:
                if error.errno in _SCARCE:
                    self._stop_accepting()
                    self._loop.call_later(0.2, self.start)
                return False
            sock.setblocking(False)  # noqa: FBT003
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            accepted(sock)
        return True

    def _packets(self, sock: socket.socket, skipped: int) -> bool:
        """Look at what has arrived; whether there may be more."""
        for _packet in range(_ACCEPTED_AT_ONCE):
            try:
                packet, place = sock.recvfrom(256)
            except OSError:
                return False
            if place[2] == _PACKET_OUTGOING:
                continue
            tried = attempt(packet[skipped:])
            if tried is not None:
                self._attempted(tried)
        return True

    def _attempted(self, tried: Attempt) -> None:
        host = self.names.name_at(tried.address) or tried.address
        if tried.protocol == TCP:
            verdict = decide_connection(self.rules, host, tried.port)
            if tried.port not in self._ports and not verdict.allowed:
                self.tell_once("connect", host, tried.port, verdict)
            return
        if tried.protocol == UDP and tried.port == 53:
            return
        code = {UDP: "udp", ICMP: "icmp", ICMP6: "icmp"}.get(tried.protocol, "protocol")
        detail = NAMES.get(tried.protocol, f"protocol {tried.protocol}")
        self.tell_once("udp", host, tried.port, Verdict(allowed=False, reason=code, detail=detail))

    # Connections

    def add(self, connection: Closable) -> None:
        """Count a connection in."""
        self._connections.add(connection)

    def remove(self, connection: Closable) -> None:
        """Count it out."""
        self._connections.discard(connection)
        if self.closed:
            if not self._connections:
                self._when_empty()
                self._retire()
            return
        if not self._accepting and len(self._connections) < MAX_CONNECTIONS:
            self.start()

    def when_empty(self, told: Callable[[], None]) -> None:
        """Call this when the last connection has ended, after `close`."""
        self._when_empty = told
        if not self._connections:
            told()

    def look_once_more(self, then: Callable[[], None]) -> None:
        """The code has ended: what it tried last is judged, too. Then call this, a turn after the last of it."""
        self._go_on(self._last_looks(), then)

    def _go_on(self, looks: Iterator[None], then: Callable[[], None]) -> None:
        more = next(looks, _NO_MORE) is None
        self.turns.soon(self._go_on, looks, then) if more else self.turns.soon(then)

    def _last_looks(self) -> Iterator[None]:
        if self.closed:
            return
        for sock, skipped in list(self._packet_sockets):
            turns = 0
            while self._packets(sock, skipped) and turns < _LAST_TURNS:
                turns += 1
                yield
        for sock in list(self._name_sockets):
            nameserver.answer_datagrams(sock, self.lookup)
            yield
        for sock, accepted in list(self._listening):
            while self._accepting and self._accept(sock, accepted):
                yield
        for sock, passed in list(self._relays):
            while self._taken(sock, passed):
                yield
            self._forget(sock)
        self._looked = True  # what is accepted from here on would be ended before it was judged
        self._stop_accepting()

    def close(self, *, at_once: bool = False) -> None:
        """End every listener and every connection, in the run's next turns, or at once."""
        self.end(at_once=at_once)
        self.let_go()

    def end(self, *, at_once: bool = False) -> None:
        """Accept nothing more, carry nothing more, and end every connection.

        A thousand of them take a tenth of a second: they end in the run's turns, in which nothing else is done.
        """
        if self.closed:
            return
        self.closed = True
        self._sweeping.cancel()
        self._stop_accepting()
        if self._connections:
            self.let_go()
            ending = list(self._connections)
            while at_once and self._end_one(ending):
                pass
            self.turns.only(lambda: self._end_one(ending))
        if self._untold:
            detail = f"{self._untold} more refusals of other names and ports"
            self.tell("proxy", "", 0, Verdict(allowed=False, reason="limit", detail=detail))

    @staticmethod
    def _end_one(ending: list[Closable]) -> bool:
        """End one connection; whether there are more."""
        if ending:
            ending.pop().close()
        return bool(ending)

    def let_go(self) -> None:
        """Close every listener."""
        for sock, _accepted in self._listening:
            sock.close()
        for sock in self._others:
            self._forget(sock)
            sock.close()
        for sock, _skipped in self._packet_sockets:  # the kernel waits for all its processors before it lets one go
            self._forget(sock)
            self._loop.run_in_executor(None, sock.close)
        self._listening, self._others, self._packet_sockets = [], [], []
        self._name_sockets, self._relays = [], []
        self._released = True
        self._retire()

    def _retire(self) -> None:
        """Take no more turns, when there is nothing left to do in them."""
        if self._released and not self._connections:
            self.turns.close()
