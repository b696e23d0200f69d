"""The proxy: what all its runs share, and the sockets that each of them brings."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from belljar.egress.ca import Authority, Issuer
from belljar.egress.decide.names import NameRefused, is_address, split_authority
from belljar.egress.decide.rules import Rules
from belljar.egress.decide.synthetic import LOOPBACK, Names
from belljar.egress.proxy import nameserver
from belljar.egress.proxy.conversation import Conversation
from belljar.egress.proxy.dial import Dialler
from belljar.egress.proxy.ledger import Ledger
from belljar.egress.proxy.run import ProxiedRun
from belljar.egress.proxy.time_slices import Errand
from belljar.egress.proxy.upstream import Verifier

_STREAMS = frozenset({"tcp", "http-proxy", "socks"})


class Proxy:
    """Serves runs. Lives in a process of its own, outside every jar."""

    def __init__(self, roots: str, ledger: Ledger) -> None:
        self.dialler = Dialler()
        self.verifier = Verifier(roots)
        self._ledger = ledger
        self._issuers: dict[str, Issuer] = {}
        self._runs: dict[str, ProxiedRun] = {}

    def serve(
        self,
        run_id: str,
        rules: Rules,
        listeners: Sequence[tuple[str, int, socket.socket]],
        *,
        authority: Authority,
        secrets: Mapping[str, str],
        canaries: Sequence[bytes],
        roots: str,
    ) -> None:
        """Serve a run at these sockets from now on: each with its role and its port."""
        if authority.certificate not in self._issuers:
            self._issuers[authority.certificate] = Issuer(authority)
        issuer = self._issuers[authority.certificate]
        names = Names(LOOPBACK) if any(role == "relay" for role, _port, _sock in listeners) else Names()
        run = ProxiedRun(
            run_id,
            rules,
            ledger=self._ledger,
            issuer=issuer,
            secrets=secrets,
            canaries=canaries,
            roots=roots,
            names=names,
        )
        self._runs[run_id] = run
        for role, port, sock in listeners:
            sock.setblocking(False)  # noqa: FBT003
            if role in _STREAMS:
                run.listen(sock, port, partial(_converse, self, run, role))
            elif role == "dns-tcp":
                run.listen(sock, port, partial(_Questions, run))
            elif role == "dns-udp":
                run.answer_names(sock)
            elif role == "relay":
                run.take_over(sock, partial(_take, self, run))
            elif role == "packet":
                run.watch(sock)
            else:
                sock.close()
        run.start()

    def renew(self, run_id: str, secrets: Mapping[str, str]) -> None:
        """Use other secrets for a run from now on."""
        if run_id in self._runs:
            self._runs[run_id].secrets = secrets

    def flush(self, run_id: str) -> None:
        """Send every event of a run that was decided until now."""
        if run_id in self._runs:
            self._runs[run_id].flush()

    def note(self, run_id: str, state: str) -> None:
        """What the host says of a run's records: `unrecorded`."""
        if run_id in self._runs:
            self._runs[run_id].note(state)

    def close(self, run_id: str, closed: Callable[[], None] = lambda: None) -> None:
        """End a run, and say so when it has no connection any more. Its listeners, which nobody can dial, follow."""
        run = self._runs.pop(run_id, None)
        if run is None:
            closed()
            return

        def end() -> None:
            run.end()
            run.when_empty(told)

        def told() -> None:
            run.flush()
            closed()
            run.let_go()

        run.look_once_more(end)

    def close_all(self) -> None:
        """End every run."""
        for run in self._runs.values():
            run.close(at_once=True)  # there are no more turns
        self._runs.clear()


def _converse(proxy: Proxy, run: ProxiedRun, role: str, sock: socket.socket) -> None:
    Conversation(proxy, run, sock, role)


def _take(proxy: Proxy, run: ProxiedRun, sock: socket.socket, said: bytes) -> None:
    """A connection that was carried here. What is said of it began in a jar: it is one of these, or nothing.

    The place that was dialled is judged as one that a socket of the gateway tells.
    """
    role, _, place = said.partition(b" ")
    try:
        if role == b"tcp":
            address, port = split_authority(place)
            if is_address(address) and port:
                Conversation(proxy, run, sock, "tcp", (address, port))
                return
        elif said in (b"http-proxy", b"socks"):
            Conversation(proxy, run, sock, said.decode())
            return
        elif said == b"dns":
            _Questions(run, sock)
            return
    except NameRefused:
        pass
    sock.close()


class _Questions:
    """A DNS conversation over TCP."""

    def __init__(self, run: ProxiedRun, sock: socket.socket) -> None:
        self._run = run
        self._sock = sock
        run.add(self)
        self._errand = Errand(run.turns, self._answer(), self._answered)

    async def _answer(self) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await nameserver.answer_stream(self._sock, self._run.lookup)

    def _answered(self) -> None:
        """Done, or cancelled before the first step."""
        self._sock.close()
        self._run.remove(self)

    def check(self, now: float) -> None:
        """Its own timeouts end it."""

    def close(self) -> None:
        """End it."""
        self._errand.cancel()
