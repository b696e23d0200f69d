"""Every ClientHello that is carried is judged: whatever comes before it, however it is cut, and the second one too.

`web.test` is allowed. An attack has succeeded if the server got a whole ClientHello for `eve.test`; its control sends
the same bytes to the same server without the proxy.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from proxy_bench import Bench, Server, echo, read_all, rule, rules, serving

from belljar.egress import ca
from belljar.egress.client.client import ProxyClient
from belljar.egress.protocols.client_hello import begins_like_tls

Make = Callable[..., Bench]
ALERT = b"\x15\x03\x01\x00\x02\x01\x5a"
ECH = b"\xfe\x0d\x00\x0c\x00\x00\x01\x00\x01\x07\x00\x01\x00\x00\x01\x00"


class Ear:
    """A server that keeps what it was sent."""

    def __init__(self) -> None:
        self.heard = b""
        self.ended = threading.Event()

    def __call__(self, sock: socket.socket) -> None:
        try:
            while data := sock.recv(65536):
                self.heard += data
        finally:
            self.ended.set()


def sized(width: int, data: bytes) -> bytes:
    return len(data).to_bytes(width, "big") + data


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2, "big") + sized(2, data)


def names(*these: bytes) -> bytes:
    return extension(0, sized(2, b"".join(b"\x00" + sized(2, name) for name in these)))


def message(*extensions: bytes) -> bytes:
    body = b"\x03\x03" + bytes(32) + sized(1, b"") + sized(2, b"\xc0\x2b") + sized(1, b"\x00")
    return b"\x01" + sized(3, body + sized(2, b"".join(extensions)))


def records(data: bytes, *, at: int = 1 << 14, version: bytes = b"\x03\x01") -> bytes:
    return b"".join(b"\x16" + version + sized(2, data[cut : cut + at]) for cut in range(0, len(data), at))


def hello(*extensions: bytes) -> bytes:
    return records(message(*extensions))


EVE = hello(names(b"eve.test"))
CUT = records(message(names(b"eve.test")), at=40)
OPENINGS = {
    "an alert": ALERT + EVE,
    "an alert of an odd version": b"\x15\x05\x05\x00\x02\x01\x5a" + EVE,
    "a change of ciphers": b"\x14\x03\x01\x00\x01\x01" + EVE,
    "data": b"\x17\x03\x01\x00\x01x" + EVE,
    "a heartbeat": b"\x18\x03\x01\x00\x03\x01\x00\x00" + EVE,
    "an empty record": b"\x16\x03\x01\x00\x00" + EVE,
    "another version of the record": records(message(names(b"eve.test")), version=b"\x05\x05"),
    "an empty record of another version": b"\x16\x05\x05\x00\x00" + EVE,
    "SSL 2": b"\x80\x20\x01\x03\x01\x00\x03\x00\x00\x00\x14\x00\x00\x2f" + b"eve.test" * 3,
    "an alert within the hello": CUT[:45] + ALERT + CUT[45:],
    "in small records": CUT,
    "in records of a byte": records(message(names(b"eve.test")), at=1),
    "the second of two names": hello(names(b"web.test", b"eve.test")),
    "the first of two names": hello(names(b"eve.test", b"web.test")),
    "the second of two extensions": hello(names(b"web.test"), names(b"eve.test")),
    "a second hello at once": hello(names(b"web.test")) + EVE,
    "a second hello in the same record": records(message(names(b"web.test")) + message(names(b"eve.test"))),
    "a second hello after early data": hello(names(b"web.test")) + b"\x17\x03\x03\x00\x01x" + EVE,
    "behind a PROXY line": b"PROXY TCP4 192.0.2.1 192.0.2.2 1 443\r\n" + EVE,
    "behind a PROXY header": b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x00" + EVE,
    "after STARTTLS": b"EHLO me\r\nSTARTTLS\r\n" + EVE,
    "after STARTTLS, of an odd version": b"STARTTLS\r\n" + EVE[:2] + b"\x7f" + EVE[3:],
    "after STARTTLS, of the highest version": b"STARTTLS\r\n" + EVE[:2] + b"\xff" + EVE[3:],
    "after much, and STARTTLS": b"NOOP\r\n" * 20_000 + b"STARTTLS\r\n" + EVE,
    "after a request for TLS, in small records": b"\x00\x00\x00\x08\x04\xd2\x16\x2f" + CUT,
    "after a request for TLS, twice named": b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
    + hello(names(b"web.test", b"eve.test")),
    "after a request for TLS, encrypted": b"\x00\x00\x00\x08\x04\xd2\x16\x2f"
    + hello(names(b"web.test"), ECH, names(b"eve.test")),
}


def whole(heard: bytes) -> bool:
    """Whether a server that forgives everything found the name."""
    return (
        b"eve.test" in heard
        or b"".join(heard[at : at + 1] for at in range(5, len(heard), 6)).find(b"eve.test") >= 0
        or (b"eve.test" in heard.replace(b"\x16\x03\x01\x00\x28", b"").replace(ALERT, b""))
    )


@pytest.mark.parametrize("slowly", [False, True], ids=["at once", "in pieces"])
@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_no_hello_for_another_host_arrives(bench: Make, opening: bytes, slowly: bool) -> None:
    """In one piece, and cut in the middle of the name."""
    cut = opening.rfind(b"eve") + 2 if slowly else len(opening)
    ear = Ear()
    with serving(ear) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock, contextlib.suppress(OSError):
            sock.sendall(opening[:cut])
            sock.sendall(opening[cut:])
            sock.shutdown(socket.SHUT_WR)
            read_all(sock)
        run.wait_for(lambda event: not event.allowed or event.kind == "closed")
        assert not whole(ear.heard), ear.heard[-200:]
        assert run.denials()
    ear = Ear()
    with serving(ear) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(opening)
        sock.shutdown(socket.SHUT_WR)
        assert ear.ended.wait(10)
        assert whole(ear.heard)


# --- with a real server ----------------------------------------------------------------------------------------------


class Web:
    """A TLS server that knows which names it was asked for, and sends back what it is sent."""

    def __init__(self, directory: Path) -> None:
        self.issuer = ca.Issuer(authority := ca.new_authority())
        self.roots = directory / "roots.pem"
        self.roots.write_text(authority.certificate)
        self.names: list[str | None] = []
        self.told = threading.Condition()

    def context(self, *, retry: bool = False) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca._load_chain(context, self.issuer._leaf("web.test") + self.issuer._chain_key)
        if retry:  # a group of which a client sends no key at first
            context.set_ecdh_curve("secp384r1")
        context.sni_callback = self._named
        return context

    def _named(self, _sock: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> None:
        with self.told:
            self.names.append(name)
            self.told.notify_all()

    @contextlib.contextmanager
    def serving(self, *, retry: bool = False) -> Iterator[Server]:
        context = self.context(retry=retry)

        def handle(sock: socket.socket) -> None:
            with context.wrap_socket(sock, server_side=True) as inside:
                echo(inside)

        with serving(handle) as server:
            yield server

    def client(self, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.roots.read_text())
        if version is not None:
            context.maximum_version = version
        return context


@pytest.fixture
def web(tmp_path: Path) -> Web:
    return Web(tmp_path)


class Cutting:
    """A socket's end that OpenSSL writes to through memory, so that what is sent can be changed."""

    def __init__(self, web: Web, sock: socket.socket, change: Callable[[int, bytes], bytes]) -> None:
        self._into, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = web.client().wrap_bio(self._into, self._out, server_hostname="web.test")
        self._sock = sock
        self._change = change

    def handshake(self) -> None:
        for flight in range(10):
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            else:
                done = True
            if data := self._out.read():
                self._sock.sendall(self._change(flight, data))
            if done:
                return
            data = self._sock.recv(65536)
            if not data:
                raise ConnectionResetError
            self._into.write(data)


def test_a_retried_hello_passes(bench: Make, web: Web) -> None:
    with web.serving(retry=True) as server:
        run = bench(rules(rule("web.test", server.port)))
        with (
            run.by_socks("web.test", server.port) as plain,
            web.client().wrap_socket(plain, server_hostname="web.test") as sock,
        ):
            sock.sendall(b"hello")
            assert sock.recv(5) == b"hello"
        assert set(web.names) == {"web.test"}


def test_a_retried_hello_for_another_host(bench: Make, web: Web) -> None:
    def change(flight: int, data: bytes) -> bytes:
        return data.replace(b"web.test", b"eve.test") if flight else data

    with web.serving(retry=True) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock, pytest.raises(OSError):
            Cutting(web, sock, change).handshake()
        run.wait_for(lambda event: event.reason == "server-name-mismatch")
        assert "eve.test" not in web.names
        with socket.create_connection(("127.0.0.1", server.port)) as sock, pytest.raises(OSError):
            Cutting(web, sock, change).handshake()
        with web.told:
            assert web.told.wait_for(lambda: "eve.test" in web.names, 10)


def make_hello(name: str, version: ssl.TLSVersion | None = None) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if version is not None:
        context.maximum_version = version
    out = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), out, server_hostname=name).do_handshake()
    return out.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_passes_as_before(bench: Make, web: Web, version: ssl.TLSVersion) -> None:
    """Whole, cut into small records, and resumed."""
    with web.serving() as server:
        run = bench(rules(rule("web.test", server.port)))
        context = web.client(version)
        session = None
        for resumed in (False, True):
            plain = run.by_socks("web.test", server.port)
            with context.wrap_socket(plain, server_hostname="web.test", session=session) as sock:
                sock.sendall(b"hello")
                assert sock.recv(5) == b"hello"
                assert sock.session_reused is resumed
                session = sock.session
        first = make_hello("web.test", version)
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(records(first[5:], at=40))
            assert sock.recv(1) == b"\x16"
        run.close()
        assert run.denials() == []


def test_a_server_that_speaks_no_tls_is_heard(bench: Make) -> None:
    """The client gets its answer, and can send nothing but TLS."""

    def plain(sock: socket.socket) -> None:
        sock.recv(65536)
        sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        ear(sock)

    ear = Ear()
    with serving(plain) as server:
        run = bench(rules(rule("web.test", server.port)))
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(make_hello("web.test"))
            assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
            sock.sendall(b"GET / HTTP/1.1\r\nHost: eve.test\r\n\r\n")
            assert read_all(sock) == b""
        assert ear.ended.wait(10)
        assert ear.heard == b""


def test_starttls_for_the_right_host_passes(bench: Make, web: Web) -> None:
    context = web.context()

    def postgres(sock: socket.socket) -> None:
        sock.recv(8)
        sock.sendall(b"S")
        with context.wrap_socket(sock, server_side=True) as inside:
            echo(inside)

    with serving(postgres) as server:
        run = bench(rules(rule("web.test", server.port)))
        for name in ("web.test", None):
            with run.by_socks("web.test", server.port) as plain:
                plain.sendall(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
                assert plain.recv(1) == b"S"
                client = web.client()
                client.check_hostname = name is not None
                with client.wrap_socket(plain, server_hostname=name) as sock:
                    data = os.urandom(1 << 20)
                    writer = threading.Thread(target=sock.sendall, args=(data,))
                    writer.start()
                    got = bytearray()
                    while len(got) < len(data):
                        got += sock.recv(65536)
                    writer.join()
                    assert got == data


def test_an_encrypted_hello_is_opened(bench: Make, web: Web, proxy: ProxyClient) -> None:
    """The client is shown the proxy's certificate, for the name that can be read; nothing of what is hidden leaves."""
    first = make_hello("web.test", ssl.TLSVersion.TLSv1_2)
    body = first[9:]
    at = 34 + 1 + body[34]
    at += 2 + int.from_bytes(body[at : at + 2], "big")
    at += 1 + body[at]
    encrypted = b"\x01" + sized(3, body[:at] + sized(2, body[at + 2 :] + ECH))
    with web.serving() as server:
        run = bench(rules(rule("web.test", server.port)), ca_file=str(web.roots))
        for text, shown in ((make_hello("web.test", ssl.TLSVersion.TLSv1_2), False), (records(encrypted), True)):
            with run.by_socks("web.test", server.port) as sock:
                sock.sendall(text)
                answer = b""
                while b"\x0e\x00\x00\x00" not in answer:  # ServerHelloDone
                    answer += sock.recv(65536)
                assert (certificate_of(proxy) in answer) is shown
        run.wait_for(lambda event: event.kind == "tls" and event.allowed and "ECH" in event.detail)
        with run.by_socks("web.test", server.port) as sock:
            sock.sendall(records(encrypted).replace(b"web.test", b"eve.test"))
            run.wait_for(lambda event: event.reason == "server-name-mismatch")


def certificate_of(proxy: ProxyClient) -> bytes:
    """The name of who signs the proxy's certificates, with its key: the end of it is of this host alone."""
    from cryptography import x509

    key = x509.load_pem_x509_certificate(proxy.authority().certificate.encode()).public_key()
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key).key_identifier or b"?"  # type: ignore[arg-type]


BEGINNINGS = [
    (b"\x16\x03\x01", True),
    (b"\x16", None),
    (b"\x16\x03", True),
    (b"\x15\x03", True),
    (b"\x17\x03\x03", True),
    (b"\x18\x03\x03", True),
    (b"\x16\x05\x05\x00\x10\x01", True),
    (b"\x16\x05\x05", None),
    (b"\x80\x2e\x01\x03\x01", True),
    (b"\x80\x2e", None),
    (b"GET", False),
    (b"\x80\x01\x00\x05", False),  # memcached
    (b"\x14\x01\x00\x01\x85\xa6\xff", False),  # MySQL's answer to a greeting, 276 bytes
    (b"\x16\x01\x00\x01\x85\xa6\xff", False),
    (b"\x00\x00\x00\x08\x04\xd2\x16\x2f", False),  # PostgreSQL
    (b"\x10\x16\x00\x04MQTT", False),
]


@pytest.mark.parametrize(("first", "wanted"), BEGINNINGS)
def test_what_looks_like_tls(first: bytes, wanted: bool | None) -> None:
    assert begins_like_tls(first) is wanted
