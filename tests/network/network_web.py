"""A web server of many names: pages, an echo, events, a WebSocket, git repositories, indexes for pip and npm."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import json
import os
import socket
import ssl
import subprocess
import tarfile
import threading
import zipfile
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from network_servers import Server

NAMES = (
    "web.test",
    "other.test",
    "git.test",
    "pypi.test",
    "npm.test",
    "api.anthropic.com",
    "deep.wild.test",
    "localhost",
)
"""Of servers with a certificate of the tests' authority."""
_WEBSOCKET_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_PACKAGE = "belljar-tiny"


@dataclass(frozen=True)
class Arrived:
    """A request as the server read it."""

    method: str
    path: str
    headers: dict[str, str]
    """Names in small letters."""
    body: bytes = b""
    tls: bool = False

    @property
    def host(self) -> str:
        """Without a port."""
        return self.headers.get("host", "").partition(":")[0]


@dataclass
class Site:
    """What the web servers of a test show, and what reached them."""

    repositories: Path | None = None
    requests: list[Arrived] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    """Set by a request for `/release`: until then `/events` has told one event only."""

    @cached_property
    def wheel(self) -> bytes:
        """A package that pip installs."""
        data = io.BytesIO()
        about = f"{_PACKAGE.replace('-', '_')}-1.0.dist-info"
        module = _PACKAGE.replace("-", "_")
        with zipfile.ZipFile(data, "w") as archive:
            archive.writestr(f"{module}.py", "said = 'installed by pip'\n")
            archive.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {_PACKAGE}\nVersion: 1.0\n")
            archive.writestr(
                f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(
                f"{about}/RECORD", f"{module}.py,,\n{about}/METADATA,,\n{about}/WHEEL,,\n{about}/RECORD,,\n"
            )
        return data.getvalue()

    @cached_property
    def tarball(self) -> bytes:
        """A package that npm installs."""
        data = io.BytesIO()
        files = {
            "package/package.json": json.dumps({"name": _PACKAGE, "version": "1.0.0", "main": "index.js"}),
            "package/index.js": "module.exports = 'installed by npm'\n",
        }
        with tarfile.open(fileobj=data, mode="w:gz") as archive:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text.encode()))
        return data.getvalue()


class Web(Server):
    """One port of a site."""

    def __init__(self, site: Site, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.site = site
        self.is_tls = tls is not None
        super().__init__(tls=tls, host=host)

    def serve(self, connection: socket.socket) -> None:
        """Requests, until the connection ends."""
        _Handler(connection, connection.getpeername(), self)  # type: ignore[arg-type]  # it wants no more of a server


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing is printed."""

    def handle_one_request(self) -> None:
        """Blank lines before a request are passed over, as most servers do."""
        while self.rfile.peek(2)[:2] == b"\r\n":  # type: ignore[attr-defined]  # it is a BufferedReader
            self.rfile.read(2)
        super().handle_one_request()

    def _take(self) -> Arrived:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        arrived = Arrived(self.command, self.path, headers, body, self.server.is_tls)
        self.server.site.requests.append(arrived)
        return arrived

    def _chunk(self) -> bytes:
        size = int(self.rfile.readline().split(b";")[0], 16)
        data = self.rfile.read(size)
        self.rfile.readline()
        return data

    def _answer(self) -> None:
        arrived = self._take()
        path = arrived.path.partition("?")[0]
        if arrived.host == "git.test":
            self._git(arrived)
        elif arrived.host == "pypi.test":
            self._pypi(path)
        elif arrived.host == "npm.test":
            self._npm(path)
        elif path == "/events":
            self._events()
        elif path == "/socket":
            self._websocket(arrived)
        elif path == "/endless":
            self._endless()
        elif path == "/echo":
            headers = json.dumps({"method": arrived.method, "path": arrived.path, "headers": arrived.headers})
            self._reply(200, headers.encode(), "application/json")
        else:
            if path == "/release":
                self.server.site.released.set()
            self._reply(200, f"hello from {arrived.host}{path} to {arrived.method}\n".encode())

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_OPTIONS = do_CONNECT = _answer  # noqa: N815

    def _reply(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _events(self) -> None:
        """One event at once, the second when another request has asked for it."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(b"data: first\n\n")
        self.wfile.flush()
        self.server.site.released.wait(20)
        self.wfile.write(b"data: second\n\n")
        self.close_connection = True

    def _endless(self) -> None:
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        while True:
            self.wfile.write(bytes(1 << 16))

    def _websocket(self, arrived: Arrived) -> None:
        """Sends one text message back."""
        key = arrived.headers["sec-websocket-key"] + _WEBSOCKET_GUID
        accept = base64.b64encode(hashlib.sha1(key.encode(), usedforsecurity=False).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.close_connection = True
        frame = self.rfile.read(2)
        if len(frame) < 2:
            return
        size, mask = frame[1] & 0x7F, self.rfile.read(4)
        text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(self.rfile.read(size)))
        self.server.note(text.decode())
        self.wfile.write(bytes((0x81, len(text))) + text + b"\x88\x00")

    def _git(self, arrived: Arrived) -> None:
        """What `git http-backend` says, which speaks CGI."""
        path, _, query = arrived.path.partition("?")
        variables = {
            "GIT_PROJECT_ROOT": str(self.server.site.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_PROTOCOL": arrived.headers.get("git-protocol", ""),
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": arrived.method,
            "CONTENT_TYPE": arrived.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(arrived.body)),
            "HTTP_CONTENT_ENCODING": arrived.headers.get("content-encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
            "PATH": os.environ["PATH"],
        }
        command = ["git", "http-backend"]
        done = subprocess.run(command, input=arrived.body, env=variables, capture_output=True, check=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(headers.pop("Status", "200").split()[0])
        self._reply(status, body, headers.get("Content-Type", "text/plain"))

    def _pypi(self, path: str) -> None:
        wheel = self.server.site.wheel
        name = f"{_PACKAGE.replace('-', '_')}-1.0-py3-none-any.whl"
        if path == f"/simple/{_PACKAGE}/":
            digest = hashlib.sha256(wheel).hexdigest()
            page = f'<!DOCTYPE html><html><body><a href="/files/{name}#sha256={digest}">{name}</a></body></html>'
            self._reply(200, page.encode(), "text/html")
        elif path == f"/files/{name}":
            self._reply(200, wheel, "application/octet-stream")
        else:
            self._reply(404, b"no such package")

    def _npm(self, path: str) -> None:
        tarball = self.server.site.tarball
        name = f"/{_PACKAGE}/-/{_PACKAGE}-1.0.0.tgz"
        if path == f"/{_PACKAGE}":
            integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
            version = {
                "name": _PACKAGE,
                "version": "1.0.0",
                "dist": {"tarball": f"https://npm.test{name}", "integrity": integrity},
            }
            page = {"name": _PACKAGE, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
            self._reply(200, json.dumps(page).encode(), "application/json")
        elif path == name:
            self._reply(200, tarball, "application/octet-stream")
        else:
            self._reply(404, b"{}", "application/json")


def make_repository(directory: Path) -> Path:
    """A directory with `project.git`, a bare repository with one file in it."""
    work = directory / "work"
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "a test",
        "GIT_AUTHOR_EMAIL": "test@web.test",
        "GIT_COMMITTER_NAME": "a test",
        "GIT_COMMITTER_EMAIL": "test@web.test",
    }

    def git(*words: str) -> None:
        subprocess.run(["git", *words], env=variables, check=True, capture_output=True)

    work.mkdir()
    git("init", "--quiet", "--initial-branch=main", str(work))
    (work / "README").write_text("cloned through the jar's network\n")
    git("-C", str(work), "add", "README")
    git("-C", str(work), "commit", "--quiet", "--message=one file")
    served = directory / "served"
    git("clone", "--quiet", "--bare", str(work), str(served / "project.git"))
    return served
