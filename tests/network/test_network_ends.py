"""How a network ends: with its run, with its proxy, and without a trace."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from network_routes import OpenJar, codes, decisions, denial, network, rule, run_python, summary, told
from network_servers import Server

from belljar import RunResult, Sandbox
from belljar.egress.client.client import PROXY
from belljar.sandbox.record.events import Finished, Output

TALK_ON = """
import socket, sys, time
end = socket.create_connection(("plain.test", 7))
end.sendall(b"one")
assert end.recv(10) == b"one"
print("connected", flush=True)
end.settimeout(15)
print("then:", end.recv(10), flush=True)
deadline = time.monotonic() + 10
while time.monotonic() < deadline:  # it takes a moment until all of its descriptors are closed
    try:
        end = socket.create_connection((sys.argv[1], 7), timeout=5)
        end.sendall(b"two")
    except OSError as error:
        print(type(error).__name__, flush=True)
        break
else:
    print("reached", flush=True)
"""


@contextlib.contextmanager
def started(jar: Sandbox, code: str, *args: str) -> Iterator[Callable[[], RunResult]]:
    """A run that has printed its first word; the call waits for its end."""
    with jar.stream(code, args=args) as stream:
        assert isinstance(next(stream), Output)
        yield lambda: _finished(list(stream))


def _finished(events: list[Output | Finished]) -> RunResult:
    last = events[-1]
    assert isinstance(last, Finished)
    return last.result


def test_proxy_that_is_killed_ends_the_network_of_its_runs(open_jar: OpenJar, plain: Server) -> None:
    """Fail closed: no connection goes on, no new one is made, the result says why; the next run has a new proxy."""
    jar = open_jar(network(rule("plain.test", plain.address, 7), {"host": "192.0.2.1", "ports": [7]}))
    with started(jar, TALK_ON, "192.0.2.1") as finished:
        killed = PROXY.pid
        os.kill(killed, signal.SIGKILL)
        result = finished()
    lines = told(result).splitlines()
    assert lines[0] == "connected"
    assert lines[1] == "then: b''" or "Error" in lines[1], lines
    assert "reached" not in lines, lines
    assert denial(result, "proxy").target == "the egress proxy"
    assert plain.ended(5)
    assert plain.heard == ["connection", "one"]
    code = "import socket; e = socket.create_connection(('plain.test', 7)); e.sendall(b'again'); print(e.recv(10))"
    assert told(run_python(jar, code)) == "b'again'\n"
    assert PROXY.pid not in (0, killed)


def test_names_end_with_the_proxy(open_jar: OpenJar, plain: Server) -> None:
    """Nobody answers for a name any more, and nobody else is asked."""
    code = TALK_ON.replace("sys.argv[1]", "'plain.test'").replace("timeout=5", "timeout=2")
    jar = open_jar(network(rule("plain.test", plain.address, 7)))
    with started(jar, code) as finished:
        os.kill(PROXY.pid, signal.SIGKILL)
        result = finished()
    assert "reached" not in result.stdout, summary(result)
    assert "proxy" in codes(result)


def test_another_run_is_not_held_up(open_jar: OpenJar, plain: Server) -> None:
    """Runs of two Sandboxes share the proxy, and nothing else: neither knows the other's names or waits for it."""
    slow = open_jar(network(rule("plain.test", plain.address, 7)))
    quick = open_jar(network(rule("other.test", plain.address, 7)))
    waits = """
import socket, time
end = socket.create_connection(("plain.test", 7))
print("connected", flush=True)
end.settimeout(60)
try:
    end.recv(10)
except OSError:
    pass
"""
    with started(slow, waits):
        code = """
import socket
end = socket.create_connection(("other.test", 7))
end.sendall(b"quick")
print(end.recv(10).decode())
try:
    socket.getaddrinfo("plain.test", 7)
except OSError:
    print("unknown")
"""
        result = run_python(quick, code)
        assert told(result) == "quick\nunknown\n"
        assert decisions(result, "name") == [("other.test", True), ("plain.test", False)]


def _descriptors(pid: int) -> dict[str, str]:
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            found[name] = os.readlink(f"/proc/{pid}/fd/{name}")
    return found


def _family() -> list[int]:
    """The process of the tests, and every one that it has started."""
    parents: dict[int, int] = {}
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as file:
            parents[pid] = int(file.read().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for parent in found:
        found += [pid for pid, its in parents.items() if its == parent]
    return found


def _networks() -> set[str]:
    """Network namespaces that a process of this family is in, or holds."""
    found = set()
    for pid in _family():
        with contextlib.suppress(OSError):
            found |= {os.readlink(f"/proc/{pid}/ns/net")}
            found |= {link for link in _descriptors(pid).values() if link.startswith("net:")}
    return found


def test_nothing_is_left_of_runs(open_jar: OpenJar, plain: Server) -> None:
    """No descriptor here, none at the proxy, no namespace: also of runs that were killed with open connections."""
    code = "import socket; e = socket.create_connection(('plain.test', 7)); e.sendall(b'x'); e.recv(1)"
    hangs = f"{code}; import time; time.sleep(60)"
    policy = network(rule("plain.test", plain.address, 7))

    def one(code: str, timeout: str, outcome: str) -> None:
        jar = open_jar(policy, timeout=timeout)
        result = run_python(jar, code)
        assert result.outcome == outcome, summary(result)
        jar.close()

    one(code, "30s", "ok")  # what is there once and for all
    at_proxy = _standing_still(lambda: len(_descriptors(PROXY.pid)))
    here = _standing_still(lambda: len(_descriptors(os.getpid())))
    networks = _networks()
    for _ in range(2):
        one(code, "30s", "ok")
        one(hangs, "1s", "timeout")
    assert plain.ended(5)
    assert _wait_for(lambda: len(_descriptors(PROXY.pid)) <= at_proxy), _descriptors(PROXY.pid)
    assert _wait_for(lambda: len(_descriptors(os.getpid())) <= here), _descriptors(os.getpid())
    assert _wait_for(lambda: _networks() <= networks), _networks() - networks


def _wait_for(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _standing_still(look: Callable[[], int]) -> int:
    """The number, once it stands still."""
    looks = [-1]
    while looks[-5:] != looks[-1:] * 5:
        looks.append(look())
        time.sleep(0.05)
    return looks[-1]


def test_listeners_are_the_proxys_alone(open_jar: OpenJar, plain: Server) -> None:
    """While a run goes on, no other process holds a socket of its gateway: if the proxy dies, they are gone."""
    waits = """
import socket
end = socket.create_connection(("plain.test", 7))
end.sendall(b"x")
end.recv(1)
print("connected", flush=True)
while not __import__("os").path.exists("/workspace/go"):
    __import__("time").sleep(0.05)
"""
    jar = open_jar(network(rule("plain.test", plain.address, 7)))
    with started(jar, waits) as finished:
        held = {link for link in _descriptors(PROXY.pid).values() if link.startswith("socket:")}
        others = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid != PROXY.pid]
        shared = {}
        for pid in others:
            with contextlib.suppress(OSError):
                both = held & set(_descriptors(pid).values())
                if both:
                    shared[pid] = both
        jar.files.write("go", b"")
        told(finished())
    assert len(held) > 5
    assert not shared


def test_proxy_is_nobody_elses(open_jar: OpenJar, plain: Server) -> None:
    """It listens in gateways that only jars are connected to: no socket of its is in the network of the host."""
    waits = """
print("connected", flush=True)
while not __import__("os").path.exists("/workspace/go"):
    __import__("time").sleep(0.05)
"""
    jar = open_jar(network(rule("plain.test", plain.address, 7)))
    with started(jar, waits) as finished:
        mine = {link for link in _descriptors(PROXY.pid).values() if link.startswith("socket:")}
        listening = set()
        for kind in ("tcp", "tcp6", "udp", "udp6"):
            with contextlib.suppress(OSError), open(f"/proc/net/{kind}") as file:
                listening |= {f"socket:[{line.split()[9]}]" for line in file.readlines()[1:]}
        jar.files.write("go", b"")
        told(finished())
    assert len(mine) > 5
    assert listening & set(_descriptors(os.getpid()).values()), "that of this test's server is, and is seen"
    assert not mine & listening
