"""The transparent way: programs that know of no proxy, in a network namespace where every address is local."""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from proxy_bench import HttpServer, echo, http_serving, rule, rules, serving

from belljar.egress.client.client import ProxyClient, ServedListener
from belljar.egress.decide.rules import Rules
from belljar.egress.events import Event

INSIDE = """
import array, json, os, socket, subprocess, sys
for command in ("link set lo up", "route add local 0.0.0.0/0 dev lo", "-6 route add local ::/0 dev lo"):
    subprocess.run(["ip", *command.split()], check=True)
ports = json.loads(sys.argv[2])
held = []
for family, place in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    for kind, port in [*((socket.SOCK_STREAM, port) for port in (*ports, 53)), (socket.SOCK_DGRAM, 53)]:
        sock = socket.socket(family, kind)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((place, port))
        if kind == socket.SOCK_STREAM:
            sock.listen(64)
        held.append((port, kind, sock))
packets = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(3))
control = socket.socket(fileno=int(sys.argv[1]))
fds = array.array("i", [*(sock.fileno() for _port, _kind, sock in held), packets.fileno()])
told = [[port, kind == socket.SOCK_DGRAM] for port, kind, _sock in held]
control.sendmsg([json.dumps(told).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
for _port, _kind, sock in held:
    sock.close()
packets.close()

def ask(name, kind="A", tcp=False, server="9.9.9.9"):
    import dns.message, dns.query, dns.rcode
    query = dns.message.make_query(name, kind)
    answer = (dns.query.tcp if tcp else dns.query.udp)(query, server, timeout=5)
    return dns.rcode.to_text(answer.rcode()), [item.to_text() for rrset in answer.answer for item in rrset]

def fetch(host, port, text, family=socket.AF_INET, kind="A"):
    address = ask(host, kind)[1][0] if kind else host
    with socket.create_connection((address, port), timeout=10) as sock:
        sock.sendall(text.encode())
        got = b""
        try:
            while data := sock.recv(65536):
                got += data
        except ConnectionResetError:
            got += b"RESET"
    return got.decode()

for line in sys.stdin:
    try:
        said = {"ok": eval(line)}
    except Exception as error:
        said = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(said), flush=True)
"""


class Inside:
    """A namespace whose listeners the proxy serves, and a Python in it."""

    def __init__(self, proxy: ProxyClient, given: Rules, ports: list[int]) -> None:
        self.events: list[Event] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            self._process = subprocess.Popen(
                ["unshare", "-Urn", sys.executable, "-c", INSIDE, str(theirs.fileno()), json.dumps(ports)],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            theirs.close()
            message, ancillary, _flags, _address = ours.recvmsg(65536, 4096)
        if not message:
            self.close()
            pytest.skip("no user and network namespaces here")
        fds = array.array("i")
        fds.frombytes(ancillary[0][2])
        listeners = [
            ServedListener("dns-udp" if datagram else "dns-tcp" if port == 53 else "tcp", port, fd)
            for (port, datagram), fd in zip(json.loads(message), fds[:-1], strict=True)
        ]
        listeners.append(ServedListener("packet", 0, fds[-1]))
        self._served = proxy.serve("inside", given, {}, (), listeners, None, self.events.extend)

    def __call__(self, expression: str) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(expression + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        return said.get("ok", said.get("error"))

    def end(self) -> list[Event]:
        self._served.close()
        return self.events

    def close(self) -> None:
        with contextlib.suppress(AttributeError):
            self._served.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextlib.contextmanager
def inside(proxy: ProxyClient, given: Rules, *ports: int) -> Iterator[Inside]:
    if not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs unshare and ip")
    made = Inside(proxy, given, list(ports))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def server() -> Iterator[HttpServer]:
    with http_serving() as made:
        yield made


def test_names_and_what_they_stand_for(proxy: ProxyClient, server: HttpServer) -> None:
    with inside(proxy, rules(rule("web.test", server.port)), server.port) as jar:
        code, addresses = jar("ask('web.test')")
        assert code == "NOERROR"
        assert addresses[0].startswith("198.18.")
        assert jar("ask('WEB.test.', tcp=True, server='2001:db8::1')") == [code, addresses]
        assert jar("ask('web.test', 'AAAA')")[1][0].startswith("fd62:656c:6c6a::")
        assert jar("ask('web.test', 'TXT')") == ["NOERROR", []]
        assert jar("ask('evil.test')") == ["NXDOMAIN", []]
        assert jar("ask('a\\\\.b.test')")[0] == "NXDOMAIN"
        denied = [event.host for event in jar.end() if event.kind == "name" and not event.allowed]
        assert denied == ["evil.test", "a\\.b.test"]


def test_requests_by_name_over_both_families(proxy: ProxyClient, server: HttpServer) -> None:
    port = server.port
    text = "'GET /t HTTP/1.1\\r\\nHost: web.test\\r\\nConnection: close\\r\\n\\r\\n'"
    with inside(proxy, rules(rule("web.test", port)), port) as jar:
        assert jar(f"fetch('web.test', {port}, {text})").endswith("GET /t ")
        assert jar(f"fetch('web.test', {port}, {text}, kind='AAAA')").endswith("GET /t ")


def test_addresses_that_were_never_given_are_refused(proxy: ProxyClient, server: HttpServer) -> None:
    port = server.port
    text = "'GET /t HTTP/1.1\\r\\nHost: web.test\\r\\n\\r\\n'"
    with inside(proxy, rules(rule("web.test", port)), port) as jar:
        for address in (
            "127.0.0.1",
            "1.2.3.4",
            "198.18.1.7",
            "198.18.0.1",
            "::1",
            "2001:db8::5",
            "fd62:656c:6c6a::200",
        ):
            assert "address-not-listed" in jar(f"fetch('{address}', {port}, {text}, kind='')"), address
        assert jar(f"fetch('9.9.9.9', {port}, '\\0\\0', kind='')") == "RESET"
        assert server.seen == []


def test_a_listed_address_is_dialled_as_it_is(proxy: ProxyClient, server: HttpServer) -> None:
    """The address that the guest dials stands for itself; here it is pinned to where the test's server is."""
    port = server.port
    text = "'GET /t HTTP/1.1\\r\\nHost: 192.0.2.7\\r\\nConnection: close\\r\\n\\r\\n'"
    with inside(proxy, rules(rule("192.0.2.7", port)), port) as jar:
        assert jar(f"fetch('192.0.2.7', {port}, {text}, kind='')").endswith("GET /t ")


def test_the_hosts_own_ports(proxy: ProxyClient) -> None:
    with (
        serving(echo) as one,
        serving(echo) as other,
        inside(proxy, rules(host_ports=(one.port,)), one.port, other.port) as jar,
    ):
        sent = "socket.create_connection((ask('host.belljar.internal')[1][0], {}), 5)"
        jar(f"globals().update(s={sent.format(one.port)}, t={sent.format(other.port)})")
        assert jar("s.sendall(b'\\0x') or s.recv(9).decode()") == "\0x"
        jar("t.sendall(b'\\0x')")
        assert "Reset" in str(jar("t.recv(9).decode()"))
        assert other.accepted == 0


def test_attempts_on_other_ports_and_protocols_are_told(proxy: ProxyClient, server: HttpServer) -> None:
    with inside(proxy, rules(rule("web.test", server.port)), server.port) as jar:
        assert "Refused" in jar("socket.create_connection((ask('web.test')[1][0], 25), 5)")
        assert "Refused" in jar("socket.create_connection(('2001:db8::7', 26), 5)")
        jar("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('8.8.4.4', 443))")
        jar("socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b'x', ('2001:db8::8', 123))")
        told = {(event.kind, event.host, event.port, event.reason) for event in jar.end() if not event.allowed}
        assert ("connect", "web.test", 25, "port-not-listed") in told
        assert ("connect", "2001:db8::7", 26, "address-not-listed") in told
        assert ("udp", "8.8.4.4", 443, "udp") in told
        assert ("udp", "2001:db8::8", 123, "udp") in told


def test_what_was_tried_last_is_told_as_well(proxy: ProxyClient, server: HttpServer) -> None:
    """More than is looked at in one turn, all of it in the moment before the run's end: the proxy is held meanwhile."""
    with inside(proxy, rules(rule("web.test", server.port)), server.port) as jar:
        assert jar("globals().update(u=socket.socket(socket.AF_INET, socket.SOCK_DGRAM), held=[])") is None
        os.kill(proxy.pid, signal.SIGSTOP)
        try:
            jar("[u.sendto(b'x', ('8.8.4.4', port)) for port in range(1000, 1050)]")
            jar(f"[held.append(socket.create_connection((f'192.0.2.{{n}}', {server.port}), 5)) for n in range(1, 21)]")
            jar("u.sendto(b'\\0\\7\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0\\4last\\4test\\0\\0\\1\\0\\1', ('9.9.9.9', 53))")
            ending = threading.Thread(target=jar.end)
            ending.start()
        finally:
            os.kill(proxy.pid, signal.SIGCONT)
        ending.join()
        told = {(event.kind, event.host, event.port) for event in jar.events if not event.allowed}
        assert {port for kind, host, port in told if kind == "udp" and host == "8.8.4.4"} >= set(range(1000, 1050))
        assert {host for kind, host, _port in told if kind == "connect"} == {f"192.0.2.{n}" for n in range(1, 21)}
        assert ("name", "last.test", 0) in told
