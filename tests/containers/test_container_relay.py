"""Connections that a container's gate carries, and what a guest could say in its place. No engine is needed here."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from belljar.backends.container.jar import process
from belljar.backends.container.jar.attached import Attached, ForgedFrameError
from belljar.backends.container.jar.jar import ContainerJar
from belljar.backends.container.jar.report import newly_unheard, unheard
from belljar.backends.contract import LaunchPlan, Listener, RunRequest, Status
from belljar.egress.client.client import PROXY
from belljar.errors import PrerequisiteError, SandboxUnavailableError
from belljar.guest.container import loopback_listener, wire
from belljar.guest.container.relay import MOST, MOST_QUESTIONS, Exit, break_off, dialled, opening, pack, unpack
from belljar.policy.load.resolve import resolve
from belljar.sandbox.network.egress import Egress

ROLES = (b"http-proxy", b"socks", b"dns")
NONSENSE = (
    b"",
    b"tcp",
    b"tcp\x7f\x12\x01\x00",
    b"tcp\x7f\x12\x01\x00\x00",
    b"tcp\x7f\x12\x01\x00\x00\x00",  # port 0
    b"tcp\x7f\x12\x01\x00\x00\x50\x00",
    b"tcp 127.18.1.0:80",
    b"udp\x7f\x12\x01\x00\x00\x50",
    b"dns ",
    b"DNS",
    b"http-proxy\n",
    b"relay",
    b"packet",
    b"x" * 5000,
)


class Proxy:
    """Takes what is handed over, as the proxy would: here it only remembers."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, socket.socket]] = []

    def take(self, role: bytes, end: socket.socket) -> None:
        self.taken.append((role, end.dup()))

    @property
    def roles(self) -> list[bytes]:
        return [role for role, _end in self.taken]


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    for _role, end in made.taken:
        end.close()


def test_what_may_be_opened() -> None:
    """A role by its name, and a place that was dialled, which is told in words."""
    assert [opening(role) for role in ROLES] == list(ROLES)
    assert opening(dialled("127.18.1.0", 80)) == b"tcp 127.18.1.0:80"
    assert opening(dialled("255.255.255.255", 65535)) == b"tcp 255.255.255.255:65535"


@pytest.mark.parametrize("said", NONSENSE)
def test_nonsense_opens_nothing(proxy: Proxy, said: bytes) -> None:
    """And is answered with an end."""
    sent: list[bytes] = []
    Exit(sent.append, proxy.take).hear(pack(7, b"O", said))
    assert not proxy.taken
    assert sent == [pack(7, b"C")]


def test_no_more_than_so_many(proxy: Proxy) -> None:
    """However many a guest opens; when one has ended, there is room for another."""
    sent: list[bytes] = []
    way_out = Exit(sent.append, proxy.take)
    most = MOST + MOST_QUESTIONS
    for number in range(most + 50):
        way_out.hear(pack(number, b"O", b"dns"))
    assert len(proxy.taken) == most
    assert [unpack(frame)[:2] for frame in sent] == [(number, b"C") for number in range(most, most + 50)]
    way_out.hear(pack(0, b"C"))
    way_out.hear(pack(most, b"O", b"dns"))
    assert len(proxy.taken) == most + 1
    way_out.close()


def test_no_descriptor_left(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the end of that connection, and of nothing else."""
    sent: list[bytes] = []

    def none_left() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(socket, "socketpair", none_left)
    Exit(sent.append, proxy.take).hear(pack(3, b"O", b"dns"))
    assert sent == [pack(3, b"C")]


def test_guest_that_keeps_to_no_window_is_cut_off(proxy: Proxy) -> None:
    """What the proxy does not read does not pile up here."""
    sent: list[bytes] = []
    way_out = Exit(sent.append, proxy.take)
    way_out.hear(pack(1, b"O", b"socks"))
    for _ in range(100):
        way_out.hear(pack(1, b"D", bytes(1 << 16)))
    assert sent[-1] == pack(1, b"C")


def test_guest_that_says_it_took_more_than_there_was(proxy: Proxy) -> None:
    """Gets no larger window by it."""
    sent: list[bytes] = []
    way_out = Exit(sent.append, proxy.take)
    way_out.hear(pack(1, b"O", b"socks"))
    way_out.hear(pack(1, b"A", b"\xff\xff\xff\xff"))
    proxy.taken[0][1].setblocking(False)
    for _ in range(100):
        with contextlib.suppress(BlockingIOError):
            proxy.taken[0][1].send(bytes(1 << 15))
        poll = select.poll()
        way_out.register(poll, may_read=True)
        for descriptor, event in poll.poll(0):
            way_out.handle(descriptor, event)
    read = sum(len(unpack(frame)[2]) for frame in sent if unpack(frame)[1] == b"D")
    assert 0 < read <= 2 * (1 << 16)
    way_out.close()


def test_guest_that_talks_and_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no gate: what it is owed is bounded, and then it is not heard any more."""
    monkeypatch.setattr(process, "_MOST_OWED", 1000)
    container = cast("Attached", SimpleNamespace(name="none"))
    run = process.ContainerProcess(
        container, stdin=None, timeout_seconds=10, order=b"", relays=True, ended=lambda _process: None
    )
    each = len(wire.encode(wire.NET, pack(1, b"C")))
    for _ in range(1000 // each):
        run._hear(wire.NET, pack(1, b"O", b"nonsense"))
    with pytest.raises(ForgedFrameError, match="talks and does not listen"):
        run._hear(wire.NET, pack(1, b"O", b"nonsense"))
    run.let_go()
    run.close()


def _open() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_run_that_ends_before_its_network_is_served() -> None:
    """Leaves no descriptor behind."""
    container = cast("Attached", SimpleNamespace(name="none"))
    before = _open()
    run = process.ContainerProcess(
        container, stdin=None, timeout_seconds=10, order=b"", relays=True, ended=lambda _process: None
    )
    run.let_go()
    run.close()
    assert _open() == before


@pytest.mark.parametrize("error", [PrerequisiteError("none here"), OSError(errno.EMFILE, "Too many open files")])
def test_proxy_that_can_not_be_had(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves no descriptor of the canaries behind, and ends the run."""
    container = cast("Attached", SimpleNamespace(name="none"))
    killed: list[str] = []
    before = _open()
    run = process.ContainerProcess(
        container, stdin=None, timeout_seconds=10, order=b"", relays=True, ended=lambda _process: None
    )

    def none_here(*given: object) -> None:
        for listener in cast("list[Listener]", given[4]):  # which it closes, whatever happens
            os.close(listener.descriptor)
        raise error

    monkeypatch.setattr(PROXY, "serve", none_here)
    with pytest.raises((PrerequisiteError, SandboxUnavailableError)):
        Egress(resolve(managed=None)).serve("run-1", run, {}, killed.append)
    assert killed == ["killed"]
    run.let_go()
    run.close()
    assert _open() == before


FRAMES = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(
            pack,
            st.integers(0, 5),
            st.sampled_from([b"O", b"D", b"E", b"A", b"C", b"X"]),
            st.one_of(
                st.sampled_from((*ROLES, *NONSENSE[:8], dialled("127.18.1.0", 80))),
                st.binary(max_size=20),
            ),
        ),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(frames=FRAMES)
def test_any_frames_from_a_guest(frames: list[bytes]) -> None:
    """Nothing is raised, and nothing is handed over but a role or a place."""
    proxy, sent = Proxy(), list[bytes]()
    way_out = Exit(sent.append, proxy.take)
    for frame in frames:
        way_out.hear(frame)
        poll = select.poll()
        way_out.register(poll, may_read=True)
        for descriptor, event in poll.poll(0):
            way_out.handle(descriptor, event)
    way_out.close()
    for role, end in proxy.taken:
        end.close()
        assert role in ROLES or role.startswith(b"tcp ")
    assert all(unpack(frame)[1] in (b"A", b"C", b"D", b"E") for frame in sent)


# --- the gate's side -------------------------------------------------------------------------------------------------


class Carried:
    """A listener on this host's loopback, and an exit, with nothing but frames in between."""

    def __init__(self, proxy: Proxy, port: int) -> None:
        self.frames: list[bytes] = []
        self._back: list[bytes] = []
        self.listener = loopback_listener.LoopbackListener(self._hear, [port])
        self.exit = Exit(self._back.append, proxy.take)

    def _hear(self, payload: bytes) -> None:
        self.frames.append(payload)
        self.exit.hear(payload)

    def turn(self, until: Callable[[], bool], seconds: float = 10.0) -> None:
        """Let both go on until something is so."""
        deadline = time.monotonic() + seconds
        while not until():
            assert time.monotonic() < deadline
            self.turn_once()

    def turn_once(self) -> None:
        poll = select.poll()
        self.listener.register(poll, may_read=True)
        self.exit.register(poll, may_read=True)
        for descriptor, event in poll.poll(20):
            if not self.listener.handle(descriptor, event):
                self.exit.handle(descriptor, event)
        back, self._back[:] = list(self._back), []
        for payload in back:
            self.listener.hear(payload)

    def close(self) -> None:
        self.exit.close()
        for connection in self.listener._connections.values():
            connection.end.close()
        for listener, _role in self.listener._listeners.values():
            listener.close()
        if self.listener._names is not None:
            self.listener._names.close()


def _free() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def ports(monkeypatch: pytest.MonkeyPatch) -> tuple[int, int]:
    """A listed port and the name server's, which an ordinary user may have here as well."""
    dns, port = _free(), _free()
    monkeypatch.setattr(loopback_listener, "PROXIES", {_free(): b"http-proxy"})
    monkeypatch.setattr(loopback_listener, "NAMES_PORT", dns)
    return port, dns


@pytest.fixture
def carried(proxy: Proxy, ports: tuple[int, int]) -> Iterator[Carried]:
    made = Carried(proxy, ports[0])
    yield made
    made.close()


def test_place_that_was_dialled_is_told(carried: Carried, proxy: Proxy, ports: tuple[int, int]) -> None:
    """Whatever address of loopback it is; and what is said arrives, both ways."""
    for address in ("127.18.1.7", "127.0.0.1"):
        with socket.create_connection((address, ports[0]), timeout=10) as end:
            end.sendall(b"word")
            carried.turn(lambda: bool(proxy.taken))
            role, other = proxy.taken.pop()
            assert role == f"tcp {address}:{ports[0]}".encode()
            carried.turn(lambda: bool(select.select([other], [], [], 0)[0]))  # noqa: B023
            assert other.recv(10) == b"word"
            other.sendall(b"answer")
            carried.turn(lambda: bool(select.select([end], [], [], 0)[0]))
            assert end.recv(10) == b"answer"
            other.close()


def test_end_of_a_stream_arrives_at_a_slow_reader(carried: Carried, proxy: Proxy, ports: tuple[int, int]) -> None:
    """Who has said its own end before, and reads only when the other side is gone: an end in order loses nothing."""
    size = 60_000
    with socket.socket() as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
        end.settimeout(10)
        end.connect(("127.18.1.7", ports[0]))
        carried.turn(lambda: bool(carried.listener._connections))
        (connection,) = carried.listener._connections.values()
        connection.end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4608)
        end.shutdown(socket.SHUT_WR)
        carried.turn(lambda: unpack(carried.frames[-1])[1] == b"E")
        _role, other = proxy.taken.pop()
        other.sendall(bytes(size))
        other.close()
        carried.turn(lambda: not carried.exit._connections)
        assert connection._unsaid, "or nothing waits that could be lost"
        read = 0
        while read < size:
            carried.turn(lambda: bool(select.select([end], [], [], 0)[0]))
            taken = len(end.recv(1 << 16))
            assert taken, f"only {read} bytes came"
            read += taken
        carried.turn(lambda: not carried.listener._connections)
        assert end.recv(1) == b""
    assert b"C" not in [unpack(frame)[1] for frame in carried.frames]


def test_reset_is_carried(carried: Carried, proxy: Proxy, ports: tuple[int, int]) -> None:
    """What came before it arrives, and then an error: an end of file would say that it was all."""
    with socket.create_connection(("127.18.1.7", ports[0]), timeout=10) as end:
        carried.turn(lambda: bool(proxy.taken))
        _role, other = proxy.taken.pop()
        other.sendall(b"half of it")
        break_off(other, other.fileno())
        other.close()
        carried.turn(lambda: not carried.listener._connections)
        assert end.recv(100) == b"half of it"
        with pytest.raises(ConnectionResetError):
            end.recv(100)
    assert not carried.exit._connections


def test_connection_that_nobody_takes_is_reset(carried: Carried, proxy: Proxy, ports: tuple[int, int]) -> None:
    """The proxy is gone."""

    def nobody(_role: bytes, _end: socket.socket) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    carried.exit._hand_over = nobody
    with socket.create_connection(("127.18.1.7", ports[0]), timeout=10) as end:
        carried.turn(lambda: any(unpack(frame)[1] == b"O" for frame in carried.frames))
        carried.turn(lambda: not carried.listener._connections)
        with pytest.raises(ConnectionResetError):
            end.recv(100)


def test_reset_after_the_end_loses_nothing(carried: Carried, proxy: Proxy, ports: tuple[int, int]) -> None:
    """What was said is complete, and only hears nothing any more."""
    with socket.create_connection(("127.18.1.7", ports[0]), timeout=10) as end:
        carried.turn(lambda: bool(proxy.taken))
        _role, other = proxy.taken.pop()
        other.sendall(b"all of it")
        other.shutdown(socket.SHUT_WR)
        carried.turn(lambda: bool(select.select([end], [], [], 0)[0]))
        other.close()
        end.sendall(b"more")
        carried.turn(lambda: not carried.listener._connections)
        assert end.recv(100) == b"all of it"


def test_what_was_tried_last_is_carried(carried: Carried, proxy: Proxy, ports: tuple[int, int]) -> None:
    """Connections that wait in the queue when the code has ended, what was said over them, and questions."""
    for word in (b"one", b"two"):
        with socket.create_connection(("127.18.1.7", ports[0]), timeout=10) as end:
            end.sendall(word)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((loopback_listener.RESOLVER, ports[1]))
        asking.send(b"what?")
    carried.listener.look_once_more()
    assert sorted(proxy.roles) == [b"dns", *2 * [f"tcp 127.18.1.7:{ports[0]}".encode()]]
    for _role, other in proxy.taken:
        other.setblocking(False)
    assert {other.recv(10) for _role, other in proxy.taken} == {b"one", b"two", b"\x00\x05what?"}


def test_question_is_a_stream_of_one(carried: Carried, proxy: Proxy, ports: tuple[int, int]) -> None:
    """Its answer goes back to who asked, from where it was asked, even if it comes in pieces."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((loopback_listener.RESOLVER, ports[1]))
        end.send(b"what?")
        carried.turn(lambda: bool(proxy.taken))
        role, other = proxy.taken.pop()
        assert role == b"dns"
        carried.turn(lambda: bool(select.select([other], [], [], 0)[0]))
        assert other.recv(100) == b"\x00\x05what?"
        for piece in (b"\x00", b"\x04th", b"at"):
            other.send(piece)
            carried.turn_once()
        carried.turn(lambda: bool(select.select([end], [], [], 0)[0]))
        assert end.recv(100) == b"that"
        carried.turn(lambda: bool(select.select([other], [], [], 0)[0]))
        assert other.recv(1) == b"", "it is over when it is answered"
        other.close()


def test_questions_are_bounded_and_given_up(
    carried: Carried, proxy: Proxy, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many at once, of such a size; one that is not answered makes room in the end."""
    monkeypatch.setattr(loopback_listener, "_QUESTION_SECONDS", 1.0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((loopback_listener.RESOLVER, ports[1]))
        end.send(b"")
        end.send(bytes(5000))
        for number in range(MOST_QUESTIONS + 10):
            end.send(b"%d" % number)
        carried.turn(lambda: len(proxy.taken) == MOST_QUESTIONS)
        assert set(proxy.roles) == {b"dns"}
        carried.turn(lambda: len(proxy.taken) == MOST_QUESTIONS + 10)
    ended = {unpack(frame)[0] for frame in carried.frames if unpack(frame)[1] == b"C"}
    assert len(ended) >= 10


@pytest.mark.parametrize("answer", [b"\xff\xff" + bytes(8000), b"\x00\x00"])
def test_odd_answer_is_no_datagram_of_that_size(
    carried: Carried, proxy: Proxy, ports: tuple[int, int], answer: bytes
) -> None:
    """One that is too long is given up; the question is over."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
        end.connect((loopback_listener.RESOLVER, ports[1]))
        end.send(b"what?")
        carried.turn(lambda: bool(proxy.taken))
        proxy.taken[0][1].send(answer)
        carried.turn(lambda: any(unpack(frame)[1] == b"C" for frame in carried.frames))
        assert not carried.listener._questions
        end.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            assert end.recv(100) == b""


def test_port_that_is_taken_is_told(proxy: Proxy, ports: tuple[int, int]) -> None:
    """By number; the others are listened on."""
    with socket.create_server(("0.0.0.0", ports[0])):
        carried = Carried(proxy, ports[0])
        carried.close()
    assert carried.listener.unheard == [ports[0]]
    assert carried.listener.answering == loopback_listener.RESOLVER


def test_later_container_that_misses_a_port() -> None:
    """Is a problem, unless that is what was told of the first one: then nothing is new."""
    assert newly_unheard({"unheard": []}, [80]) == []
    assert newly_unheard({"unheard": [80]}, [80, 443]) == []
    (problem,) = newly_unheard({"unheard": [80, 5432]}, [80])
    assert problem == "the gate can't listen on port 5432 of the container, as it could in another"


def test_run_in_a_container_that_misses_a_port_is_refused() -> None:
    """Its programs would not get where the report says that they do."""
    removed: list[object] = []
    waiting = SimpleNamespace(container="its container", close=lambda: None)
    jar = ContainerJar.__new__(ContainerJar)
    jar.__dict__.update(
        _stage={"expect": {"privileged": True}},
        _user=1000,
        _unheard=[],
        _at_its_gate=lambda _spare: (waiting, {"unheard": [5432]}),
        _remove=removed.append,
    )
    run = jar._go(None, cast("LaunchPlan", None), cast("RunRequest", None), None, prepare=False)
    assert "port 5432" in run.end().problems[0]
    assert removed == ["its container"]
    run.close()


def test_gate_without_a_descriptor_left_does_not_spin(
    carried: Carried, proxy: Proxy, ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests between its tries; when there is one again, those that waited have their turn."""
    tries = 0
    accept = socket.socket.accept

    def none_left(_listener: socket.socket) -> None:
        nonlocal tries
        tries += 1
        raise OSError(errno.EMFILE, "Too many open files")

    with socket.create_connection(("127.18.1.7", ports[0]), timeout=10):
        monkeypatch.setattr(socket.socket, "accept", none_left)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            carried.turn_once()
        assert 1 <= tries <= 26
        monkeypatch.setattr(socket.socket, "accept", accept)
        carried.turn(lambda: bool(proxy.taken))


def test_report_of_ports_that_could_not_be_had() -> None:
    """Nothing, or a clause that is not enforced and names them."""
    assert unheard({"unheard": []}) == ()
    (clause,) = unheard({"unheard": [53, 80, 443, 5432, 8080, 9000]})
    assert (clause.key, clause.status) == ("net.enabled", Status.DEGRADED)
    assert "port 53, 80, 443, 5432, 8080, … of the container" in clause.lost


def test_a_port_of_the_proxy_that_the_policy_lists_too(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is the proxy's on one address, and a host's on all others."""
    port = _free()
    monkeypatch.setattr(loopback_listener, "PROXIES", {port: b"http-proxy"})
    monkeypatch.setattr(loopback_listener, "NAMES_PORT", _free())
    carried = Carried(proxy, port)
    assert not carried.listener.unheard
    for address, role in (("127.0.0.1", b"http-proxy"), ("127.18.1.0", f"tcp 127.18.1.0:{port}".encode())):
        with socket.create_connection((address, port), timeout=10):
            carried.turn(lambda: bool(proxy.taken))
        taken, other = proxy.taken.pop()
        other.close()
        assert taken == role
    carried.close()
