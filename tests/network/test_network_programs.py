"""Programs that were not written for this, on each route to the proxy that they know of.

Transparent is the route of all: their environment says nothing of a proxy. Some read HTTPS_PROXY, some a SOCKS address.
"""

from __future__ import annotations

import glob
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from network_daemons import need_program, postgresql, redis, sshd
from network_routes import OpenJar, decisions, network, rule, run_shell, summary, told
from network_web import Site, Web

EVERY = ("transparent", "http", "socks")
NO_SOCKS = ("transparent", "http")
ALONE = ("transparent",)

REQUESTS = "import requests; print(requests.get('https://web.test/hello').text)"
HTTPX = "import httpx; print(httpx.get('https://web.test/hello').text)"
URLLIB = "import urllib.request as u; print(u.urlopen('https://web.test/hello').read().decode())"
FETCH = "fetch('https://web.test/hello').then(r => r.text()).then(console.log)"


class Program(NamedTuple):
    """A program, the script that uses it, what it prints in the end, and the routes it knows."""

    name: str
    package: str
    script: str
    says: str
    host: str
    routes: tuple[str, ...]


PROGRAMS = (
    Program("curl", "curl", "curl -sS https://web.test/hello", "hello from web.test/hello", "web.test", EVERY),
    Program(
        "git",
        "git",
        "cd /workspace && git clone -q https://git.test/project.git && cat project/README",
        "cloned through the jar's network",
        "git.test",
        EVERY,
    ),
    Program(
        "pip",
        "python3-venv",
        "cd /workspace && python3 -m pip install -q --no-cache-dir --disable-pip-version-check --target . "
        "--index-url https://pypi.test/simple/ belljar-tiny && python3 -c 'import belljar_tiny as t; print(t.said)'",
        "installed by pip",
        "pypi.test",
        NO_SOCKS,
    ),
    Program(
        "npm",
        "npm",
        "mkdir /workspace/n && cd /workspace/n && export HOME=/tmp npm_config_update_notifier=false && npm install "
        "--registry=https://npm.test/ --no-audit --no-fund --loglevel=error belljar-tiny && "
        "node -e \"console.log(require('belljar-tiny'))\"",
        "installed by npm",
        "npm.test",
        NO_SOCKS,
    ),
    Program("requests", "", f'python3 -c "{REQUESTS}"', "hello from web.test/hello", "web.test", NO_SOCKS),
    Program("httpx", "", f'python3 -c "{HTTPX}"', "hello from web.test/hello", "web.test", NO_SOCKS),
    Program("urllib", "", f'python3 -c "{URLLIB}"', "hello from web.test/hello", "web.test", NO_SOCKS),
    Program("node", "nodejs", f'node -e "{FETCH}"', "hello from web.test/hello", "web.test", ALONE),
)


@pytest.fixture
def jar_policy(secure: Web, site: Site, repositories: Path) -> dict[str, object]:
    """Everything that the programs reach, by host and port: TLS is passed through."""
    site.repositories = repositories
    hosts = ("web.test", "git.test", "pypi.test", "npm.test")
    return network(*(rule(host, secure.address, 443) for host in hosts))


@pytest.mark.parametrize(
    ("program", "route"),
    [(program, route) for program in PROGRAMS for route in program.routes],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_program_reaches_a_listed_host(
    net_jar: OpenJar, jar_policy: dict[str, object], site: Site, program: Program, route: str
) -> None:
    """It does what it does anywhere, and the server has seen it."""
    if program.package and program.name != "pip":
        need_program(program.name, program.package)
    jar = net_jar(jar_policy, overrides=["proc.timeout_ms=90s", "proc.mem_mb=2048", "proc.pids=256"])
    result = run_shell(jar, program.script, route=route)
    assert program.says in told(result)
    assert {request.host for request in site.requests} == {program.host}, summary(result)
    assert not result.denials, summary(result)


# --- programs that know of no proxy at all ---------------------------------------------------------------------------


def test_psql(net_jar: OpenJar) -> None:
    """A protocol of its own, in which the client speaks first."""
    psql = need_program("psql", "postgresql-client", "/usr/lib/postgresql/*/bin/psql")
    psql = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin/psql"))), psql)  # Debian's in PATH wants its /etc
    with postgresql() as database:
        jar = net_jar(network(rule("db.test", database.address, 5432)))
        result = run_shell(jar, f"{psql} -h db.test -U {database.user} -d postgres -Atc 'select 6 * 7'")
    assert told(result) == "42\n"
    assert ("db.test", True) in decisions(result, "connect")


def test_redis_cli(net_jar: OpenJar) -> None:
    """What one run has put there, the next one finds."""
    need_program("redis-cli", "redis-tools")
    with redis() as cache:
        jar = net_jar(network(rule("cache.test", cache.address, 6379)))
        assert told(run_shell(jar, "redis-cli -h cache.test set word 'kept by redis'")) == "OK\n"
        assert told(run_shell(jar, "redis-cli -h cache.test get word")) == "kept by redis\n"


def test_ssh(net_jar: OpenJar) -> None:
    """A protocol in which the server speaks first."""
    need_program("ssh", "openssh-client")
    options = "-F none -i /tmp/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/tmp/known -o LogLevel=ERROR"
    with sshd() as host:
        jar = net_jar(network(rule("shell.test", host.address, 22)))
        jar.files.write("key", host.key.encode())
        script = f"install -m 600 key /tmp/key && ssh {options} {host.user}@shell.test a word from the jar"
        assert told(run_shell(jar, script)) == "through ssh: a word from the jar\n"


JAVA = """
import java.io.*;
import java.net.*;

public class Get {
    public static void main(String[] arguments) throws IOException {
        for (String address : arguments) {
            try (InputStream in = new URL(address).openStream()) {
                in.transferTo(System.out);
            }
        }
    }
}
"""


@pytest.fixture(scope="module")
def java_program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A compiled class: Java reads no proxy variables."""
    javac = need_program("javac", "default-jdk-headless")
    directory = tmp_path_factory.mktemp("java")
    (directory / "Get.java").write_text(JAVA)
    subprocess.run([javac, "-d", str(directory), str(directory / "Get.java")], check=True, capture_output=True)
    return (directory / "Get.class").read_bytes()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_java(net_jar: OpenJar, web: Web, secure: Web, site: Site, java_program: bytes, scheme: str) -> None:
    """It has a resolver, sockets and a trust store of its own, and works as anywhere."""
    server = secure if scheme == "https" else web
    jar = net_jar(
        network(rule("web.test", server.address)),
        overrides=["proc.timeout_ms=90s", "proc.mem_mb=2048", "proc.pids=256"],
    )
    jar.files.write("Get.class", java_program)
    result = run_shell(jar, f"java -Xshare:auto -XX:+UseSerialGC -cp /workspace Get {scheme}://web.test/java")
    assert told(result) == "hello from web.test/java to GET\n"
    assert [request.path for request in site.requests] == ["/java"]
