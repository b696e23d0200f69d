"""Connections that are passed to the proxy one by one, for a jar whose network is its loopback."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator

import dns.message
import dns.rcode
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from proxy_bench import Server, echo, rule, rules, serving

from belljar.egress.client import Listener, ProxyClient
from belljar.egress.events import Event
from belljar.egress.rules import Rules
from belljar.guest.relay import hand_over


class Relay:
    """A run that the proxy serves by a relay alone."""

    def __init__(self, proxy: ProxyClient, given: Rules) -> None:
        self.events: list[Event] = []
        self._relay, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        listeners = [Listener("relay", 0, theirs.detach())]
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
                return end.recv(1000)
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
