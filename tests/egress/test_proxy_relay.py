"""Connections that are passed to the proxy one by one, for a jar whose network is its loopback."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import dns.message
import dns.rcode
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy_bench import Bench, Server, echo, rule, rules, serving

from belljar.egress.client.client import ProxyClient, ServedListener
from belljar.egress.decide.rules import Rules
from belljar.egress.events import Event
from belljar.egress.proxy.channel import reset
from belljar.egress.proxy.conversation import Conversation
from belljar.egress.proxy.proxy import _Questions
from belljar.egress.proxy.run import CROWDED, MAX_CONNECTIONS
from belljar.egress.proxy.time_slices import TimeSlices
from belljar.guest.container.relay import hand_over, receive


class Relay:
    """A run that the proxy serves by a relay alone."""

    def __init__(self, proxy: ProxyClient, given: Rules) -> None:
        self.events: list[Event] = []
        self._relay, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        listeners = [ServedListener("relay", 0, theirs.detach())]
        self._served = proxy.serve(f"run-{os.urandom(4).hex()}", given, {}, (), listeners, None, self._take)

    def _take(self, events: list[Event]) -> None:
        self.events += events

    def open(self, said: bytes) -> socket.socket:
        """A connection of which this is said."""
        ours, theirs = socket.socketpair()
        ours.settimeout(10)
        with theirs:
            hand_over(self._relay, said, theirs)
        return ours

    def ask(self, name: str, kind: str = "A") -> dns.message.Message:
        wire = dns.message.make_query(name, kind).to_wire()
        with self.open(b"dns") as end:
            end.sendall(struct.pack("!H", len(wire)) + wire)
            size = struct.unpack("!H", end.recv(2))[0]
            return dns.message.from_wire(end.recv(size))

    def say(self, said: bytes, word: bytes = b"word") -> bytes:
        """What comes back over a connection of which this is said."""
        with self.open(said) as end:
            try:
                end.sendall(word)
                return receive(end, 1000)[0]
            except ConnectionError:
                return b""

    def close(self) -> None:
        self._served.close()
        self._relay.close()

    @property
    def denials(self) -> set[tuple[str, str, int, str]]:
        return {(event.kind, event.host, event.port, event.reason) for event in self.events if not event.allowed}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(echo) as made:
        yield made


@pytest.fixture
def relay(proxy: ProxyClient, server: Server) -> Iterator[Relay]:
    made = Relay(proxy, rules(rule("plain.test", server.port)))
    yield made
    made.close()
    assert not [event for event in made.events if event.kind == "proxy"]


def test_names_have_addresses_of_loopback(relay: Relay) -> None:
    """And none of IPv6, which is no reason to say that the name does not exist."""
    (answer,) = relay.ask("plain.test").answer
    assert [record.address for record in answer] == ["127.18.1.0"]
    six = relay.ask("plain.test", "AAAA")
    assert (six.rcode(), six.answer) == (dns.rcode.NOERROR, [])
    assert relay.ask("other.test").rcode() == dns.rcode.NXDOMAIN
    relay.close()
    assert relay.denials == {("name", "other.test", 0, "name-not-listed")}


def test_place_is_judged_as_one_that_was_dialled(relay: Relay, server: Server) -> None:
    """The address of a name is that name, from when it was asked for; any other is an address that nobody listed."""
    place = f"tcp 127.18.1.0:{server.port}".encode()
    assert relay.say(place) == b""
    relay.ask("plain.test")
    assert relay.say(place) == b"word"
    for address in ("127.0.0.1", "127.18.1.1", "127.18.0.1", "198.18.1.0", "169.254.169.254"):
        assert relay.say(f"tcp {address}:{server.port}".encode()) == b"", address
    assert relay.say(b"tcp 127.18.1.0:80") == b""
    assert server.accepted == 1
    relay.close()
    assert relay.denials == {
        ("connect", "127.18.1.0", server.port, "address-not-listed"),
        ("connect", "127.0.0.1", server.port, "address-not-listed"),
        ("connect", "127.18.1.1", server.port, "address-not-listed"),
        ("connect", "127.18.0.1", server.port, "address-not-listed"),
        ("connect", "198.18.1.0", server.port, "address-not-listed"),
        ("connect", "169.254.169.254", server.port, "address-not-listed"),
        ("connect", "plain.test", 80, "port-not-listed"),
    }


def test_refusal_in_words(relay: Relay) -> None:
    """To a client that speaks HTTP."""
    said = relay.say(b"tcp 192.0.2.1:80", b"GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 403")
    assert b"address-not-listed" in said


@pytest.mark.parametrize(
    "said",
    [
        b"tcp",
        b"tcp ",
        b"tcp plain.test:80",
        b"tcp 127.18.1.0",
        b"tcp 127.18.1.0:0",
        b"tcp 127.18.1.0:65536",
        b"tcp 127.18.1.0:80 ",
        b"tcp 127.1:80",
        b"tcp\x00127.18.1.0:80",
        b"dns 127.18.1.0:80",
        b"socks ",
        b"relay",
        b"\xff" * 64,
    ],
)
def test_nonsense_is_closed(relay: Relay, said: bytes) -> None:
    """At once, and no name passes for a place."""
    assert relay.say(said) == b""
    assert relay.ask("plain.test").rcode() == dns.rcode.NOERROR
    relay.close()
    assert relay.denials == set()


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.binary(min_size=1, max_size=80))
def test_whatever_is_said(relay: Relay, said: bytes) -> None:
    """The proxy lives on, and reaches nobody."""
    with relay.open(b"tcp " + said) as end:
        end.shutdown(socket.SHUT_WR)
    assert relay.ask("other.test").rcode() == dns.rcode.NXDOMAIN


@pytest.mark.parametrize("count", [1, 2, 8, 100])
def test_what_was_tried_last_is_judged(proxy: ProxyClient, count: int) -> None:
    """Each connection that waits when the run ends is told, and the end waits for none of them."""
    made = Relay(proxy, rules(rule("plain.test", 80)))
    ends = [made.open(b"tcp 192.0.2.1:80") for _ in range(count)]
    ends += [made.open(b"dns") for _ in range(count)]
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 5
    assert [event.host for event in made.events if event.kind == "connect"] == count * ["192.0.2.1"]
    for end in ends:
        end.close()


def test_what_was_said_last_is_judged(proxy: ProxyClient) -> None:
    """A question, or a request to a proxy, that came before the end; whoever carried it is gone already."""
    made = Relay(proxy, rules(rule("plain.test", 80)))
    wire = dns.message.make_query("other.test", "A").to_wire()
    for said, word in (
        (b"dns", struct.pack("!H", len(wire)) + wire),
        (b"http-proxy", b"CONNECT proxied.test:443 HTTP/1.1\r\nHost: proxied.test:443\r\n\r\n"),
    ):
        with made.open(said) as end:
            end.sendall(word)
    made._relay.close()
    made._served.close()
    assert {(event.kind, event.host) for event in made.events} >= {("name", "other.test"), ("connect", "proxied.test")}


def test_end_amid_connections(proxy: ProxyClient) -> None:
    """Whenever it comes: some wait to be taken, some are taken and not begun."""
    for turn in range(20):
        made = Relay(proxy, rules(rule("plain.test", 80)))
        ends = [made.open((b"dns", b"tcp 192.0.2.1:80")[turn % 2]) for _ in range(40)]
        began = time.monotonic()
        made.close()
        assert time.monotonic() - began < 5, turn
        for end in ends:
            end.close()


@pytest.mark.parametrize("role", ["tcp", "dns-tcp"])
def test_end_amid_connections_to_a_gateway(proxy: ProxyClient, role: str) -> None:
    """More than are accepted at once: all are judged there as well."""
    bench = Bench(proxy, rules(rule("plain.test", 80)))
    ends = [socket.create_connection(("127.0.0.1", bench.ports[role])) for _ in range(300)]
    began = time.monotonic()
    bench.close()
    assert time.monotonic() - began < 5
    if role == "tcp":
        assert len([event for event in bench.events if event.kind == "connect"]) == 300
    for end in ends:
        end.close()


class Counting:
    """As much of a run as counts its connections."""

    def __init__(self) -> None:
        self.open: set[object] = set()
        self.add, self.remove = self.open.add, self.open.remove
        self.turns = TimeSlices(asyncio.get_running_loop())


@pytest.mark.parametrize(
    "begin",
    [
        lambda run, sock: Conversation(None, run, sock, "tcp", ("192.0.2.1", 80)),  # type: ignore[arg-type]
        lambda run, sock: _Questions(run, sock),
    ],
)
def test_connection_that_ends_before_it_began(begin: Callable[[Any, socket.socket], Any]) -> None:
    """Is counted out and closed, though its task never had a step: the run's end waits for that."""

    async def both() -> None:
        run = Counting()
        ours, theirs = socket.socketpair()
        with ours:
            connection = begin(run, theirs)
            assert run.open == {connection}
            connection.close()
            for _turn in range(3):
                await asyncio.sleep(0)
            assert not run.open
            assert theirs.fileno() == -1
        run.turns.close()

    asyncio.run(both())


def half_then_reset(sock: socket.socket) -> None:
    """A server that breaks off in its answer, whose first part the proxy has had time to pass on."""
    sock.recv(100)
    sock.sendall(b"half of it")
    sock.recv(100)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _read(end: socket.socket) -> tuple[bytes, bool]:
    """All that comes, and whether it was broken off."""
    read = b""
    while True:
        data, broken_off = receive(end, 1 << 16)
        read += data
        if broken_off or not data:
            return read, broken_off


@pytest.fixture
def dialled(proxy: ProxyClient) -> Iterator[Callable[[Server], socket.socket]]:
    """Connections to a server that the policy allows."""
    opened: list[Relay | socket.socket] = []

    def dial(server: Server) -> socket.socket:
        made = Relay(proxy, rules(rule("plain.test", server.port)))
        made.ask("plain.test")
        end = made.open(f"tcp 127.18.1.0:{server.port}".encode())
        opened.extend((made, end))
        end.sendall(b"\x01word")
        return end

    yield dial
    for one in opened:
        one.close()


def test_reset_is_no_end_of_file(dialled: Callable[[Server], socket.socket]) -> None:
    """What came before it arrives, and then who reads knows that it is not all."""
    with serving(half_then_reset) as server:
        end = dialled(server)
        assert receive(end, 100) == (b"half of it", False)
        end.sendall(b"go on")
        assert _read(end) == (b"", True)


def test_reset_when_the_queue_is_full() -> None:
    """The mark has room all the same."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        sent = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                sent += theirs.send(b"x" * 1000)
        reset(theirs)
        theirs.close()
        assert _read(ours) == (b"x" * sent, True)


def test_end_of_file_is_no_reset(dialled: Callable[[Server], socket.socket]) -> None:
    """Said by either side first."""
    with serving(echo) as server:
        end = dialled(server)
        end.shutdown(socket.SHUT_WR)
        assert _read(end) == (b"\x01word", False)
    with serving(lambda sock: sock.sendall(sock.recv(100))) as server:
        assert _read(dialled(server)) == (b"\x01word", False)


def test_refusal_without_words_is_a_reset(relay: Relay) -> None:
    """As a gateway's."""
    with relay.open(b"tcp 192.0.2.1:80") as end:
        end.sendall(b"\x01word")
        assert _read(end) == (b"", True)


def test_more_than_so_many_are_told_of(proxy: ProxyClient) -> None:
    """Once: each of the others is judged, and those that are too many are reset."""
    made = Relay(proxy, rules(rule("plain.test", 80)))
    ends = [made.open(b"http-proxy") for _ in range(MAX_CONNECTIONS + 50)]
    assert [_read(end) for end in ends[MAX_CONNECTIONS:]] == 50 * [(b"", True)]
    made.close()
    assert [(event.reason, event.detail) for event in made.events] == [("limit", CROWDED.detail)]
    for end in ends:
        end.close()
