"""The routes of benchmarks/egress.py: no proxy, squid, mitmproxy, and belljar's, from this host and from a jar.

Each proxy does the same job: it lets one path of one host pass, by name, and opens TLS, whose certificate it verifies.
mitmproxy has no rules of its own, so it is spared those. Squid and mitmproxy run with the settings that are fastest
for this: nothing is cached, nothing is logged. belljar tells of every decision, as it always does.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MITMDUMP = HERE.parent / ".cache/mitmproxy/bin/mitmdump"
CERTGEN = "/usr/lib/squid/security_file_certgen"
DIRECT, SQUID, MITMPROXY, BELLJAR, JAR = "direct", "squid", "mitmproxy", "belljar", "belljar, from a jar"
NAME = "origin.test"
"""What the server is called where belljar decides. Elsewhere it is localhost."""
_START_SECONDS = 60.0

Client = Callable[[dict[str, Any]], dict[str, float]]
"""Runs egress_load.py with these settings."""


@dataclass(frozen=True)
class Origin:
    """The server: its ports, and the file with its certificate."""

    plain: int
    secure: int
    raw: int
    certificate: Path


@dataclass(frozen=True)
class Route:
    """A way to the server. `port` is the proxy's, 0 if the client dials the server itself."""

    name: str
    host: str
    port: int
    client: Client
    pid: int = 0
    """The proxy's process."""
    opens_tls: bool = True
    version: str = ""


@dataclass(frozen=True)
class Processors:
    """Where things run: the proxy has one for itself, if there are two."""

    proxy: frozenset[int]
    others: frozenset[int]

    @classmethod
    def found(cls) -> Processors:
        some = sorted(os.sched_getaffinity(0))
        return cls(frozenset(some[-1:]), frozenset(some[:-1] or some))


def pin(pid: int, processors: frozenset[int]) -> None:
    """All threads of a process."""
    for thread in os.listdir(f"/proc/{pid or os.getpid()}/task"):
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(thread), processors)


def processor_seconds(pid: int) -> float:
    """What the threads of a process have used so far."""
    used = 0.0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            used += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text().split()[0]) / 1e9
    return used


def outside(settings: dict[str, Any]) -> dict[str, float]:
    """The client as a process of this host."""
    command = [sys.executable, "-I", str(HERE / "egress_load.py"), json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the client failed: {done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


# --- the server ------------------------------------------------------------------------------------------------------


def make_certificate(directory: Path, name: str, *names: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    certificate, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-days", "30", "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate)]
    if names:
        command += ["-addext", "subjectAltName=" + ",".join(f"DNS:{each}" for each in names)]
    subprocess.run(command, check=True, capture_output=True)
    certificate.chmod(0o644)
    key.chmod(0o644)  # squid gives up root before it reads it, and the directory is ours
    return certificate, key


@contextlib.contextmanager
def origin(directory: Path, processors: Processors) -> Iterator[Origin]:
    certificate, key = make_certificate(directory, "origin", "localhost", NAME)
    command = [sys.executable, "-I", str(HERE / "egress_origin.py"), str(certificate), str(key)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ports = json.loads(process.stdout.readline())
        pin(process.pid, processors.others)
        yield Origin(certificate=certificate, **ports)
        process.terminate()


# --- the proxies -----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def running(command: list[str], directory: Path, port: int, processors: Processors) -> Iterator[int]:
    """A proxy as a child, which takes connections; its process."""
    with open(directory / "output", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=directory)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                said = (directory / "output").read_text(errors="replace")
                raise SystemExit(f"{command[0]} did not start: {said[-2000:]}")
            time.sleep(0.05)
        pin(process.pid, processors.proxy)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


SQUID_SETTINGS = """\
http_port 127.0.0.1:{port} {bump}
acl origin dstdomain localhost
acl ports port {origin.plain} {origin.secure} {origin.raw}
acl connect method CONNECT
acl secure port {origin.secure}
acl get method GET
acl small urlpath_regex ^/small$
http_access allow connect origin ports
http_access allow get origin ports small
http_access deny all
cache deny all
cache_mem 0
access_log none
cache_log {directory}/cache.log
cache_store_log none
pid_filename none
netdb_filename none
pinger_enable off
shutdown_lifetime 0 seconds
max_filedescriptors 4096
coredump_dir {directory}
"""
SQUID_BUMP = """\
sslcrtd_program {certgen} -s {directory}/certificates -M 4MB
sslcrtd_children 1
tls_outgoing_options cafile={origin.certificate}
ssl_bump bump secure
ssl_bump splice all
"""


@contextlib.contextmanager
def squid(directory: Path, server: Origin, processors: Processors) -> Iterator[Route | None]:
    program = shutil.which("squid", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        yield None
        return
    version = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stdout
    opens = "--with-openssl" in version and os.path.exists(CERTGEN)
    port, bump, more = free_port(), "", ""
    if opens:
        certificate, key = make_certificate(directory, "squid")
        subprocess.run([CERTGEN, "-c", "-s", directory / "certificates", "-M", "4MB"], check=True, capture_output=True)
        bump = f"ssl-bump cert={certificate} key={key} generate-host-certificates=on"
        more = SQUID_BUMP.format(certgen=CERTGEN, directory=directory, origin=server)
    settings = SQUID_SETTINGS.format(port=port, bump=bump, origin=server, directory=directory) + more
    (directory / "squid.conf").write_text(settings)
    if os.geteuid() == 0:
        subprocess.run(["chown", "-R", "proxy:proxy", directory], check=True)
    command = [program, "-N", "-f", str(directory / "squid.conf")]
    with running(command, directory, port, processors) as pid:
        yield Route(SQUID, "localhost", port, outside, pid, opens, version.split("\n", 1)[0].rpartition(" ")[2])


@contextlib.contextmanager
def mitmproxy(directory: Path, server: Origin, processors: Processors) -> Iterator[Route | None]:
    if not MITMDUMP.exists():
        yield None
        return
    said = subprocess.run([MITMDUMP, "--version"], capture_output=True, text=True, check=True).stdout
    port = free_port()
    command = [str(MITMDUMP), "--quiet", "--listen-host", "127.0.0.1", "--listen-port", str(port)]
    settings = {
        "confdir": directory,
        "ssl_verify_upstream_trusted_ca": server.certificate,
        "flow_detail": 0,
        "connection_strategy": "lazy",
    }
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    with running(command, directory, port, processors) as pid:
        yield Route(MITMPROXY, "localhost", port, outside, pid, version=said.split()[1])


@contextlib.contextmanager
def belljar(directory: Path, server: Origin, processors: Processors) -> Iterator[Route]:
    """Its proxy at an ordinary socket of this host: the way that programs take which know of a proxy."""
    os.environ["BELLJAR_STATE_DIR"] = str(directory)
    from belljar.egress.client.client import PROXY, ServedListener
    from belljar.egress.decide.rules import compile_rules
    from belljar.policy.load.resolve import resolve

    policy = resolve(layers=[net_policy(server, NAME)])
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port = listener.getsockname()[1]
    listeners = [ServedListener("http-proxy", port, listener.detach())]
    ca_file = str(server.certificate)
    served = PROXY.serve("bench", compile_rules(policy), {}, (), listeners, ca_file, lambda _events: None)
    pin(PROXY.pid, processors.proxy)
    try:
        yield Route(BELLJAR, NAME, port, outside, PROXY.pid)
    finally:
        served.close()


@contextlib.contextmanager
def belljar_jar(server: Origin) -> Iterator[Route]:
    """The same process, from inside a jar whose programs know of no proxy."""
    from belljar import Sandbox
    from belljar.egress.client.client import PROXY

    code = (HERE / "egress_load.py").read_text()
    policy = net_policy(server, NAME) | {"proc": {"timeout_ms": "300s", "cpu_quota": 2}}
    with Sandbox(policy) as jar:

        def inside(settings: dict[str, Any]) -> dict[str, float]:
            result = jar.run(code, args=[json.dumps(settings)])
            if not result.ok:
                raise SystemExit(f"the client in the jar failed: {result.reason} {result.stderr[-2000:]}")
            found: dict[str, float] = json.loads(result.stdout)
            return found

        yield Route(JAR, NAME, 0, inside, PROXY.pid)


def net_policy(server: Origin, name: str) -> dict[str, Any]:
    """One path of one host, and a port whose bytes are carried unseen."""
    small = {"methods": ["GET"], "paths": ["/small"]}
    ports = {server.plain: small, server.secure: small, server.raw: {}}
    rules = [{"host": name, "ports": [port], "addresses": ["127.0.0.1"], **more} for port, more in ports.items()]
    return {"net": {"enabled": True, "allowlist": rules, "ca_file": str(server.certificate)}}
